// attention, forward: causal, grouped-query, never T x T (Dao 2023, arXiv:2307.08691).
//
// 1. A block owns some queries of one (sequence, head); each warp owns 16 of them.
// 2. It passes over tiles of keys from the first to the diagonal: scores = q k^T; a running maximum and sum
//    per query; o = o * correction + probabilities * v, probabilities rounded to the working precision.
// 3. It writes o / sum and the log-sum-exp.
#include "engine/error.h"
#include "gpu/cuda_attention.h"

namespace sluice::cuda {
namespace {

template <typename T>
struct ForwardArguments {
  AttentionShape shape;
  AttentionTensors<T> in;
  HeadColumns<T> o;
  float* lse;
};

// Scores to probabilities in place. Key `first_key + column` is seen by query `query + row` up to the
// diagonal; maximum and sum are those of the lane's two rows, the sum over the lane's own columns.
template <int kKeys, int kSize>
__device__ void softmax_tile(float (&scores)[kKeys / 8][4], float (&o)[kSize / 8][4], float (&maximum)[2],
                             float (&sum)[2], int64_t query, int64_t first_key, float log2_scale) {
  float correction[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = maximum[half];
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        if (first_key + sum_column(j, i) > query + sum_row(i)) scores[j][i] = -INFINITY;
        largest = fmaxf(largest, scores[j][i]);
      }
    largest = row_maximum(largest);
    correction[half] = exp2f((maximum[half] - largest) * log2_scale);
    maximum[half] = largest;
    float added = 0;
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[j][i] = exp2f((scores[j][i] - largest) * log2_scale);
        added += scores[j][i];
      }
    sum[half] = sum[half] * correction[half] + added;
  }
#pragma unroll
  for (int j = 0; j < kSize / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) o[j][i] *= correction[i / 2];
}

template <typename T, int kSize>
__global__ void __launch_bounds__(Tiling<T, kSize>::kThreads, 1) forward_kernel(ForwardArguments<T> a) {
  using Tiles = Tiling<T, kSize>;
  constexpr int kKeys = Tiles::kOthersForward, stride = kStride<T, kSize>;
  T* const q = reinterpret_cast<T*>(shared_memory());
  T* const k = q + Tiles::kOwn * stride;
  T* const v = k + kKeys * stride;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  T* const scratch = v + kKeys * stride + warp * Tiles::template kScratch<kKeys>;

  const AttentionShape& s = a.shape;
  const int64_t blocks = div_up(s.length, Tiles::kOwn);
  const int64_t pair = blockIdx.x / blocks, sequence = pair / s.heads, head = pair % s.heads;
  const int64_t first_query = (blocks - 1 - blockIdx.x % blocks) * Tiles::kOwn;  // the longest first
  const int64_t base = sequence * s.length, base_end = base + s.length, kv_head = head / s.group();
  const int64_t query = first_query + warp * 16;
  const int64_t keys_end = first_query + Tiles::kOwn < s.length ? first_query + Tiles::kOwn : s.length;

  load_tile<T, Tiles::kOwn, kSize>(q, a.in.q, head, base + first_query, base_end, s.size);
  float o[kSize / 8][4] = {}, maximum[2] = {-FLT_MAX, -FLT_MAX}, sum[2] = {};
  for (int64_t first_key = 0; first_key < keys_end; first_key += kKeys) {
    __syncthreads();
    load_tile<T, kKeys, kSize>(k, a.in.k, kv_head, base + first_key, base_end, s.size);
    load_tile<T, kKeys, kSize>(v, a.in.v, kv_head, base + first_key, base_end, s.size);
    __syncthreads();
    if (first_key > query + 15) continue;  // beyond the diagonal for all of this warp
    float scores[kKeys / 8][4] = {};
    multiply_rows<kKeys, kSize>(scores, q + warp * 16 * stride, k);
    softmax_tile<kKeys, kSize>(scores, o, maximum, sum, query, first_key, s.log2_scale);
    multiply_result<kSize, kKeys>(o, scores, v, scratch);
  }
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = row_sum(sum[half]);
    factor[half] = 1.0f / total;
    const int64_t position = query + sum_row(2 * half);
    if (threadIdx.x % 4 == 0 && position < s.length)
      a.lse[pair * s.length + position] = maximum[half] * s.scale + logf(total);
  }
  store_result<T, kSize>(o, factor, a.o, head, base + query, base_end, s.size);
}

template <typename T, int kSize>
constexpr uint64_t forward_shared_bytes() {
  using Tiles = Tiling<T, kSize>;
  constexpr int kKeys = Tiles::kOthersForward;
  return sizeof(T) * static_cast<uint64_t>((Tiles::kOwn + 2 * kKeys) * kStride<T, kSize> +
                                           Tiles::kWarps * Tiles::template kScratch<kKeys>);
}

}  // namespace

AttentionShape attention_shape(const OpShapes& shapes) {
  const OpAttributes& a = shapes.attributes;
  const double scale = 1 / std::sqrt(static_cast<double>(a.head_size));
  constexpr double kLog2E = 1.4426950408889634;
  return {shapes.inputs[0][0] / a.sequence,
          a.sequence,
          a.heads,
          a.kv_heads,
          a.head_size,
          static_cast<float>(scale),
          static_cast<float>(scale * kLog2E)};
}

void load_attention_forward_kernels() {
  for_each_head_size([]<typename T, int kSize>(T, HeadSize<kSize>) {
    load(forward_kernel<T, kSize>, forward_shared_bytes<T, kSize>());
  });
}

void attention_forward(const Queue& queue, const OpCall& call) {
  const AttentionShape s = attention_shape(*call.shapes);
  for_head_size(call.shapes->precision, s.size, [&]<typename T, int kSize>(T, HeadSize<kSize>) {
    using Tiles = Tiling<T, kSize>;
    const ForwardArguments<T> arguments{s,
                                        attention_tensors<T>(s, call.inputs),
                                        {data_of<T>(call.outputs, 0), s.heads * s.size, 0, false},
                                        data_of<float>(call.outputs, 1)};
    launch(queue, forward_kernel<T, kSize>, s.sequences * s.heads * div_up(s.length, Tiles::kOwn),
           Tiles::kThreads, forward_shared_bytes<T, kSize>(), arguments);
  });
}

}  // namespace sluice::cuda
