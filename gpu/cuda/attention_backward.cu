// attention, backward: never T x T, no atomics (after Dao 2023, arXiv:2307.08691, except for dq).
//
// 1. Statistics of each (query, head), into the workspace: its log-sum-exp and delta = rowsum(dO * O).
// 2. dk, dv: a block owns some keys of one (sequence, key/value head) and passes over all tiles of queries
//    that see them, head by head of the group: scores^T = k q^T, probabilities P from the log-sum-exp, dv +=
//    P^T dO, dP^T = v dO^T, dS = P (dP - delta), dk += dS^T q.
// 3. dq: a block owns some queries of one (sequence, head) and passes over the tiles of keys up to the
//    diagonal: dq += dS k.
// dk and dq are scaled at the end. Scores and dP are computed twice, seven products instead of five, so that
// every gradient has one owner and a fixed order of additions without a T x T or a float atomic.
#include "engine/base/error.h"
#include "gpu/cuda/attention.h"

namespace sluice::cuda {
namespace {

template <typename T, int kSize>
using KeysTiling = Tiling<AttentionPart::keys, T, kSize>;
template <typename T, int kSize>
using QueriesTiling = Tiling<AttentionPart::queries, T, kSize>;

// Statistics of one query and head. Queries beyond the sequence have the log-sum-exp infinity, so that their
// probabilities are zero.
struct alignas(8) Statistics {
  float log2_sum;  // log-sum-exp * log2(e)
  float delta;
};
static_assert(sizeof(Statistics) == kStatisticsBytes);

// padded_queries, for kernels.
__host__ __device__ inline int64_t padded_length(int64_t length) { return (div_up(length, 64) + 1) * 64; }

template <typename T>
struct BackwardArguments {
  AttentionShape shape;
  AttentionTensors<T> in, gradients;
  HeadColumns<T> o, d_o;
  const float* lse;        // [sequences, heads, length]
  Statistics* statistics;  // [sequences, heads, padded_length]
};

constexpr int kStatisticsThreads = 128;

// kSize / kWide threads for each (query, head), heads innermost as in memory.
template <typename T, int kSize>
__global__ void __launch_bounds__(kStatisticsThreads) statistics_kernel(BackwardArguments<T> a) {
  constexpr int kThreads = kSize / kWide;
  const AttentionShape& s = a.shape;
  const int64_t padded = padded_length(s.length);
  const int64_t item = (static_cast<int64_t>(blockIdx.x) * kStatisticsThreads + threadIdx.x) / kThreads;
  const auto column = static_cast<int64_t>(threadIdx.x) % kThreads * kWide;
  const int64_t head = item % s.heads, position = item / s.heads % padded;
  const int64_t sequence = item / s.heads / padded;
  const bool there = sequence < s.sequences && position < s.length;
  float sum = 0;
  if (there && column < s.size) {
    const int64_t begin = (sequence * s.length + position) * a.o.stride + head * s.size + column;
    with_part(s.size % kWide == 0, s.size - column, [&](auto part) {
      float o[kWide], d_o[kWide];
      load(a.o.data + begin, part, o);
      load(a.d_o.data + begin, part, d_o);
#pragma unroll
      for (int i = 0; i < kWide; ++i) sum += o[i] * d_o[i];
    });
  }
  for (int lane = kThreads / 2; lane > 0; lane /= 2) sum += __shfl_xor_sync(kAllLanes, sum, lane);
  if (column != 0 || sequence >= s.sequences) return;
  const int64_t pair = sequence * s.heads + head;
  a.statistics[pair * padded + position] = {
      there ? a.lse[pair * s.length + position] * static_cast<float>(kLog2E) : INFINITY, sum};
}

// Turns a score into its probability, and dP into the gradient of the score without the scale, in place.
__device__ inline void differentiate(float& score, float& gradient, const Statistics& of_query,
                                     float log2_scale) {
  score = fast_exp2(__fmaf_rn(score, log2_scale, -of_query.log2_sum));
  gradient = score * (gradient - of_query.delta);
}

// The same for tiles whose rows are queries. `statistics` begin at the lane's first row.
template <int kRowTiles, int kKeys>
__device__ void differentiate_rows(Sums<kRowTiles, kKeys>& p, Sums<kRowTiles, kKeys>& ds,
                                   const Statistics* statistics, float log2_scale) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Statistics row = statistics[16 * m + 8 * half];
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) differentiate(p[m][j][i], ds[m][j][i], row, log2_scale);
    }
}

// The same for tiles whose columns are queries.
template <int kRowTiles, int kQueries>
__device__ void differentiate_columns(Sums<kRowTiles, kQueries>& p, Sums<kRowTiles, kQueries>& ds,
                                      const Statistics* statistics, float log2_scale) {
#pragma unroll
  for (int j = 0; j < kQueries / 8; ++j) {
    const Words two = *reinterpret_cast<const Words*>(statistics + sum_column(j, 0));
    const Statistics columns[2] = {{__uint_as_float(two.word[0]), __uint_as_float(two.word[1])},
                                   {__uint_as_float(two.word[2]), __uint_as_float(two.word[3])}};
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) differentiate(p[m][j][i], ds[m][j][i], columns[i % 2], log2_scale);
  }
}

// In tiles of P^T or dS^T, zeroes the elements whose query comes before their key. ahead: the tile's first
// query, counted from the warp's first key.
template <int kRowTiles, int kQueries>
__device__ void mask_queries(Sums<kRowTiles, kQueries>& sums, int ahead) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int j = 0; j < kQueries / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (16 * m + sum_row(i) > ahead + sum_column(j, i)) sums[m][j][i] = 0;
}

// Like QueryBlock, for a block that owns keys.
struct KeyBlock {
  int sequence, kv_head, first;

  __device__ KeyBlock(const AttentionShape& s, int own) {
    const int blocks = (s.length + own - 1) / own, index = unhoisted(static_cast<int>(blockIdx.x));
    sequence = index / blocks / s.kv_heads;
    kv_head = index / blocks % s.kv_heads;
    first = index % blocks * own;
  }
};

// Moves over tiles of queries from `first` on, head by head.
struct QueryCursor {
  int head, query;
  __device__ void move(int queries, int first, int length) {
    query += queries;
    if (query < length) return;
    query = first;
    ++head;
  }
};

template <typename T, int kSize>
__global__ void __launch_bounds__(kWarpsMax* kWarp, 1) keys_kernel(BackwardArguments<T> a) {
  using Tiles = KeysTiling<T, kSize>;
  constexpr int kQueries = Tiles::kOthers, kRowTiles = Tiles::kRowTiles;
  const BlockMemory<AttentionPart::keys, T, kSize> memory;
  const Tile<T, kSize> k = memory.warp_tile(0), v = memory.warp_tile(1);
  const AttentionShape& s = a.shape;
  const KeyBlock block(s, memory.own);
  const int key = block.first + memory.own_row;
  load_tile(memory.own_tile(0), memory.own, a.in.k.of(s, block.sequence, block.kv_head), block.first, s);
  load_tile(memory.own_tile(1), memory.own, a.in.v.of(s, block.sequence, block.kv_head), block.first, s);
  Sums<kRowTiles, kSize> dk = {}, dv = {};
  QueryCursor next{block.kv_head * s.group(), block.first}, here = next;
  const auto load = [&](int, int stage) {
    load_tile(memory.other_tile(0, stage), kQueries, a.in.q.of(s, block.sequence, next.head), next.query, s);
    load_tile(memory.other_tile(1, stage), kQueries, a.d_o.of(s, block.sequence, next.head), next.query, s);
    next.move(kQueries, block.first, s.length);
  };
  const auto work = [&](int, int stage) {
    const QueryCursor at = here;
    here.move(kQueries, block.first, s.length);
    const int ahead = at.query - key;
    if (ahead + kQueries <= 0) return;  // none of these queries sees a key of this warp
    const Tile<T, kSize> q = memory.other_tile(0, stage), d_o = memory.other_tile(1, stage);
    Sums<kRowTiles, kQueries> p = {}, ds = {};
    multiply_rows<kRowTiles, kQueries, kSize>(p, k, q);
    multiply_rows<kRowTiles, kQueries, kSize>(ds, v, d_o);
    const int64_t pair = block.sequence * s.heads + at.head;
    differentiate_columns<kRowTiles, kQueries>(
        p, ds, a.statistics + pair * padded_length(s.length) + at.query, s.log2_scale);
    if (ahead < Tiles::kRows - 1) {
      mask_queries<kRowTiles, kQueries>(p, ahead);
      mask_queries<kRowTiles, kQueries>(ds, ahead);
    }
    const Operand<T, kRowTiles, kQueries> left_p(p), left_ds(ds);
    multiply_result<kRowTiles, kSize, kQueries>(dv, left_p, d_o, memory.scratch());
    multiply_result<kRowTiles, kSize, kQueries>(dk, left_ds, q, memory.scratch());
  };
  for_tiles(s.group() * ((s.length - block.first + kQueries - 1) / kQueries), load, work);
  const KeyBlock at_end(s, memory.own);
  const int row = at_end.first + memory.own_row;
  scale_rows<kRowTiles, kSize>(dk, s.scale);
  if (a.gradients.k.data != nullptr)
    store_result<kRowTiles, kSize>(dk, a.gradients.k.of(s, at_end.sequence, at_end.kv_head), row, s);
  if (a.gradients.v.data != nullptr)
    store_result<kRowTiles, kSize>(dv, a.gradients.v.of(s, at_end.sequence, at_end.kv_head), row, s);
}

template <typename T, int kSize>
__global__ void __launch_bounds__(kWarpsMax* kWarp, 1) queries_kernel(BackwardArguments<T> a) {
  using Tiles = QueriesTiling<T, kSize>;
  constexpr int kKeys = Tiles::kOthers, kRowTiles = Tiles::kRowTiles;
  const BlockMemory<AttentionPart::queries, T, kSize> memory;
  const Tile<T, kSize> q = memory.warp_tile(0), d_o = memory.warp_tile(1);
  const AttentionShape& s = a.shape;
  const QueryBlock block(s, memory.own);
  const int query = block.first + memory.own_row;
  load_tile(memory.own_tile(0), memory.own, a.in.q.of(s, block.sequence, block.head), block.first, s);
  load_tile(memory.own_tile(1), memory.own, a.d_o.of(s, block.sequence, block.head), block.first, s);
  const Statistics* statistics =
      a.statistics + static_cast<int64_t>(block.pair) * padded_length(s.length) + query;
  Sums<kRowTiles, kSize> dq = {};
  const auto work = [&](int first_key, const Tile<T, kSize>& k, const Tile<T, kSize>& v) {
    const int ahead = query - first_key;
    if (ahead + Tiles::kRows <= 0) return;  // beyond the diagonal for all of this warp
    Sums<kRowTiles, kKeys> p = {}, ds = {};
    multiply_rows<kRowTiles, kKeys, kSize>(p, q, k);
    multiply_rows<kRowTiles, kKeys, kSize>(ds, d_o, v);
    differentiate_rows<kRowTiles, kKeys>(p, ds, statistics + unhoisted(sum_row(0)), s.log2_scale);
    if (ahead < kKeys - 1) mask_keys<kRowTiles, kKeys>(ds, ahead, 0.0f);
    const Operand<T, kRowTiles, kKeys> left(ds);
    multiply_result<kRowTiles, kSize, kKeys>(dq, left, k, memory.scratch());
  };
  for_key_tiles(memory, block.keys_end, a.in.k.of(s, block.sequence, block.kv_head),
                a.in.v.of(s, block.sequence, block.kv_head), s, work);
  const QueryBlock at_end(s, memory.own);
  scale_rows<kRowTiles, kSize>(dq, s.scale);
  store_result<kRowTiles, kSize>(dq, a.gradients.q.of(s, at_end.sequence, at_end.head),
                                 at_end.first + memory.own_row, s);
}

}  // namespace

void load_attention_backward_kernels(const Queue& queue) {
  for_each_head_size([&]<typename T, int kSize>(T, HeadSize<kSize>) {
    load(statistics_kernel<T, kSize>);
    load(keys_kernel<T, kSize>, cut_for<AttentionPart::keys, T, kSize>(queue).shared_bytes);
    load(queries_kernel<T, kSize>, cut_for<AttentionPart::queries, T, kSize>(queue).shared_bytes);
  });
}

void attention_backward(const Queue& queue, const OpCall& call) {
  const AttentionShape s = attention_shape(*call.shapes);
  CHECK(padded_length(s.length) == padded_queries(s.length),
        "kernels and workspace pad a sequence to different lengths");
  for_head_size(call.shapes->precision, s.size, [&]<typename T, int kSize>(T, HeadSize<kSize>) {
    const BackwardArguments<T> a{s,
                                 attention_tensors<T>(s, call.inputs),
                                 attention_tensors<T>(s, call.input_gradients),
                                 {data_of<T>(call.outputs, 0), s.heads * s.size, false},
                                 {data_of<T>(call.output_gradients, 0), s.heads * s.size, false},
                                 data_of<const float>(call.outputs, 1),
                                 reinterpret_cast<Statistics*>(call.workspace)};
    const bool keys = a.gradients.k.data != nullptr || a.gradients.v.data != nullptr;
    const bool queries = a.gradients.q.data != nullptr;
    if (keys || queries)
      launch(queue, statistics_kernel<T, kSize>,
             div_up(s.sequences * padded_length(s.length) * s.heads * (kSize / kWide), kStatisticsThreads),
             kStatisticsThreads, 0, a);
    if (keys) {
      const Cut cut = cut_for<AttentionPart::keys, T, kSize>(queue);
      const int64_t blocks = div_up(s.length, cut.warps * KeysTiling<T, kSize>::kRows);
      launch(queue, keys_kernel<T, kSize>, s.sequences * s.kv_heads * blocks, cut.threads(), cut.shared_bytes,
             a);
    }
    if (queries) {
      const Cut cut = cut_for<AttentionPart::queries, T, kSize>(queue);
      const int64_t blocks = div_up(s.length, cut.warps * QueriesTiling<T, kSize>::kRows);
      launch(queue, queries_kernel<T, kSize>, s.sequences * s.heads * blocks, cut.threads(), cut.shared_bytes,
             a);
    }
  });
}

}  // namespace sluice::cuda
