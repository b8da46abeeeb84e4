// attention, backward: never T x T, no atomics (after Dao 2023, arXiv:2307.08691, except for dq).
//
// 1. Statistics of each (query, head), into the workspace: its log-sum-exp and delta = rowsum(dO * O).
//    Then the gradients of sinks.
// 2. dk, dv: a block owns some keys of one (sequence, key/value head) and passes over all tiles of queries
//    that see them, head by head of the group: scores^T = k q^T, probabilities P from the log-sum-exp, dv +=
//    P^T dO, dP^T = v dO^T, dS = P (dP - delta), dk += dS^T q. For the largest heads, one kernel computes
//    dk and another dv.
// 3. dq: a block owns some queries of one (sequence, head) and passes over the tiles of keys that they see:
//    dq += dS k.
// dk and dq are scaled at the end. Scores and dP are computed twice: seven products instead of five, eight
// for the largest heads. So every gradient has one owner and a fixed order of additions, without a T x T
// matrix or float atomics.
#include "engine/base/error.h"
#include "gpu/cuda/attention.h"

namespace sluice::cuda {
namespace {

// Statistics of one query and head. Queries beyond the sequence have the log-sum-exp infinity, so that their
// probabilities are zero.
struct alignas(8) Statistics {
  float log2_sum;  // log-sum-exp * log2(e)
  float delta;
};
static_assert(sizeof(Statistics) == kStatisticsBytes);

// padded_queries() (workspace.h) in a form that kernels can call.
__host__ __device__ inline int padded_length(int length) { return (length + 63) / 64 * 64 + 64; }

template <typename T>
struct BackwardArguments {
  AttentionShape shape;
  AttentionTensors<T> in, gradients;
  HeadColumns<T> o, d_o;
  const T* sinks;          // [heads]; nullptr: none
  float* sink_gradients;   // [heads]; nullptr: not wanted
  const float* lse;        // [sequences, heads, length]
  Statistics* statistics;  // [sequences, heads, padded_length]
};

constexpr int kStatisticsThreads = 128;

// Each (query, head) has kSize / kWide threads. Heads are innermost, as in memory.
template <typename T, int kSize>
__global__ void __launch_bounds__(kStatisticsThreads) statistics_kernel(BackwardArguments<T> a) {
  constexpr int kThreads = kSize / kWide;
  const AttentionShape& s = a.shape;
  const int padded = padded_length(s.length);
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

// Turns a product q k into its probability, and dP into the gradient of the product without the scale, in
// place.
template <bool kCapped>
__device__ inline void differentiate(float& score, float& gradient, const Statistics& of_query,
                                     const AttentionShape& s) {
  const float part = score * s.inverse_cap;  // of the cap
  score = fast_exp2(__fmaf_rn(score, s.log2_scale, -of_query.log2_sum));
  gradient = score * (gradient - of_query.delta);
  if (kCapped) gradient *= 1 - part * part;
}

// Calls differentiate() for all elements of tiles whose rows are queries. `statistics` begin at the lane's
// first row.
template <bool kCapped, int kRowTiles, int kKeys>
__device__ void differentiate_rows(Sums<kRowTiles, kKeys>& p, Sums<kRowTiles, kKeys>& ds,
                                   const Statistics* statistics, const AttentionShape& s) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Statistics row = statistics[16 * m + 8 * half];
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) differentiate<kCapped>(p[m][j][i], ds[m][j][i], row, s);
    }
}

// Calls differentiate() for all elements of tiles whose columns are queries. `statistics` begin at the lane's
// first column.
template <bool kCapped, int kRowTiles, int kQueries>
__device__ void differentiate_columns(Sums<kRowTiles, kQueries>& p, Sums<kRowTiles, kQueries>& ds,
                                      const Statistics* statistics, const AttentionShape& s) {
#pragma unroll
  for (int j = 0; j < kQueries / 8; ++j) {
    const Words two = *reinterpret_cast<const Words*>(statistics + 8 * j);
    const Statistics columns[2] = {{__uint_as_float(two.word[0]), __uint_as_float(two.word[1])},
                                   {__uint_as_float(two.word[2]), __uint_as_float(two.word[3])}};
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) differentiate<kCapped>(p[m][j][i], ds[m][j][i], columns[i % 2], s);
  }
}

// In tiles of P^T and dS^T, zeroes the elements whose query does not see their key. `first_key` is the first
// key of the warp, `query` the first query of the tile.
template <int kRowTiles, int kQueries>
__device__ void mask_queries(Sums<kRowTiles, kQueries>& p, Sums<kRowTiles, kQueries>& ds,
                             const AttentionShape& s, int sequence, int first_key, int query) {
  const int key = unhoisted(first_key);
  const auto mask = [&](auto first_row) {  // first_row(column): the first key that the query sees
#pragma unroll
    for (int j = 0; j < kQueries / 8; ++j)
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        const int from = first_row(sum_column(j, column)), to = query - key + sum_column(j, column);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
          for (int i = column; i < 4; i += 2)
            if (16 * m + sum_row(i) < from || 16 * m + sum_row(i) > to) p[m][j][i] = ds[m][j][i] = 0;
      }
  };
  if (s.bounded() && key < s.first_key(unhoisted(sequence), query + kQueries - 1))
    mask([&](int column) { return s.first_key(unhoisted(sequence), query + column) - key; });
  else if (query - key < 16 * kRowTiles - 1)
    mask([](int) { return 0; });
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

// The tiles of queries that see a key of the block, head by head.
template <int kQueries>
struct QueryTiles {
  int of_head;  // tiles

  __device__ QueryTiles(const AttentionShape& s, const KeyBlock& block, int own) {
    const int last = (block.first + own < s.length ? block.first + own : s.length) - 1;
    of_head = (s.queries_end(block.sequence, last) - block.first + kQueries - 1) / kQueries;
  }
  __device__ int count(const AttentionShape& s) const { return s.group() * of_head; }
  __device__ int head(const AttentionShape& s, const KeyBlock& block, int i) const {
    return block.kv_head * s.group() + i / of_head;
  }
  __device__ int query(const KeyBlock& block, int i) const { return block.first + i % of_head * kQueries; }
};

template <AttentionPart kPart, typename T, int kSize, int kRowTiles>
__global__ void __launch_bounds__(warps_max(kRowTiles) * kWarp, blocks_at_once(kRowTiles))
    keys_kernel(BackwardArguments<T> a) {
  using Tiles = Tiling<kPart, T, kSize, kRowTiles>;
  constexpr bool kOfKeys = kPart == AttentionPart::keys;
  constexpr bool kOfValues = kPart == AttentionPart::values || !kKeysApart<kSize>;
  constexpr int kQueries = Tiles::kOthers;
  const BlockMemory<T, kSize, Tiles> memory;
  OwnRows<T, kRowTiles, kSize, Tiles::kHeld> k(memory.warp_tile(0)), v(memory.warp_tile(1));
  const AttentionShape& s = a.shape;
  const KeyBlock block(s, memory.own);
  const int key = block.first + memory.own_row;
  load_tile(memory.own_tile(0), memory.own, a.in.k.of(s, block.sequence, block.kv_head), block.first, s);
  if constexpr (kOfKeys)
    load_tile(memory.own_tile(1), memory.own, a.in.v.of(s, block.sequence, block.kv_head), block.first, s);
  [[maybe_unused]] Sums<kRowTiles, kSize> dk = {}, dv = {};
  const QueryTiles<kQueries> tiles(s, block, memory.own);
  const auto load = [&](int i, int stage) {
    const int sequence = unhoisted(block.sequence), head = tiles.head(s, block, i);
    const int query = tiles.query(block, i);
    load_tile(memory.other_tile(0, stage), kQueries, a.in.q.of(s, sequence, head), query, s);
    load_tile(memory.other_tile(1, stage), kQueries, a.d_o.of(s, sequence, head), query, s);
  };
  const auto ready = [&] {
    k.load();
    if constexpr (kOfKeys) v.load();
  };
  const auto work = [&](int i, int stage) {
    const int query = tiles.query(block, i);
    if (query + kQueries <= key) return;  // none of these queries sees a key of this warp
    const Tile<T, kSize> q = memory.other_tile(0, stage), d_o = memory.other_tile(1, stage);
    Sums<kRowTiles, kQueries> p = {}, ds = {};
    multiply_rows<kRowTiles, kQueries, kSize>(p, k, q);
    if constexpr (kOfKeys) multiply_rows<kRowTiles, kQueries, kSize>(ds, v, d_o);
    cap_products<kRowTiles, kQueries>(p, s);
    const int64_t pair = unhoisted(block.sequence) * s.heads + tiles.head(s, block, i);
    const Statistics* statistics =
        a.statistics + pair * padded_length(unhoisted(s.length)) + query + sum_column(0, 0);
    if (s.cap == 0)
      differentiate_columns<false, kRowTiles, kQueries>(p, ds, statistics, s);
    else
      differentiate_columns<true, kRowTiles, kQueries>(p, ds, statistics, s);
    mask_queries<kRowTiles, kQueries>(p, ds, s, block.sequence, key, query);
    Operand<T, kRowTiles, kQueries> left;
    if constexpr (kOfValues) {
      left.set(p);
      multiply_result<kRowTiles, kSize, kQueries>(dv, left, d_o, memory.scratch());
    }
    if constexpr (kOfKeys) {
      left.set(ds);
      multiply_result<kRowTiles, kSize, kQueries>(dk, left, q, memory.scratch());
    }
  };
  for_tiles<Tiles::kStages>(tiles.count(s), load, ready, work);
  const KeyBlock at_end(s, unhoisted(memory.own));
  const int row = at_end.first + BlockMemory<T, kSize, Tiles>().own_row;
  if constexpr (kOfKeys) {
    scale_rows<kRowTiles, kSize>(dk, s.scale);
    if (a.gradients.k.data != nullptr)
      store_result<kRowTiles, kSize>(dk, a.gradients.k.of(s, at_end.sequence, at_end.kv_head), row, s);
  }
  if constexpr (kOfValues)
    if (a.gradients.v.data != nullptr)
      store_result<kRowTiles, kSize>(dv, a.gradients.v.of(s, at_end.sequence, at_end.kv_head), row, s);
}

template <typename T, int kSize, int kRowTiles>
__global__ void __launch_bounds__(warps_max(kRowTiles) * kWarp, blocks_at_once(kRowTiles))
    queries_kernel(BackwardArguments<T> a) {
  using Tiles = Tiling<AttentionPart::queries, T, kSize, kRowTiles>;
  constexpr int kKeys = Tiles::kOthers;
  const BlockMemory<T, kSize, Tiles> memory;
  OwnRows<T, kRowTiles, kSize, Tiles::kHeld> q(memory.warp_tile(0)), d_o(memory.warp_tile(1));
  const AttentionShape& s = a.shape;
  const QueryBlock block(s, memory.own);
  const KeyRange<kKeys> seen(s, block, memory.own);
  const int query = block.first + memory.own_row;
  load_tile(memory.own_tile(0), memory.own, a.in.q.of(s, block.sequence, block.head), block.first, s);
  load_tile(memory.own_tile(1), memory.own, a.d_o.of(s, block.sequence, block.head), block.first, s);
  const Statistics* statistics =
      a.statistics + static_cast<int64_t>(block.pair) * padded_length(s.length) + query;
  Sums<kRowTiles, kSize> dq = {};
  const auto load = [&](int i, int stage) {
    const int sequence = unhoisted(block.sequence), head = unhoisted(block.kv_head);
    load_tile(memory.other_tile(0, stage), kKeys, a.in.k.of(s, sequence, head), seen.begin + i * kKeys, s);
    load_tile(memory.other_tile(1, stage), kKeys, a.in.v.of(s, sequence, head), seen.begin + i * kKeys, s);
  };
  const auto ready = [&] { q.load(), d_o.load(); };
  const auto work = [&](int i, int stage) {
    const int key = seen.begin + i * kKeys;
    if (!sees<kKeys>(s, block.sequence, query, Tiles::kRows, key)) return;
    const Tile<T, kSize> k = memory.other_tile(0, stage), v = memory.other_tile(1, stage);
    Sums<kRowTiles, kKeys> p = {}, ds = {};
    multiply_rows<kRowTiles, kKeys, kSize>(p, q, k);
    multiply_rows<kRowTiles, kKeys, kSize>(ds, d_o, v);
    cap_products<kRowTiles, kKeys>(p, s);
    if (s.cap == 0)
      differentiate_rows<false, kRowTiles, kKeys>(p, ds, statistics + unhoisted(sum_row(0)), s);
    else
      differentiate_rows<true, kRowTiles, kKeys>(p, ds, statistics + unhoisted(sum_row(0)), s);
    mask_keys<kRowTiles, kKeys>(ds, s, block.sequence, query, key, 0.0f);
    Operand<T, kRowTiles, kKeys> left;
    left.set(ds);
    multiply_result<kRowTiles, kSize, kKeys>(dq, left, k, memory.scratch());
  };
  for_tiles<Tiles::kStages>((seen.end - seen.begin + kKeys - 1) / kKeys, load, ready, work);
  const QueryBlock at_end(s, unhoisted(memory.own));
  scale_rows<kRowTiles, kSize>(dq, s.scale);
  store_result<kRowTiles, kSize>(dq, a.gradients.q.of(s, at_end.sequence, at_end.head),
                                 at_end.first + BlockMemory<T, kSize, Tiles>().own_row, s);
}

constexpr int kSinkThreads = 256;

// One block a head. The sink's gradient is minus the sum over queries of the sink's probability times delta.
template <typename T>
__global__ void __launch_bounds__(kSinkThreads) sinks_kernel(BackwardArguments<T> a) {
  __shared__ double shared[kSinkThreads / kWarp];
  const AttentionShape& s = a.shape;
  const int head = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const float log2_sink = widen(a.sinks[head]) * static_cast<float>(kLog2E);
  double sum = 0;
  for (int sequence = 0; sequence < s.sequences; ++sequence) {
    const Statistics* statistics =
        a.statistics + (static_cast<int64_t>(sequence) * s.heads + head) * padded_length(s.length);
    for (int query = thread; query < s.length; query += kSinkThreads)
      sum -= fast_exp2(log2_sink - statistics[query].log2_sum) * statistics[query].delta;
  }
  sum = block_sum(sum, shared);
  if (thread == 0) a.sink_gradients[head] += static_cast<float>(sum);
}

// The kernels add in place. An addend that lies elsewhere, which is rare in models, is first copied to the
// gradient.
void bring_addends(const Queue& queue, const OpCall& call) {
  for (size_t i = 0; i < call.input_gradients.size(); ++i) {
    const TensorView& to = call.input_gradients[i];
    if (to.addend == nullptr || to.addend == to.data) continue;
    const auto elements = static_cast<uint64_t>(element_count(call.shapes->inputs[i]));
    check_step(cudaMemcpyAsync(to.data, to.addend, elements * dtype_bytes(call.shapes->precision),
                               cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(queue.stream)));
  }
}

template <AttentionPart kPart, typename T, int kSize>
void load_keys_kernel(const Queue& queue) {
  const Cut cut = cut_for<kPart, T, kSize>(queue);
  with_row_tiles<kPart, T, kSize>(
      cut, [&](auto tiles) { load_cut(queue, keys_kernel<kPart, T, kSize, tiles>, cut); });
}

template <AttentionPart kPart, int kSize, typename T>
void launch_keys_kernel(const Queue& queue, const BackwardArguments<T>& a) {
  const AttentionShape& s = a.shape;
  const Cut cut = cut_for<kPart, T, kSize>(queue, s.length);
  with_row_tiles<kPart, T, kSize>(cut, [&](auto tiles) {
    launch(queue, keys_kernel<kPart, T, kSize, tiles>, s.sequences * s.kv_heads * cut.blocks(s.length),
           cut.threads(), cut.shared_bytes, a);
  });
}

}  // namespace

void load_attention_backward_kernels(const Queue& queue) {
  for_each_precision([](auto type) { load(sinks_kernel<decltype(type)>); });
  for_each_head_size([&]<typename T, int kSize>(T, HeadSize<kSize>) {
    load(statistics_kernel<T, kSize>);
    load_keys_kernel<AttentionPart::keys, T, kSize>(queue);
    if constexpr (kKeysApart<kSize>) load_keys_kernel<AttentionPart::values, T, kSize>(queue);
    const Cut queries = cut_for<AttentionPart::queries, T, kSize>(queue);
    with_row_tiles<AttentionPart::queries, T, kSize>(
        queries, [&](auto tiles) { load_cut(queue, queries_kernel<T, kSize, tiles>, queries); });
  });
}

void attention_backward(const Queue& queue, const OpCall& call) {
  const AttentionShape s = attention_shape(call);
  CHECK(padded_length(s.length) == padded_queries(s.length),
        "kernels and workspace pad a sequence to different lengths");
  bring_addends(queue, call);
  for_head_size(call.shapes->precision, s.size, [&]<typename T, int kSize>(T, HeadSize<kSize>) {
    const BackwardArguments<T> a{s,
                                 attention_tensors<T>(s, *call.shapes, call.inputs),
                                 attention_tensors<T>(s, *call.shapes, call.input_gradients),
                                 {data_of<T>(call.outputs, 0), s.heads * s.size, false},
                                 {data_of<T>(call.output_gradients, 0), s.heads * s.size, false},
                                 data_of<const T>(call.parameters, 0),
                                 data_of<float>(call.parameter_gradients, 0),
                                 data_of<const float>(call.outputs, 1),
                                 reinterpret_cast<Statistics*>(call.workspace)};
    const bool keys = a.gradients.k.data != nullptr, values = a.gradients.v.data != nullptr;
    const bool queries = a.gradients.q.data != nullptr, sinks = a.sink_gradients != nullptr;
    if (keys || values || queries || sinks)
      launch(queue, statistics_kernel<T, kSize>,
             div_up(int64_t{s.sequences} * padded_length(s.length) * s.heads * (kSize / kWide),
                    kStatisticsThreads),
             kStatisticsThreads, 0, a);
    if (sinks) launch(queue, sinks_kernel<T>, s.heads, kSinkThreads, 0, a);
    if (keys || (values && !kKeysApart<kSize>)) launch_keys_kernel<AttentionPart::keys, kSize>(queue, a);
    if constexpr (kKeysApart<kSize>)
      if (values) launch_keys_kernel<AttentionPart::values, kSize>(queue, a);
    if (queries) {
      const Cut cut = cut_for<AttentionPart::queries, T, kSize>(queue, s.length);
      with_row_tiles<AttentionPart::queries, T, kSize>(cut, [&](auto tiles) {
        launch(queue, queries_kernel<T, kSize, tiles>, s.sequences * s.heads * cut.blocks(s.length),
               cut.threads(), cut.shared_bytes, a);
      });
    }
  });
}

}  // namespace sluice::cuda
