// Matrix operations of a warp for compute capability 7.0, whose tensor cores only know other layouts. They
// use shuffles: slow but right. toolkit.h includes this file after the declarations that it needs; tests run
// it over the emulation.
#pragma once

namespace sluice::cuda {

// mma_half of toolkit.h. A's rows and B's columns are gathered from the lanes that hold them.
__device__ inline void mma_half_by_shuffles(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, pair = lane % 4;
  const auto low = [](uint32_t pair_of) { return half_to_float(static_cast<uint16_t>(pair_of)); };
  const auto add_products = [low](float sum, uint32_t x, uint32_t y) {
    sum += low(x) * low(y);
    return sum + low(x >> 16) * low(y >> 16);
  };
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int t = 0; t < 4; ++t) {  // lane t of a group holds columns 8 half + 2 t and 8 half + 2 t + 1 of A
      const uint32_t row = __shfl_sync(0xFFFFFFFFu, a[2 * half], group * 4 + t);
      const uint32_t row_below = __shfl_sync(0xFFFFFFFFu, a[2 * half + 1], group * 4 + t);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t column = __shfl_sync(0xFFFFFFFFu, b[half], (2 * pair + i) * 4 + t);
        d[i] = add_products(d[i], row, column);
        d[2 + i] = add_products(d[2 + i], row_below, column);
      }
    }
}

// load_matrices of toolkit.h.
__device__ inline void load_matrices_by_shuffles(uint32_t (&to)[4], const void* row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int matrix = 0; matrix < 4; ++matrix) {
    const unsigned long long from =
        __shfl_sync(0xFFFFFFFFu, reinterpret_cast<unsigned long long>(row), matrix * 8 + lane / 4);
    to[matrix] = reinterpret_cast<const uint32_t*>(from)[lane % 4];
  }
}

// load_transposed of toolkit.h.
__device__ inline void load_transposed_by_shuffles(uint32_t (&to)[4], const void* row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int matrix = 0; matrix < 4; ++matrix) {
    to[matrix] = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned long long from = __shfl_sync(0xFFFFFFFFu, reinterpret_cast<unsigned long long>(row),
                                                  matrix * 8 + 2 * (lane % 4) + i);
      to[matrix] |= static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(from)[lane / 4]) << (16 * i);
    }
  }
}

}  // namespace sluice::cuda
