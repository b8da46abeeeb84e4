// Matrix products of 16-bit operands on tensor cores, whose numbers of rows are known on the device alone.
// They are accumulated in fp32 in ascending order of the depth, 16 at a time, so an element depends on its
// row and its column alone, and neither on the tile's size nor on how many rows there are. Problems are those
// of plain_product.h, with A and B of one type. Included by .cu files only.
#pragma once

#include "gpu/cuda/mma.h"
#include "gpu/cuda/plain_product.h"

namespace sluice::cuda {

// A block has kRows x kColumns of the product, kWarpRows x kWarpColumns a warp. Its tiles of the operands are
// kDepth deep, and kStages of them are under way.
template <int kBlockRows, int kBlockColumns, int kRowsOfWarp, int kColumnsOfWarp>
struct ProductTiles {
  static constexpr int kRows = kBlockRows, kColumns = kBlockColumns;
  static constexpr int kWarpRows = kRowsOfWarp, kWarpColumns = kColumnsOfWarp;
  static constexpr int kDepth = 32, kStages = 2;
  static constexpr int kWarpsAcross = kColumns / kWarpColumns, kWarps = kRows / kWarpRows * kWarpsAcross;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr uint64_t kSharedBytes = 2ull * kStages * kDepth * (kRows + kColumns);

  static int64_t blocks(int64_t rows, int64_t columns) {
    return div_up(rows, kRows) * div_up(columns, kColumns);
  }
};
using LargeTiles = ProductTiles<128, 128, 64, 32>;
using SmallTiles = ProductTiles<64, 64, 32, 32>;

// Begins to copy kRows x kColumns of a stored matrix into a tile, with zeros beyond its `rows` and `columns`.
template <int kRows, int kColumns, int kThreads, typename T>
__device__ void copy_tile(const Tile<T, kColumns>& tile, const T* from, int64_t stride, int row, int rows,
                          int column, int columns) {
  constexpr int kPerWord = Tile<T, kColumns>::kPerWord, kWords = Tile<T, kColumns>::kWords;
  const int thread = unhoisted(static_cast<int>(threadIdx.x));
  if (stride % kPerWord == 0) {  // then every stored row begins at a multiple of 16 bytes
#pragma unroll
    for (int i = 0; i < kRows * kWords / kThreads; ++i) {
      const int item = i * kThreads + thread, r = item / kWords, c = item % kWords * kPerWord;
      const bool there = row + r < rows && column + c < columns;
      copy_async(tile.at(r, c), from + (there ? (row + r) * stride + column + c : 0), there);
    }
    return;
  }
#pragma unroll 1
  for (int i = thread; i < kRows * kColumns; i += kThreads) {
    const int r = i / kColumns, c = i % kColumns;
    const bool there = row + r < rows && column + c < columns;
    *tile.at(r, c) = there ? from[(row + r) * stride + column + c] : narrow<T>(0.0f);
  }
}

// Tiles of one operand: kOuter rows (or columns) of the product, kDepth deep.
template <typename T, bool kAcross, int kOuter, int kDepth>
struct ProductOperand {
  static constexpr int kSize = kAcross ? kOuter : kDepth, kElements = kOuter * kDepth;
  T* data;

  __device__ Tile<T, kSize> tile(int stage) const { return {data + stage * kElements}; }
  template <int kThreads>
  __device__ void copy(int stage, const T* from, int64_t stride, int first, int limit, int k,
                       int depth) const {
    if constexpr (kAcross)
      copy_tile<kDepth, kOuter, kThreads>(tile(stage), from, stride, k, depth, first, limit);
    else
      copy_tile<kOuter, kDepth, kThreads>(tile(stage), from, stride, first, limit, k, depth);
  }
  // The fragments of A's rows [row, row + 16) at depth [k, k + 16).
  __device__ void left(int stage, int row, int k, uint32_t (&out)[4]) const {
    const int lane = lane_of_warp();
    if constexpr (kAcross)
      load_transposed(out, tile(stage).at(k + lane / 16 * 8 + lane % 8, row + lane / 8 % 2 * 8));
    else
      load_matrices(out, tile(stage).at(row + lane % 16, k + lane / 16 * 8));
  }
  // The fragments of B's columns [column, column + 8), then of the next 8, at depth [k, k + 16).
  __device__ void right(int stage, int column, int k, uint32_t (&out)[4]) const {
    const int lane = lane_of_warp();
    if constexpr (kAcross)
      load_transposed(out, tile(stage).at(k + lane % 16, column + lane / 16 * 8));
    else
      load_matrices(out, tile(stage).at(column + lane / 16 * 8 + lane % 8, k + lane / 8 % 2 * 8));
  }
};

// A block for each tile of the product, those of the first rows first.
template <typename P, typename Tiles>
__global__ void __launch_bounds__(Tiles::kThreads) tensor_kernel(P p) {
  using T = typename P::A;
  constexpr int kDepth = Tiles::kDepth, kRowTiles = Tiles::kWarpRows / 16;
  const Extent extent = p.extent();
  const int tiles = (p.columns + Tiles::kColumns - 1) / Tiles::kColumns;
  const int row = static_cast<int>(blockIdx.x) / tiles * Tiles::kRows;
  const int column = static_cast<int>(blockIdx.x) % tiles * Tiles::kColumns;
  if (row >= extent.rows) return;
  auto* const shared = reinterpret_cast<T*>(shared_memory());
  const ProductOperand<T, P::kAcrossA, Tiles::kRows, kDepth> a{shared};
  const ProductOperand<T, P::kAcrossB, Tiles::kColumns, kDepth> b{shared + Tiles::kStages * a.kElements};
  const auto copy = [&](int stage, int k) {
    a.template copy<Tiles::kThreads>(stage, p.a, p.stride_a, row, extent.rows, k, extent.depth);
    b.template copy<Tiles::kThreads>(stage, p.b, p.stride_b, column, p.columns, k, extent.depth);
  };
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warp_row = warp / Tiles::kWarpsAcross * Tiles::kWarpRows;
  const int warp_column = warp % Tiles::kWarpsAcross * Tiles::kWarpColumns;
  Sums<kRowTiles, Tiles::kWarpColumns> sums = {};
  copy(0, 0);
  wait_copies();
  __syncthreads();
#pragma unroll 1
  for (int k = 0, stage = 0; k < extent.depth; k += kDepth, stage ^= 1) {
    if (k + kDepth < extent.depth) copy(stage ^ 1, k + kDepth);
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
    wait_copies();
    __syncthreads();
  }
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int j = 0; j < Tiles::kWarpColumns / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = row + warp_row + 16 * m + sum_row(i), c = column + warp_column + sum_column(j, i);
        if (r < extent.rows && c < p.columns) p.put(r, c, sums[m][j][i]);
      }
}

template <typename P>
void load_tensor_kernels() {
  load(tensor_kernel<P, LargeTiles>, LargeTiles::kSharedBytes);
  load(tensor_kernel<P, SmallTiles>, SmallTiles::kSharedBytes);
}

// `rows_most`: rows that there may be; `rows`: that are expected.
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
