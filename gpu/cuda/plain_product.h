// Matrix products by fused multiply-adds, without tensor cores: of fp32, and of operands of two types. They
// are accumulated in fp32 in ascending order of the depth, so an element depends on its row and its column
// alone. Included by .cu files only.
//
// C [rows, columns] = A [rows, depth] B [depth, columns]. A problem P has
//   A, B                       types of elements
//   kAcrossA, kAcrossB         whether A is stored [depth, rows], and B [depth, columns]; else [rows, depth]
//                              and [columns, depth]
//   a, b, stride_a, stride_b   where A and B are, and the elements between their stored rows
//   columns
//   extent()                   rows and depth, which the device may have to look up
//   put(row, column, sums)     takes kWide elements of a row of the product, of which those beyond `columns`
//                              do not exist
#pragma once

#include "gpu/cuda/base.h"

namespace sluice::cuda {

struct Extent {
  int rows, depth;
};

// A block computes kPlainRows x kPlainColumns elements of the product, a thread 4 x kWide.
constexpr int kPlainThreads = 256, kPlainRows = 64, kPlainColumns = 128, kPlainDepth = 16;
constexpr int kAcrossThreads = kPlainColumns / kWide;
static_assert(kPlainThreads == kPlainRows / 4 * kAcrossThreads);

// The four elements of a stored row from `column` on, with zeros beyond the rows and the columns.
template <typename T>
__device__ void load_four(const T* data, int64_t stride, int row, int rows, int column, int columns,
                          float (&out)[4]) {
  const T* const from = data + row * stride + column;
  if (sizeof(T) == 4 && stride % 4 == 0 && row < rows && column + 4 <= columns) {
    const Words words = load_words(reinterpret_cast<const float*>(from));
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = __uint_as_float(words.word[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = row < rows && column + i < columns ? widen(from[i]) : 0.0f;
}

// A tile of an operand in shared memory: for each depth the rows (or columns) of the product. Threads read
// kWide columns each, as two fours. Fours of columns are permuted so that the first fours of all threads lie
// in different banks, and so do all second fours.
template <int kOuter>
struct PlainTile {
  float value[kPlainDepth][kOuter + 4];

  __device__ static int place(int outer) {
    const int four = outer / 4;
    return kOuter == kPlainRows ? outer : (four / 2 + four % 2 * (kOuter / 8)) * 4 + outer % 4;
  }
  __device__ Words four(int depth, int outer) const { return load_words(value[depth] + place(outer)); }
};

// The fours of stored rows that one thread copies to a tile.
template <typename T, bool kAcross, int kOuter>
struct PlainPart {
  static constexpr int kParts = kOuter * kPlainDepth / kPlainThreads / 4;
  float value[kParts][4];

  // `limit`: the number of rows (or columns) of the product.
  __device__ void load(const T* data, int64_t stride, int first, int limit, int k, int depth) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      if (kAcross)
        load_four(data, stride, k + depth_of(), depth, first + outer_of(i), limit, value[i]);
      else
        load_four(data, stride, first + outer_of(i), limit, k + depth_of(), depth, value[i]);
    }
  }
  __device__ void store(PlainTile<kOuter>& tile) const {
#pragma unroll
    for (int i = 0; i < kParts; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (kAcross)
          tile.value[depth_of()][tile.place(outer_of(i)) + e] = value[i][e];
        else
          tile.value[depth_of() + e][tile.place(outer_of(i))] = value[i][e];
      }
  }

 private:
  __device__ static int depth_of() {
    const int thread = static_cast<int>(threadIdx.x);
    return kAcross ? thread / 16 : thread % 4 * 4;
  }
  __device__ static int outer_of(int i) {
    const int thread = static_cast<int>(threadIdx.x);
    return 64 * i + (kAcross ? thread % 16 * 4 : thread / 4);
  }
};

// There is one block for each tile. Tiles of the first rows come first.
template <typename P>
__global__ void __launch_bounds__(kPlainThreads) plain_kernel(P p) {
  alignas(16) __shared__ PlainTile<kPlainRows> a;
  alignas(16) __shared__ PlainTile<kPlainColumns> b;
  const Extent extent = p.extent();
  const int tiles = (p.columns + kPlainColumns - 1) / kPlainColumns;
  const int row = static_cast<int>(blockIdx.x) / tiles * kPlainRows;
  const int column = static_cast<int>(blockIdx.x) % tiles * kPlainColumns;
  if (row >= extent.rows) return;
  PlainPart<typename P::A, P::kAcrossA, kPlainRows> part_a;
  PlainPart<typename P::B, P::kAcrossB, kPlainColumns> part_b;
  const auto load = [&](int k) {
    part_a.load(p.a, p.stride_a, row, extent.rows, k, extent.depth);
    part_b.load(p.b, p.stride_b, column, p.columns, k, extent.depth);
  };
  const int thread = static_cast<int>(threadIdx.x);
  const int my_row = thread / kAcrossThreads * 4, my_column = thread % kAcrossThreads * kWide;
  float sums[4][kWide] = {};
  load(0);
#pragma unroll 1
  for (int k = 0; k < extent.depth; k += kPlainDepth) {
    part_a.store(a);
    part_b.store(b);
    __syncthreads();
    if (k + kPlainDepth < extent.depth) load(k + kPlainDepth);  // under way while this step is added
#pragma unroll 4
    for (int d = 0; d < kPlainDepth; ++d) {
      const Words left = a.four(d, my_row), right[2] = {b.four(d, my_column), b.four(d, my_column + 4)};
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < kWide; ++j)
          sums[i][j] =
              __fmaf_rn(__uint_as_float(left.word[i]), __uint_as_float(right[j / 4].word[j % 4]), sums[i][j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (row + my_row + i < extent.rows && column + my_column < p.columns)
      p.put(row + my_row + i, column + my_column, sums[i]);
}

// `rows_most`: the most rows that the product may have.
template <typename P>
void plain_product(const Queue& queue, const P& p, int64_t rows_most) {
  launch(queue, plain_kernel<P>, div_up(rows_most, kPlainRows) * div_up(p.columns, kPlainColumns),
         kPlainThreads, 0, p);
}

}  // namespace sluice::cuda
