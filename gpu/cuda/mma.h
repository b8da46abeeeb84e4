// The one wrapper for matrix products inside kernels: a warp's rows times a tile in shared memory.
//
// 16-bit operands go through tensor cores (toolkit.h; below compute capability 7.5 through volta.h), fp32
// through fused multiply-adds; both accumulate in fp32. A warp has kRowTiles times 16 rows, so that each load
// of the other operand serves kRowTiles products. The result's layout is that of the tensor cores for all
// types: with lane = 4 g + t, element sums[m][j][i] is in row 16 m + g + 8 * (i / 2), column 8 j + 2 t + i
// % 2. A whole warp calls together.
#pragma once

#include "gpu/cuda/base.h"

namespace sluice::cuda {

// Rows of kSize elements in shared memory, without gaps. The 16-byte words of a row are permuted so that
// words of one column in eight neighbouring rows lie in different banks.
template <typename T, int kSize>
struct Tile {
  static constexpr int kPerWord = 16 / static_cast<int>(sizeof(T)), kWords = kSize / kPerWord;
  static_assert(kWords >= 2, "a row of one word has no words to permute");
  T* data;

  // Where an element is in `data`. The columns up to the next multiple of kPerWord follow it. For a column
  // below 2 kPerWord and a multiple k of 2 kPerWord, offset(row, column) ^ k = offset(row, column + k); and
  // for a multiple r of 8, offset(row, column) + r * kSize = offset(row + r, column).
  __device__ static int offset(int row, int column) {
    const int word = column / kPerWord ^ (kWords >= 8 ? row & 7 : kWords >= 4 ? row >> 1 & 3 : row >> 2 & 1);
    return row * kSize + word * kPerWord + column % kPerWord;
  }
  __device__ T* at(int row, int column) const { return data + offset(row, column); }
};

template <int kRowTiles, int kColumns>
using Sums = float[kRowTiles][kColumns / 8][4];

__device__ inline int lane_of_warp() { return static_cast<int>(threadIdx.x) % kWarp; }

// Row (of the first 16) and column of sums[.][j][i] in the warp's rows.
__device__ inline int sum_row(int i) { return lane_of_warp() / 4 + i / 2 * 8; }
__device__ inline int sum_column(int j, int i) { return 8 * j + 2 * (lane_of_warp() % 4) + i % 2; }

__device__ inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Bf16) {
  mma_bf16(d, a, {b0, b1});
}
__device__ inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, F16) {
  mma_half(d, a, {b0, b1});
}

// A warp's own rows [16 kRowTiles, kDepth] as the left operand of a product with each tile. kHeld: 16-bit
// rows stay in registers from load() on, kRowTiles * kDepth / 4 registers a thread; otherwise rows are read
// from shared memory each time.
template <typename T, int kRowTiles, int kDepth, bool kHeld>
struct OwnRows {
  Tile<T, kDepth> tile;
  uint32_t fragments[kHeld ? kDepth / 16 : 1][kRowTiles][4];

  __device__ explicit OwnRows(const Tile<T, kDepth>& rows) : tile(rows) {}
  __device__ void load() {
    if constexpr (kHeld)
#pragma unroll
      for (int k = 0; k < kDepth; k += 16) read(k, fragments[k / 16]);
  }
  // The fragments of columns [k, k + 16).
  __device__ void get(int k, uint32_t (&out)[kRowTiles][4]) const {
    if constexpr (kHeld) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][i] = fragments[k / 16][m][i];
    } else
      read(k, out);
  }

 private:
  __device__ void read(int k, uint32_t (&out)[kRowTiles][4]) const {
    const int lane = lane_of_warp(), offset = Tile<T, kDepth>::offset(lane % 16, lane / 16 * 8) ^ k;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) load_matrices(out[m], tile.data + offset + 16 * m * kDepth);
  }
};
template <int kRowTiles, int kDepth>
struct OwnRows<float, kRowTiles, kDepth, false> {
  Tile<float, kDepth> tile;
  __device__ explicit OwnRows(const Tile<float, kDepth>& rows) : tile(rows) {}
  __device__ void load() {}
};

// sums [rows, kColumns] += a b^T, with b [kColumns, kDepth].
template <int kRowTiles, int kColumns, int kDepth, bool kHeld, typename T>
requires(sizeof(T) == 2) __device__
    void multiply_rows(Sums<kRowTiles, kColumns>& sums, const OwnRows<T, kRowTiles, kDepth, kHeld>& a,
                       const Tile<T, kDepth>& b) {
  const int lane = lane_of_warp();
  const int first = unhoisted(Tile<T, kDepth>::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8));
  [[maybe_unused]] constexpr int kStepsAtOnce =
      kHeld ? kDepth / 16 : 1;  // fragments that are held need constant indices
#pragma unroll kStepsAtOnce
  for (int k = 0; k < kDepth; k += 16) {
    uint32_t fragments[kRowTiles][4];
    a.get(k, fragments);
    const T* const column = b.data + (first ^ k);
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2) {
      uint32_t other[4];
      load_matrices(other, column + 8 * j * kDepth);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        mma(sums[m][j], fragments[m], other[0], other[1], T{});
        mma(sums[m][j + 1], fragments[m], other[2], other[3], T{});
      }
    }
  }
}

// A result as the left operand of the next product. For tensor cores it is rounded to T.
template <typename T, int kRowTiles, int kDepth>
struct Operand {
  uint32_t fragments[kDepth / 16][kRowTiles][4];  // two tiles of the result are one operand, 16 deep

  __device__ void set(const Sums<kRowTiles, kDepth>& p) {
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k)
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&pair)[4] = p[m][2 * k + i / 2];
          fragments[k][m][i] = pack(pair[i % 2 * 2], pair[i % 2 * 2 + 1], T{});
        }
  }
};
template <int kRowTiles, int kDepth>
struct Operand<float, kRowTiles, kDepth> {
  Sums<kRowTiles, kDepth> sums;
  __device__ void set(const Sums<kRowTiles, kDepth>& p) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int j = 0; j < kDepth / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][j][i] = p[m][j][i];
  }
};

// sums [rows, kColumns] += p b with b [kDepth, kColumns]. `scratch`: 16 rows of this warp's own; tensor cores
// need none.
template <int kRowTiles, int kColumns, int kDepth, typename T>
requires(sizeof(T) == 2) __device__
    void multiply_result(Sums<kRowTiles, kColumns>& sums, const Operand<T, kRowTiles, kDepth>& p,
                         const Tile<T, kColumns>& b, const Tile<T, kDepth>& /*scratch*/) {
  const int lane = lane_of_warp();
  const int first = unhoisted(Tile<T, kColumns>::offset(lane % 16, lane / 16 * 8));
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2) {
      uint32_t other[4];
      load_transposed(other, b.data + (first ^ 8 * j) + k * kColumns);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        mma(sums[m][j], p.fragments[k / 16][m], other[0], other[1], T{});
        mma(sums[m][j + 1], p.fragments[k / 16][m], other[2], other[3], T{});
      }
    }
  }
}

__device__ inline void multiply_add4(float& sum, const Words& a, const Words& b) {
#pragma unroll
  for (int i = 0; i < 4; ++i) sum = __fmaf_rn(__uint_as_float(a.word[i]), __uint_as_float(b.word[i]), sum);
}

template <int kRowTiles, int kColumns, int kDepth>
__device__ void multiply_rows(Sums<kRowTiles, kColumns>& sums,
                              const OwnRows<float, kRowTiles, kDepth, false>& a,
                              const Tile<float, kDepth>& b) {
  static_assert(kRowTiles == 1, "without tensor cores, registers hold no more");
  const int row = unhoisted(sum_row(0)), column = unhoisted(sum_column(0, 0));
#pragma unroll 2
  for (int k = 0; k < kDepth; k += 4) {
    const Words upper = load_words(a.tile.at(row, k)), lower = load_words(a.tile.at(row + 8, k));
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Words other = load_words(b.at(column + 8 * j + i, k));
        multiply_add4(sums[0][j][i], upper, other);
        multiply_add4(sums[0][j][i + 2], lower, other);
      }
  }
}

template <int kRowTiles, int kColumns, int kDepth>
__device__ void multiply_result(Sums<kRowTiles, kColumns>& sums, const Operand<float, kRowTiles, kDepth>& p,
                                const Tile<float, kColumns>& b, const Tile<float, kDepth>& scratch) {
  const int row = unhoisted(sum_row(0)), column = unhoisted(sum_column(0, 0));
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kDepth / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) *scratch.at(row + i / 2 * 8, column + 8 * j + i % 2) = p.sums[0][j][i];
  __syncwarp();
#pragma unroll 1
  for (int k = 0; k < kDepth; ++k) {
    const float upper = *scratch.at(row, k), lower = *scratch.at(row + 8, k);
    const int first = Tile<float, kColumns>::offset(k, column);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float other = b.data[(first ^ 8 * j) + i];
        sums[0][j][i] = __fmaf_rn(upper, other, sums[0][j][i]);
        sums[0][j][i + 2] = __fmaf_rn(lower, other, sums[0][j][i + 2]);
      }
  }
}

// Sum and maximum over the four lanes that share a row of a result.
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}
__device__ inline float row_maximum(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

}  // namespace sluice::cuda
