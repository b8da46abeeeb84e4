// Matrix products by fused multiply-adds, without tensor cores: of fp32, and of operands of two types. They
// are accumulated in fp32 in ascending order of the depth, so an element depends on its row and its column
// alone. Included by .cu files only.
//
// C [rows, columns] = A [rows, depth] B [depth, columns]. A problem P has
//   A, B                  types of elements
//   kAcrossA, kAcrossB    whether A is stored [depth, rows], and B [depth, columns]; else [rows, depth] and
//                         [columns, depth]
//   a, b, stride_a, stride_b   where they are, and the elements between their stored rows
//   columns
//   extent()              rows and depth, which the device may have to look up
//   put(row, column, sum) takes an element of the product
#pragma once

#include "gpu/cuda/base.h"

namespace sluice::cuda {

struct Extent {
  int rows, depth;
};

constexpr int kPlainThreads = 256, kPlainTile = 64, kPlainDepth = 16;

// The four elements of a stored row from `column` on, with zeros beyond the row and the columns.
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

// A thread's part of a tile of one operand: four elements of a stored row.
template <typename T, bool kAcross>
struct PlainPart {
  float value[4];

  // `limit`: of rows (or columns) of the product.
  __device__ void load(const T* data, int64_t stride, int first, int limit, int k, int depth) {
    const int thread = static_cast<int>(threadIdx.x);
    if (kAcross)
      load_four(data, stride, k + thread / 16, depth, first + thread % 16 * 4, limit, value);
    else
      load_four(data, stride, first + thread / 4, limit, k + thread % 4 * 4, depth, value);
  }
  __device__ void store(float (&tile)[kPlainDepth][kPlainTile + 4]) const {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (kAcross)
        tile[thread / 16][thread % 16 * 4 + i] = value[i];
      else
        tile[thread % 4 * 4 + i][thread / 4] = value[i];
    }
  }
};

// A block for each tile, those of the first rows first.
template <typename P>
__global__ void __launch_bounds__(kPlainThreads) plain_kernel(P p) {
  alignas(16) __shared__ float a[kPlainDepth][kPlainTile + 4], b[kPlainDepth][kPlainTile + 4];
  const Extent extent = p.extent();
  const int tiles = (p.columns + kPlainTile - 1) / kPlainTile;
  const int row = static_cast<int>(blockIdx.x) / tiles * kPlainTile;
  const int column = static_cast<int>(blockIdx.x) % tiles * kPlainTile;
  if (row >= extent.rows) return;
  PlainPart<typename P::A, P::kAcrossA> part_a;
  PlainPart<typename P::B, P::kAcrossB> part_b;
  const auto load = [&](int k) {
    part_a.load(p.a, p.stride_a, row, extent.rows, k, extent.depth);
    part_b.load(p.b, p.stride_b, column, p.columns, k, extent.depth);
  };
  const int thread = static_cast<int>(threadIdx.x), my_row = thread / 16 * 4, my_column = thread % 16 * 4;
  float sums[4][4] = {};
  load(0);
  for (int k = 0; k < extent.depth; k += kPlainDepth) {
    part_a.store(a);
    part_b.store(b);
    __syncthreads();
    if (k + kPlainDepth < extent.depth) load(k + kPlainDepth);  // under way while this step is added
#pragma unroll
    for (int d = 0; d < kPlainDepth; ++d) {
      const Words of_a = load_words(a[d] + my_row);
      const Words of_b = load_words(b[d] + my_column);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          sums[i][j] = __fmaf_rn(__uint_as_float(of_a.word[i]), __uint_as_float(of_b.word[j]), sums[i][j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (row + my_row + i < extent.rows && column + my_column + j < p.columns)
        p.put(row + my_row + i, column + my_column + j, sums[i][j]);
}

// `rows_most`: rows that there may be.
template <typename P>
void plain_product(const Queue& queue, const P& p, int64_t rows_most) {
  launch(queue, plain_kernel<P>, div_up(rows_most, kPlainTile) * div_up(p.columns, kPlainTile), kPlainThreads,
         0, p);
}

}  // namespace sluice::cuda
