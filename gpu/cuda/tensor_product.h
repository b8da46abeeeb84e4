// Matrix products of 16-bit operands on tensor cores. The number of rows may be known on the device alone.
// Products are accumulated in fp32 in ascending order of the depth, 16 at a time, so an element depends on
// its row and its column alone, not on the tile's size or the number of rows. Problems are those of
// plain_product.h, with A and B of one type. Included by .cu files only.
#pragma once

#include "gpu/cuda/mma.h"
#include "gpu/cuda/plain_product.h"

namespace sluice::cuda {

// A block computes kRows x kColumns elements of the product, a warp kWarpRows x kWarpColumns. Tiles of the
// operands are kDepth deep. Shared memory has kStages tiles of each operand: one is multiplied while the
// others are loaded.
template <int kBlockRows, int kBlockColumns, int kRowsOfWarp, int kDepthOfTile>
struct ProductTiles {
  static constexpr int kRows = kBlockRows, kColumns = kBlockColumns, kDepth = kDepthOfTile, kStages = 3;
  static constexpr int kWarpRows = kRowsOfWarp, kWarpColumns = 32;
  static constexpr int kWarpsAcross = kColumns / kWarpColumns, kWarps = kRows / kWarpRows * kWarpsAcross;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr uint64_t kSharedBytes = 2ull * kStages * kDepth * (kRows + kColumns);

  static int64_t blocks(int64_t rows, int64_t columns) {
    return div_up(rows, kRows) * div_up(columns, kColumns);
  }
};
// Tiles of either size take 48 KiB, so two blocks fit into the 100 KiB of the smallest GPU since compute
// capability 8.0. A thread of the large size has 64 sums, and 128 registers.
using LargeTiles = ProductTiles<128, 128, 64, 32>;
using SmallTiles = ProductTiles<64, 64, 32, 64>;
constexpr int kProductBlocks = 2;  // on a multiprocessor; before compute capability 8.0, 64 KiB hold one

// Tiles of one operand: kOuter rows (or columns) of the product, kDepth deep.
template <typename T, bool kAcross, int kOuter, typename Tiles>
class ProductOperand {
 public:
  static constexpr int kDepth = Tiles::kDepth, kElements = kOuter * kDepth;  // of a stage

  // `first`: the first of the block's rows (or columns); the product has `limit` of them.
  __device__ ProductOperand(T* shared, const T* data, int64_t stride, int first, int limit, int depth)
      : shared_(shared), stride_(stride) {
    const int thread = static_cast<int>(threadIdx.x), row = thread / kWords,
              column = thread % kWords * kPerWord;
    copied_to_ = Tile<T, kSize>::offset(row, column);
    from_ = data + (kAcross ? row * stride + first + column : (first + row) * stride + column);
    outer_left_ = limit - first - (kAcross ? column : row);
    depth_left_ = depth - (kAcross ? row : column);
    const int lane = lane_of_warp();
    left_ = kAcross ? Tile<T, kSize>::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8)
                    : Tile<T, kSize>::offset(lane % 16, lane / 16 * 8);
    right_ = kAcross ? Tile<T, kSize>::offset(lane % 16, lane / 16 * 8)
                     : Tile<T, kSize>::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
  }

  // Begins to copy the next tile, with zeros beyond the operand. `wide`: stored rows begin at multiples of 16
  // bytes.
  __device__ void copy(int stage, bool wide) {
    T* const to = shared_ + stage * kElements + copied_to_;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const T* const from = from_ + i * kRowStep * stride_;
      const bool there = kAcross ? outer_left_ > 0 && depth_left_ > i * kRowStep
                                 : depth_left_ > 0 && outer_left_ > i * kRowStep;
      if (wide)
        copy_async(to + i * kRowStep * kSize, from, there);
      else
        copy_elements(to + i * kRowStep * kSize, from, there ? (kAcross ? outer_left_ : depth_left_) : 0);
    }
    from_ += kAcross ? kDepth * stride_ : kDepth;
    depth_left_ -= kDepth;
  }

  // The fragments of A's rows [row, row + 16) at depth [k, k + 16); both are multiples of 16.
  __device__ void left(int stage, int row, int k, uint32_t (&out)[4]) const {
    read(stage, left_, row, k, out);
  }
  // The fragments of B's columns [column, column + 8), then of the next 8, at depth [k, k + 16).
  __device__ void right(int stage, int column, int k, uint32_t (&out)[4]) const {
    read(stage, right_, column, k, out);
  }

 private:
  static constexpr int kSize = kAcross ? kOuter : kDepth, kRows = kElements / kSize;  // of the stored tile
  static constexpr int kPerWord = Tile<T, kSize>::kPerWord, kWords = Tile<T, kSize>::kWords;
  static constexpr int kRowStep =
      Tiles::kThreads / kWords;  // rows from one word that a thread copies to the next
  static constexpr int kCopies = kRows / kRowStep;
  static_assert(kRowStep % 8 == 0 && kRows % kRowStep == 0);

  __device__ static void copy_elements(T* to, const T* from, int count) {
#pragma unroll 1
    for (int e = 0; e < kPerWord; ++e) to[e] = e < count ? from[e] : narrow<T>(0.0f);
  }
  __device__ void read(int stage, int first, int outer, int k, uint32_t (&out)[4]) const {
    const T* const tile = shared_ + stage * kElements;
    if constexpr (kAcross)
      load_transposed(out, tile + (first ^ outer) + k * kSize);
    else
      load_matrices(out, tile + (first ^ k) + outer * kSize);
  }

  T* shared_;
  int64_t stride_;
  const T* from_;                // the thread's first word of the next tile
  int outer_left_, depth_left_;  // elements of the operand from there on
  int copied_to_, left_, right_;
};

// Each of four lanes 4 g + t (t: 0 to 3) has two columns of each of four tiles. Gives lane t all eight
// columns of tile t.
__device__ inline void transpose_pairs(float (&pairs)[4][2]) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = (lane_of_warp() & bit) != 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if ((j & bit) != 0) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float given = upper ? pairs[j][i] : pairs[j + bit][i];
        const float taken = __shfl_xor_sync(kAllLanes, given, bit);
        (upper ? pairs[j] : pairs[j + bit])[i] = taken;
      }
    }
  }
}

// There is one block for each tile of the product. Tiles of the first rows come first.
template <typename P, typename Tiles>
__global__ void __launch_bounds__(Tiles::kThreads, kBackgroundCopies ? kProductBlocks : 1)
    tensor_kernel(P p) {
  using T = typename P::A;
  constexpr int kDepth = Tiles::kDepth, kStages = Tiles::kStages, kRowTiles = Tiles::kWarpRows / 16;
  const Extent extent = p.extent();
  const int tiles = (p.columns + Tiles::kColumns - 1) / Tiles::kColumns;
  const int row = static_cast<int>(blockIdx.x) / tiles * Tiles::kRows;
  const int column = static_cast<int>(blockIdx.x) % tiles * Tiles::kColumns;
  if (row >= extent.rows) return;
  auto* const shared = reinterpret_cast<T*>(shared_memory());
  using OperandA = ProductOperand<T, P::kAcrossA, Tiles::kRows, Tiles>;
  OperandA a(shared, p.a, p.stride_a, row, extent.rows, extent.depth);
  ProductOperand<T, P::kAcrossB, Tiles::kColumns, Tiles> b(shared + kStages * OperandA::kElements, p.b,
                                                           p.stride_b, column, p.columns, extent.depth);
  const bool wide_a = p.stride_a % kWide == 0, wide_b = p.stride_b % kWide == 0;
  const auto copy = [&](int stage) {
    a.copy(stage, wide_a);
    b.copy(stage, wide_b);
    commit_copies();
  };
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warp_row = warp / Tiles::kWarpsAcross * Tiles::kWarpRows;
  const int warp_column = warp % Tiles::kWarpsAcross * Tiles::kWarpColumns;
  Sums<kRowTiles, Tiles::kWarpColumns> sums = {};
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) copy(stage);
  int stage = 0, next = kStages - 1;
#pragma unroll 1
  for (int k = 0; k < extent.depth; k += kDepth) {
    wait_groups<kStages - 2>();
    __syncthreads();  // this tile is there, and all have finished with the one before
    copy(next);
#pragma unroll
    for (int d = 0; d < kDepth; d += 16) {
      uint32_t left[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) a.left(stage, warp_row + 16 * m, d, left[m]);
#pragma unroll
      for (int j = 0; j < Tiles::kWarpColumns / 8; j += 2) {
        uint32_t right[4];
        b.right(stage, warp_column + 8 * j, d, right);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          mma(sums[m][j], left[m], right[0], right[1], T{});
          mma(sums[m][j + 1], left[m], right[2], right[3], T{});
        }
      }
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
    next = next + 1 == kStages ? 0 : next + 1;
  }
  wait_copies();
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float pairs[4][2], mine[kWide];
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) pairs[j][i] = sums[m][j][2 * half + i];
      transpose_pairs(pairs);
#pragma unroll
      for (int e = 0; e < kWide; ++e) mine[e] = pairs[e / 2][e % 2];
      const int r = row + warp_row + 16 * m + sum_row(2 * half);
      const int c = column + warp_column + lane_of_warp() % 4 * kWide;
      if (r < extent.rows && c < p.columns) p.put(r, c, mine);
    }
}

template <typename P>
void load_tensor_kernels() {
  load(tensor_kernel<P, LargeTiles>, LargeTiles::kSharedBytes);
  load(tensor_kernel<P, SmallTiles>, SmallTiles::kSharedBytes);
}

// `rows_most`: the most rows that the product may have; `rows`: the number that is expected. Small tiles are
// used where large tiles would leave multiprocessors idle.
template <typename P>
void tensor_product(const Queue& queue, const P& p, int64_t rows_most, int64_t rows) {
  const auto run = [&]<typename Tiles>(Tiles) {
    launch(queue, tensor_kernel<P, Tiles>, Tiles::blocks(rows_most, p.columns), Tiles::kThreads,
           Tiles::kSharedBytes, p);
  };
  if (LargeTiles::blocks(rows, p.columns) >= queue.multiprocessors)
    run(LargeTiles());
  else
    run(SmallTiles());
}

}  // namespace sluice::cuda
