// The one wrapper for matrix products inside kernels: a warp's 16 rows times a tile in shared memory.
//
// 16-bit operands go through tensor cores (mma m16n8k16), fp32 through fused multiply-adds; both accumulate
// in fp32. The result's layout is that of the tensor cores for all types: with lane = 4 g + t, tile j of 8
// columns and sums[j][i], the element is row g + 8 * (i / 2), column 8 j + 2 t + i % 2. A whole warp calls
// together. Tiles are padded rows in shared memory, kStride<T, kSize> elements apart: 16 bytes more than a
// row, so that the rows of one access lie in different banks, and every row begins at a multiple of 16 bytes.
#pragma once

#include "gpu/cuda_base.h"

namespace sluice::cuda {

template <typename T, int kSize>
constexpr int kStride = kSize + 16 / static_cast<int>(sizeof(T));

// Row and column of sums[j][i] in the warp's tile.
__device__ inline int sum_row(int i) { return static_cast<int>(threadIdx.x) % kWarp / 4 + i / 2 * 8; }
__device__ inline int sum_column(int j, int i) {
  return 8 * j + 2 * (static_cast<int>(threadIdx.x) % 4) + i % 2;
}

__device__ inline void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Bf16) {
  mma_bf16(d, a, b);
}
__device__ inline void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], F16) {
  mma_half(d, a, b);
}
__device__ inline uint32_t pack(float low, float high, Bf16) { return pack_bf16(low, high); }
__device__ inline uint32_t pack(float low, float high, F16) { return pack_half(low, high); }

template <typename T>
__device__ uint32_t load_pair(const T* p) {
  return *reinterpret_cast<const uint32_t*>(p);
}

// sums [16, kColumns] += a [16, kDepth] b^T, b [kColumns, kDepth] row by row.
template <int kColumns, int kDepth, typename T>
requires(sizeof(T) == 2) __device__
    void multiply_rows(float (&sums)[kColumns / 8][4], const T* a, const T* b) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, group = lane / 4, pair = lane % 4;
  constexpr int stride = kStride<T, kDepth>;
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    const T* rows = a + group * stride + k + 2 * pair;
    const uint32_t fragment[4] = {load_pair(rows), load_pair(rows + 8 * stride), load_pair(rows + 8),
                                  load_pair(rows + 8 * stride + 8)};
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const T* row = b + (8 * j + group) * stride + k + 2 * pair;
      const uint32_t other[2] = {load_pair(row), load_pair(row + 8)};
      mma(sums[j], fragment, other, T{});
    }
  }
}

// sums [16, kColumns] += p [16, kDepth] b, b [kDepth, kColumns] row by row; p is a result, rounded to T here.
// `scratch`: of this warp, for 16 * kStride<T, kDepth> elements; tensor cores need none.
template <int kColumns, int kDepth, typename T>
requires(sizeof(T) == 2) __device__
    void multiply_result(float (&sums)[kColumns / 8][4], const float (&p)[kDepth / 8][4], const T* b,
                         T* /*scratch*/) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  constexpr int stride = kStride<T, kColumns>;
#pragma unroll
  for (int k = 0; k < kDepth / 8; k += 2) {  // two tiles of the result are one operand, 16 deep
    const uint32_t fragment[4] = {pack(p[k][0], p[k][1], T{}), pack(p[k][2], p[k][3], T{}),
                                  pack(p[k + 1][0], p[k + 1][1], T{}), pack(p[k + 1][2], p[k + 1][3], T{})};
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      uint32_t other[2];
      load_transposed(other, b + (8 * k + lane % 16) * stride + 8 * j);
      mma(sums[j], fragment, other, T{});
    }
  }
}

__device__ inline void multiply_add4(float& sum, const Words& a, const Words& b) {
#pragma unroll
  for (int i = 0; i < 4; ++i) sum = __fmaf_rn(__uint_as_float(a.word[i]), __uint_as_float(b.word[i]), sum);
}

template <int kColumns, int kDepth>
__device__ void multiply_rows(float (&sums)[kColumns / 8][4], const float* a, const float* b) {
  constexpr int stride = kStride<float, kDepth>;
#pragma unroll 2
  for (int k = 0; k < kDepth; k += 4) {
    const Words upper = *reinterpret_cast<const Words*>(a + sum_row(0) * stride + k);
    const Words lower = *reinterpret_cast<const Words*>(a + sum_row(2) * stride + k);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Words other = *reinterpret_cast<const Words*>(b + sum_column(j, i) * stride + k);
        multiply_add4(sums[j][i], upper, other);
        multiply_add4(sums[j][i + 2], lower, other);
      }
  }
}

template <int kColumns, int kDepth>
__device__ void multiply_result(float (&sums)[kColumns / 8][4], const float (&p)[kDepth / 8][4],
                                const float* b, float* scratch) {
  constexpr int stride = kStride<float, kColumns>, scratch_stride = kStride<float, kDepth>;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kDepth / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) scratch[sum_row(i) * scratch_stride + sum_column(j, i)] = p[j][i];
  __syncwarp();
#pragma unroll 2
  for (int k = 0; k < kDepth; ++k) {
    const float upper = scratch[sum_row(0) * scratch_stride + k];
    const float lower = scratch[sum_row(2) * scratch_stride + k];
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float other = b[k * stride + sum_column(j, i)];
        sums[j][i] = __fmaf_rn(upper, other, sums[j][i]);
        sums[j][i + 2] = __fmaf_rn(lower, other, sums[j][i + 2]);
      }
  }
}

// Over the four lanes that share a row of a result.
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}
__device__ inline float row_maximum(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

}  // namespace sluice::cuda
