// attention, forward: causal, grouped-query, never T x T (Dao 2023, arXiv:2307.08691).
//
// 1. A block owns some queries of one (sequence, head), each warp its share of them.
// 2. It passes over tiles of keys from the first to the diagonal: scores = q k^T; a running maximum and sum
//    for each query; o = o * correction + probabilities * v, with probabilities rounded to the working
//    precision.
// 3. It writes o / sum and the log-sum-exp.
#include <climits>

#include "engine/base/error.h"
#include "gpu/cuda/attention.h"

namespace sluice::cuda {
namespace {

template <typename T, int kSize>
using ForwardTiling = Tiling<AttentionPart::forward, T, kSize>;

// Blocks that share a multiprocessor's registers.
template <int kSize>
constexpr int kBlocksAtOnce = kBackgroundCopies&& kSize <= 64 ? 3 : 1;

template <typename T>
struct ForwardArguments {
  AttentionShape shape;
  AttentionTensors<T> in;
  HeadColumns<T> o;
  float* lse;
};

// For each row that a lane has a part of: the largest score, and the sum over the lane's own columns.
template <int kRowTiles>
struct Running {
  float maximum[kRowTiles][2], sum[kRowTiles][2];
};

// Takes the scores of a tile into the maxima, and scales o and the sums to the new maxima.
template <int kRowTiles, int kKeys, int kSize>
__device__ void move_maxima(const Sums<kRowTiles, kKeys>& scores, Sums<kRowTiles, kSize>& o,
                            Running<kRowTiles>& running, float log2_scale) {
  float largest[kRowTiles][2];
  bool moved = false;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float here = running.maximum[m][half];
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) here = fmaxf(here, scores[m][j][i]);
      largest[m][half] = row_maximum(here);
      moved = moved || largest[m][half] != running.maximum[m][half];
    }
  if (__ballot_sync(kAllLanes, moved ? 1 : 0) == 0) return;  // mostly so after the first tiles
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float correction = fast_exp2((running.maximum[m][half] - largest[m][half]) * log2_scale);
      running.maximum[m][half] = largest[m][half];
      running.sum[m][half] *= correction;
      scale_row<kRowTiles, kSize>(o, m, half, correction);
    }
}

// Turns scores into probabilities in place, and adds these to the sums.
template <int kRowTiles, int kKeys>
__device__ void exponentiate(Sums<kRowTiles, kKeys>& scores, Running<kRowTiles>& running, float log2_scale) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float shift = running.maximum[m][half] * log2_scale;
      float added = 0;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[m][j][i] = fast_exp2(__fmaf_rn(scores[m][j][i], log2_scale, -shift));
          added += scores[m][j][i];
        }
      running.sum[m][half] += added;
    }
}

template <typename T, int kSize>
__global__ void __launch_bounds__(kWarpsMax* kWarp, kBlocksAtOnce<kSize>)
    forward_kernel(ForwardArguments<T> a) {
  using Tiles = ForwardTiling<T, kSize>;
  constexpr int kKeys = Tiles::kOthers, kRowTiles = Tiles::kRowTiles;
  const BlockMemory<AttentionPart::forward, T, kSize> memory;
  const Tile<T, kSize> q = memory.warp_tile(0);
  const AttentionShape& s = a.shape;
  const QueryBlock block(s, memory.own);
  const int query = block.first + memory.own_row;
  load_tile(memory.own_tile(0), memory.own, a.in.q.of(s, block.sequence, block.head), block.first, s);
  Sums<kRowTiles, kSize> o = {};
  Running<kRowTiles> running = {};
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) running.maximum[m][0] = running.maximum[m][1] = -FLT_MAX;
  const auto work = [&](int first_key, const Tile<T, kSize>& k, const Tile<T, kSize>& v) {
    const int ahead = query - first_key;
    if (ahead + Tiles::kRows <= 0) return;  // beyond the diagonal for all of this warp
    Sums<kRowTiles, kKeys> scores = {};
    multiply_rows<kRowTiles, kKeys, kSize>(scores, q, k);
    if (ahead < kKeys - 1) mask_keys<kRowTiles, kKeys>(scores, ahead, -INFINITY);
    move_maxima<kRowTiles, kKeys, kSize>(scores, o, running, s.log2_scale);
    exponentiate<kRowTiles, kKeys>(scores, running, s.log2_scale);
    const Operand<T, kRowTiles, kKeys> probabilities(scores);
    multiply_result<kRowTiles, kSize, kKeys>(o, probabilities, v, memory.scratch());
  };
  for_key_tiles(memory, block.keys_end, a.in.k.of(s, block.sequence, block.kv_head),
                a.in.v.of(s, block.sequence, block.kv_head), s, work);
  const QueryBlock at_end(s, memory.own);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = row_sum(running.sum[m][half]);
      scale_row<kRowTiles, kSize>(o, m, half, 1.0f / total);
      const int position = at_end.first + memory.own_row + 16 * m + sum_row(2 * half);
      if (threadIdx.x % 4 == 0 && position < s.length)
        a.lse[static_cast<int64_t>(at_end.pair) * s.length + position] =
            running.maximum[m][half] * s.scale + logf(total);
    }
  store_result<kRowTiles, kSize>(o, a.o.of(s, at_end.sequence, at_end.head), at_end.first + memory.own_row,
                                 s);
}

}  // namespace

AttentionShape attention_shape(const OpShapes& shapes) {
  const OpAttributes& a = shapes.attributes;
  const double scale = 1 / std::sqrt(static_cast<double>(a.head_size));
  const auto number = [](int64_t x) {
    CHECK(x <= INT_MAX, "attention counts in 32 bits");
    return static_cast<int>(x);
  };
  return {number(shapes.inputs[0][0] / a.sequence),
          number(a.sequence),
          number(a.heads),
          number(a.kv_heads),
          number(a.head_size),
          static_cast<float>(scale),
          static_cast<float>(scale * kLog2E)};
}

void load_attention_forward_kernels(const Queue& queue) {
  for_each_head_size([&]<typename T, int kSize>(T, HeadSize<kSize>) {
    load(forward_kernel<T, kSize>, cut_for<AttentionPart::forward, T, kSize>(queue).shared_bytes);
  });
}

void attention_forward(const Queue& queue, const OpCall& call) {
  const AttentionShape s = attention_shape(*call.shapes);
  for_head_size(call.shapes->precision, s.size, [&]<typename T, int kSize>(T, HeadSize<kSize>) {
    const Cut cut = cut_for<AttentionPart::forward, T, kSize>(queue);
    const ForwardArguments<T> arguments{s,
                                        attention_tensors<T>(s, call.inputs),
                                        {data_of<T>(call.outputs, 0), s.heads * s.size, false},
                                        data_of<float>(call.outputs, 1)};
    const int64_t own = cut.warps * ForwardTiling<T, kSize>::kRows;
    launch(queue, forward_kernel<T, kSize>, div_up(s.length, own) * s.sequences * s.heads, cut.threads(),
           cut.shared_bytes, arguments);
  });
}

}  // namespace sluice::cuda
