// attention, backward: never T x T, no atomics (after Dao 2023, arXiv:2307.08691, but for dq).
//
// 1. delta = rowsum(dO * O), one warp a (row, head), into the workspace.
// 2. dk, dv: a block owns some keys of one (sequence, key/value head) and passes over all tiles of queries
//    that see them, head by head of the group: scores^T = k q^T, probabilities from lse, dv += P^T dO,
//    dP^T = v dO^T, dS = P (dP - delta), dk += dS^T q.
// 3. dq: a block owns some queries of one (sequence, head) and passes over the tiles of keys up to the
//    diagonal: dq += dS k.
// Scores and dP are computed twice, seven products instead of five, so that every gradient has one owner and
// a fixed order of additions without a T x T or a float atomic.
#include "engine/error.h"
#include "gpu/cuda_attention.h"

namespace sluice::cuda {
namespace {

template <typename T>
struct BackwardArguments {
  AttentionShape shape;
  AttentionTensors<T> in, gradients;
  HeadColumns<T> o, d_o;
  const float* lse;
  float* delta;  // as lse: [sequences, heads, length]
};

constexpr int kDeltaThreads = 128;

template <typename T>
__global__ void __launch_bounds__(kDeltaThreads) delta_kernel(BackwardArguments<T> a) {
  const AttentionShape& s = a.shape;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * (kDeltaThreads / kWarp) + threadIdx.x / kWarp;
  if (index >= s.sequences * s.length * s.heads) return;
  const int64_t row = index / s.heads, head = index % s.heads, begin = row * a.o.stride + head * s.size;
  float sum = 0;
  for (int64_t d = threadIdx.x % kWarp; d < s.size; d += kWarp)
    sum += widen(a.d_o.data[begin + d]) * widen(a.o.data[begin + d]);
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) a.delta[(row / s.length * s.heads + head) * s.length + row % s.length] = sum;
}

// lse (times log2 e) and delta of queries [first, first + kQueries), zero from `length` on.
template <int kQueries>
__device__ void load_statistics(float* lse, float* delta, const float* all_lse, const float* all_delta,
                                int64_t first, int64_t length) {
  for (int i = static_cast<int>(threadIdx.x); i < kQueries; i += static_cast<int>(blockDim.x)) {
    const bool there = first + i < length;
    lse[i] = there ? all_lse[first + i] * 1.44269504f : 0.0f;
    delta[i] = there ? all_delta[first + i] : 0.0f;
  }
}

// probability and score gradient of one element, from its score and dP in place.
__device__ inline void differentiate(float& score, float& gradient, bool seen, float lse, float delta,
                                     const AttentionShape& s) {
  const float probability = seen ? exp2f(score * s.log2_scale - lse) : 0.0f;
  score = probability;
  gradient = seen ? probability * (gradient - delta) * s.scale : 0.0f;
}

template <typename T, int kSize>
__global__ void __launch_bounds__(Tiling<T, kSize>::kThreads, 1) keys_kernel(BackwardArguments<T> a) {
  using Tiles = Tiling<T, kSize>;
  constexpr int kQueries = Tiles::kOthersBackward, stride = kStride<T, kSize>;
  T* const k = reinterpret_cast<T*>(shared_memory());
  T* const v = k + Tiles::kOwn * stride;
  T* const q = v + Tiles::kOwn * stride;
  T* const d_o = q + kQueries * stride;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  T* const all_scratch = d_o + kQueries * stride;
  T* const scratch = all_scratch + warp * Tiles::template kScratch<kQueries>;
  float* const lse =
      reinterpret_cast<float*>(all_scratch + Tiles::kWarps * Tiles::template kScratch<kQueries>);
  float* const delta = lse + kQueries;

  const AttentionShape& s = a.shape;
  const int64_t blocks = div_up(s.length, Tiles::kOwn);
  const int64_t pair = blockIdx.x / blocks, sequence = pair / s.kv_heads, kv_head = pair % s.kv_heads;
  const int64_t first_key = blockIdx.x % blocks * Tiles::kOwn, key = first_key + warp * 16;
  const int64_t base = sequence * s.length, base_end = base + s.length;

  load_tile<T, Tiles::kOwn, kSize>(k, a.in.k, kv_head, base + first_key, base_end, s.size);
  load_tile<T, Tiles::kOwn, kSize>(v, a.in.v, kv_head, base + first_key, base_end, s.size);
  float dk[kSize / 8][4] = {}, dv[kSize / 8][4] = {};
  for (int64_t head = kv_head * s.group(); head < (kv_head + 1) * s.group(); ++head)
    for (int64_t query = first_key; query < s.length; query += kQueries) {
      const int64_t statistics = (sequence * s.heads + head) * s.length;
      __syncthreads();
      load_tile<T, kQueries, kSize>(q, a.in.q, head, base + query, base_end, s.size);
      load_tile<T, kQueries, kSize>(d_o, a.d_o, head, base + query, base_end, s.size);
      load_statistics<kQueries>(lse, delta, a.lse + statistics, a.delta + statistics, query, s.length);
      __syncthreads();
      if (query + kQueries <= key) continue;  // none of these queries sees a key of this warp
      float p[kQueries / 8][4] = {}, ds[kQueries / 8][4] = {};
      multiply_rows<kQueries, kSize>(p, k + warp * 16 * stride, q);
      multiply_rows<kQueries, kSize>(ds, v + warp * 16 * stride, d_o);
#pragma unroll
      for (int j = 0; j < kQueries / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = sum_column(j, i);
          const int64_t position = query + column;
          const bool seen = position < s.length && key + sum_row(i) <= position;
          differentiate(p[j][i], ds[j][i], seen, lse[column], delta[column], s);
        }
      multiply_result<kSize, kQueries>(dv, p, d_o, scratch);
      multiply_result<kSize, kQueries>(dk, ds, q, scratch);
    }
  const float one[2] = {1, 1};
  store_result<T, kSize>(dk, one, a.gradients.k, kv_head, base + key, base_end, s.size);
  store_result<T, kSize>(dv, one, a.gradients.v, kv_head, base + key, base_end, s.size);
}

template <typename T, int kSize>
__global__ void __launch_bounds__(Tiling<T, kSize>::kThreads, 1) queries_kernel(BackwardArguments<T> a) {
  using Tiles = Tiling<T, kSize>;
  constexpr int kKeys = Tiles::kOthersBackward, stride = kStride<T, kSize>;
  T* const q = reinterpret_cast<T*>(shared_memory());
  T* const d_o = q + Tiles::kOwn * stride;
  T* const k = d_o + Tiles::kOwn * stride;
  T* const v = k + kKeys * stride;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  T* const scratch = v + kKeys * stride + warp * Tiles::template kScratch<kKeys>;

  const AttentionShape& s = a.shape;
  const int64_t blocks = div_up(s.length, Tiles::kOwn);
  const int64_t pair = blockIdx.x / blocks, sequence = pair / s.heads, head = pair % s.heads;
  const int64_t first_query = (blocks - 1 - blockIdx.x % blocks) * Tiles::kOwn,
                query = first_query + warp * 16;
  const int64_t base = sequence * s.length, base_end = base + s.length, kv_head = head / s.group();
  const int64_t keys_end = first_query + Tiles::kOwn < s.length ? first_query + Tiles::kOwn : s.length;

  load_tile<T, Tiles::kOwn, kSize>(q, a.in.q, head, base + first_query, base_end, s.size);
  load_tile<T, Tiles::kOwn, kSize>(d_o, a.d_o, head, base + first_query, base_end, s.size);
  float lse[2] = {}, delta[2] = {};  // of the lane's two rows
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t position = query + sum_row(2 * half);
    if (position >= s.length) continue;
    lse[half] = a.lse[pair * s.length + position] * 1.44269504f;
    delta[half] = a.delta[pair * s.length + position];
  }
  float dq[kSize / 8][4] = {};
  for (int64_t first_key = 0; first_key < keys_end; first_key += kKeys) {
    __syncthreads();
    load_tile<T, kKeys, kSize>(k, a.in.k, kv_head, base + first_key, base_end, s.size);
    load_tile<T, kKeys, kSize>(v, a.in.v, kv_head, base + first_key, base_end, s.size);
    __syncthreads();
    if (first_key > query + 15) continue;  // beyond the diagonal for all of this warp
    float p[kKeys / 8][4] = {}, ds[kKeys / 8][4] = {};
    multiply_rows<kKeys, kSize>(p, q + warp * 16 * stride, k);
    multiply_rows<kKeys, kSize>(ds, d_o + warp * 16 * stride, v);
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool seen = first_key + sum_column(j, i) <= query + sum_row(i);
        differentiate(p[j][i], ds[j][i], seen, lse[i / 2], delta[i / 2], s);
      }
    multiply_result<kSize, kKeys>(dq, ds, k, scratch);
  }
  const float one[2] = {1, 1};
  store_result<T, kSize>(dq, one, a.gradients.q, head, base + query, base_end, s.size);
}

template <typename T, int kSize>
constexpr uint64_t backward_shared_bytes() {
  using Tiles = Tiling<T, kSize>;
  constexpr int kOthers = Tiles::kOthersBackward;
  return sizeof(T) * static_cast<uint64_t>(2 * (Tiles::kOwn + kOthers) * kStride<T, kSize> +
                                           Tiles::kWarps * Tiles::template kScratch<kOthers>) +
         2 * kOthers * sizeof(float);
}

}  // namespace

// Backward: delta.
uint64_t attention_workspace_bytes(const OpShapes& shapes, Pass pass) {
  if (shapes.attributes.head_size > kHeadSizeMax)
    throw Error(ExitCode::usage,
                "The cuda device's attention takes heads of up to " + std::to_string(kHeadSizeMax) +
                    " columns, the model's have " + std::to_string(shapes.attributes.head_size) + ".",
                "Choose a model with smaller heads, or train on --device cpu.");
  if (pass == Pass::forward) return 0;
  return static_cast<uint64_t>(shapes.inputs[0][0] * shapes.attributes.heads) * sizeof(float);
}

void load_attention_backward_kernels() {
  for_each_precision([]<typename T>(T) { load(delta_kernel<T>); });
  for_each_head_size([]<typename T, int kSize>(T, HeadSize<kSize>) {
    load(keys_kernel<T, kSize>, backward_shared_bytes<T, kSize>());
    load(queries_kernel<T, kSize>, backward_shared_bytes<T, kSize>());
  });
}

void attention_backward(const Queue& queue, const OpCall& call) {
  const AttentionShape s = attention_shape(*call.shapes);
  for_head_size(call.shapes->precision, s.size, [&]<typename T, int kSize>(T, HeadSize<kSize>) {
    using Tiles = Tiling<T, kSize>;
    const BackwardArguments<T> a{s,
                                 attention_tensors<T>(s, call.inputs),
                                 attention_tensors<T>(s, call.input_gradients),
                                 {data_of<T>(call.outputs, 0), s.heads * s.size, 0, false},
                                 {data_of<T>(call.output_gradients, 0), s.heads * s.size, 0, false},
                                 data_of<const float>(call.outputs, 1),
                                 reinterpret_cast<float*>(call.workspace)};
    const bool keys = a.gradients.k.data != nullptr || a.gradients.v.data != nullptr;
    const bool queries = a.gradients.q.data != nullptr;
    const int64_t blocks = div_up(s.length, Tiles::kOwn);
    if (keys || queries)
      launch(queue, delta_kernel<T>, div_up(s.sequences * s.length * s.heads, kDeltaThreads / kWarp),
             kDeltaThreads, 0, a);
    if (keys)
      launch(queue, keys_kernel<T, kSize>, s.sequences * s.kv_heads * blocks, Tiles::kThreads,
             backward_shared_bytes<T, kSize>(), a);
    if (queries)
      launch(queue, queries_kernel<T, kSize>, s.sequences * s.heads * blocks, Tiles::kThreads,
             backward_shared_bytes<T, kSize>(), a);
  });
}

}  // namespace sluice::cuda
