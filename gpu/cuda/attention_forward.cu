// attention, forward: causal, grouped-query, never T x T (Dao 2023, arXiv:2307.08691).
//
// 1. A block owns some queries of one (sequence, head), each warp its share of them.
// 2. It passes over tiles of keys, from the first that its queries see to the diagonal: scores = q k^T; a
//    running maximum and sum for each query; o = o * correction + probabilities * v, with probabilities
//    rounded to the working precision. The tile of values is loaded while scores are computed, the next tile
//    of keys while values are added.
// 3. The sink of a head joins its sums. The block writes o / sum and the log-sum-exp.
#include <climits>

#include "engine/base/error.h"
#include "gpu/cuda/attention.h"

namespace sluice::cuda {
namespace {

template <typename T>
struct ForwardArguments {
  AttentionShape shape;
  AttentionTensors<T> in;
  const T* sinks;  // [heads]; nullptr: none
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
      const float maximum = running.maximum[m][half];
      const float shift = maximum == -FLT_MAX ? 0 : maximum * log2_scale;  // 0 if the row has seen no key yet
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

template <typename T, int kSize, int kRowTiles>
__global__ void __launch_bounds__(warps_max(kRowTiles) * kWarp, blocks_at_once(kRowTiles))
    forward_kernel(ForwardArguments<T> a) {
  using Tiles = Tiling<AttentionPart::forward, T, kSize, kRowTiles>;
  constexpr int kKeys = Tiles::kOthers;
  const BlockMemory<T, kSize, Tiles> memory;
  const Tile<T, kSize> k = memory.other_tile(0), v = memory.other_tile(1);
  OwnRows<T, kRowTiles, kSize, Tiles::kHeld> q(memory.warp_tile(0));
  const AttentionShape& s = a.shape;
  const QueryBlock block(s, memory.own);
  const KeyRange<kKeys> seen_keys(s, block, memory.own);
  const int query = block.first + memory.own_row;
  load_tile(memory.own_tile(0), memory.own, a.in.q.of(s, block.sequence, block.head), block.first, s);
  Sums<kRowTiles, kSize> o = {};
  Running<kRowTiles> running = {};
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) running.maximum[m][0] = running.maximum[m][1] = -FLT_MAX;
  const auto load = [&](const Tile<T, kSize>& tile, const HeadColumns<T>& from, int key) {
    load_tile(tile, kKeys, from.of(s, unhoisted(block.sequence), unhoisted(block.kv_head)), key, s);
  };
  load(k, a.in.k, seen_keys.begin);
  await_copies();
  q.load();
  const auto keys_end = [&] {  // computed anew, so that it holds no register
    const int end = unhoisted(query) - memory.own_row + memory.own;
    return end < s.length ? end : s.length;
  };
#pragma unroll 1
  for (int key = seen_keys.begin; key < keys_end(); key += kKeys) {
    const bool seen = sees<kKeys>(s, block.sequence, query, Tiles::kRows, key);
    load(v, a.in.v, key);
    Operand<T, kRowTiles, kKeys> probabilities;
    if (seen) {
      Sums<kRowTiles, kKeys> scores = {};
      multiply_rows<kRowTiles, kKeys, kSize>(scores, q, k);
      cap_products<kRowTiles, kKeys>(scores, s);
      mask_keys<kRowTiles, kKeys>(scores, s, block.sequence, query, key, -INFINITY);
      move_maxima<kRowTiles, kKeys, kSize>(scores, o, running, s.log2_scale);
      exponentiate<kRowTiles, kKeys>(scores, running, s.log2_scale);
      probabilities.set(scores);
    }
    await_copies();
    if (key + kKeys < keys_end()) load(k, a.in.k, key + kKeys);
    if (seen) multiply_result<kRowTiles, kSize, kKeys>(o, probabilities, v, memory.scratch());
    await_copies();
  }
  const int first_row = BlockMemory<T, kSize, Tiles>().own_row;
  const QueryBlock at_end(s, unhoisted(memory.own));
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = row_sum(running.sum[m][half]), largest = running.maximum[m][half] * s.scale;
      float correction = 1;
      if (a.sinks != nullptr) {
        const float sink = widen(a.sinks[at_end.head]), seen = largest;
        largest = fmaxf(seen, sink);
        correction = expf(seen - largest);
        total = total * correction + expf(sink - largest);
      }
      scale_row<kRowTiles, kSize>(o, m, half, correction / total);
      const int position = at_end.first + first_row + 16 * m + sum_row(2 * half);
      if (threadIdx.x % 4 == 0 && position < s.length)
        a.lse[static_cast<int64_t>(at_end.pair) * s.length + position] = largest + logf(total);
    }
  store_result<kRowTiles, kSize>(o, a.o.of(s, at_end.sequence, at_end.head), at_end.first + first_row, s);
}

}  // namespace

AttentionShape attention_shape(const OpCall& call) {
  const OpShapes& shapes = *call.shapes;
  const OpAttributes& a = shapes.attributes;
  const double scale = attention_scale(a);
  const std::optional<size_t> documents = attention_documents(shapes);
  const auto number = [](int64_t x) {
    CHECK(x <= INT_MAX / 2, "attention counts in 32 bits");
    return static_cast<int>(x);
  };
  return {number(shapes.inputs[0][0] / a.sequence),
          number(a.sequence),
          number(a.heads),
          number(a.kv_heads),
          number(a.head_size),
          static_cast<float>(scale),
          static_cast<float>(scale * kLog2E),
          static_cast<float>(a.soft_cap / scale),
          static_cast<float>(a.soft_cap == 0 ? 0 : scale / a.soft_cap),
          number(a.window == 0 ? a.sequence : std::min(a.window, a.sequence)),
          documents ? data_of<const int32_t>(call.inputs, *documents) : nullptr};
}

void load_attention_forward_kernels(const Queue& queue) {
  for_each_head_size([&]<typename T, int kSize>(T, HeadSize<kSize>) {
    const Cut cut = cut_for<AttentionPart::forward, T, kSize>(queue);
    with_row_tiles<AttentionPart::forward, T, kSize>(
        cut, [&](auto tiles) { load_cut(queue, forward_kernel<T, kSize, tiles>, cut); });
  });
}

void attention_forward(const Queue& queue, const OpCall& call) {
  const AttentionShape s = attention_shape(call);
  for_head_size(call.shapes->precision, s.size, [&]<typename T, int kSize>(T, HeadSize<kSize>) {
    const ForwardArguments<T> arguments{s,
                                        attention_tensors<T>(s, *call.shapes, call.inputs),
                                        data_of<const T>(call.parameters, 0),
                                        {data_of<T>(call.outputs, 0), s.heads * s.size, false},
                                        data_of<float>(call.outputs, 1)};
    const Cut cut = cut_for<AttentionPart::forward, T, kSize>(queue, s.length);
    with_row_tiles<AttentionPart::forward, T, kSize>(cut, [&](auto tiles) {
      launch(queue, forward_kernel<T, kSize, tiles>, cut.blocks(s.length) * s.sequences * s.heads,
             cut.threads(), cut.shared_bytes, arguments);
    });
  });
}

}  // namespace sluice::cuda
