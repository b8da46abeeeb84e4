// What kernels share: conversions, wide loads and stores, sums over a warp or block, and dispatch by
// precision. Included by .cu files only. Everything on the device is a function of thread and block indices
// and its arguments.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "cpu_optim/half.h"
#include "gpu/cuda_toolkit.h"

namespace sluice::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;
constexpr int kWide = 8;  // elements that a thread takes at a time: 16 bytes of 16-bit numbers

__host__ __device__ constexpr int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// ---- Conversions, to nearest even as cpu_optim/half.h has them; only the bits of a NaN may differ.

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(Bf16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
__device__ inline float widen(F16 x) { return half_to_float(x.bits); }

__device__ inline uint32_t pack(float low, float high, Bf16) { return pack_bf16(low, high); }
__device__ inline uint32_t pack(float low, float high, F16) { return pack_half(low, high); }
__device__ inline uint32_t pack(float low, float, float) { return __float_as_uint(low); }

template <typename T>
__device__ inline T narrow(float x) {
  if constexpr (sizeof(T) == 4)
    return x;
  else
    return {static_cast<uint16_t>(pack(x, 0.0f, T{}))};
}

// ---- kWide elements at a time. `wide`: p is aligned to 16 bytes and all kWide elements are there; else the
// first `count`, one by one, the others being zero.

struct alignas(16) Words {
  uint32_t word[4];
};

__device__ inline void load_wide(const float* p, float (&out)[kWide]) {
  for (int half = 0; half < 2; ++half) {
    const Words words = reinterpret_cast<const Words*>(p)[half];
    for (int i = 0; i < 4; ++i) out[4 * half + i] = __uint_as_float(words.word[i]);
  }
}
template <typename T>
__device__ inline void load_wide(const T* p, float (&out)[kWide]) {
  const Words words = *reinterpret_cast<const Words*>(p);
  for (int i = 0; i < kWide; ++i)
    out[i] = widen(T{static_cast<uint16_t>(words.word[i / 2] >> (16 * (i % 2)))});
}
__device__ inline void store_wide(float* p, const float (&in)[kWide]) {
  for (int half = 0; half < 2; ++half) {
    Words words;
    for (int i = 0; i < 4; ++i) words.word[i] = __float_as_uint(in[4 * half + i]);
    reinterpret_cast<Words*>(p)[half] = words;
  }
}
template <typename T>
__device__ inline void store_wide(T* p, const float (&in)[kWide]) {
  Words words;
  for (int i = 0; i < 4; ++i) words.word[i] = pack(in[2 * i], in[2 * i + 1], T{});
  *reinterpret_cast<Words*>(p) = words;
}

template <typename T>
__device__ inline void load(const T* p, int64_t count, bool wide, float (&out)[kWide]) {
  if (wide) return load_wide(p, out);
#pragma unroll
  for (int i = 0; i < kWide; ++i) out[i] = i < count ? widen(p[i]) : 0.0f;
}
template <typename T>
__device__ inline void store(T* p, int64_t count, bool wide, const float (&in)[kWide]) {
  if (wide) return store_wide(p, in);
#pragma unroll
  for (int i = 0; i < kWide; ++i)
    if (i < count) p[i] = narrow<T>(in[i]);
}
// A gradient of an input: dropped without data, added to what is there if `accumulate`.
template <typename T>
__device__ inline void store_gradient(T* to, bool accumulate, int64_t offset, int64_t count, bool wide,
                                      float (&value)[kWide]) {
  if (to == nullptr) return;
  if (accumulate) {
    float before[kWide];
    load(to + offset, count, wide, before);
#pragma unroll
    for (int i = 0; i < kWide; ++i) value[i] += before[i];
  }
  store(to + offset, count, wide, value);
}

// ---- Sums. Every lane or thread gets the same bits.

__device__ inline float warp_sum(float x) {
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(kAllLanes, x, lane);
  return x;
}
__device__ inline double warp_sum(double x) {
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(kAllLanes, x, lane);
  return x;
}

// Lanes, then warps in order. `shared` holds one double a warp; the block meets before and after.
__device__ inline double block_sum(double x, double* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  x = warp_sum(x);
  __syncthreads();
  if (thread % kWarp == 0) shared[thread / kWarp] = x;
  __syncthreads();
  double sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) sum += shared[warp];
  return sum;
}

// ---- On the host.

// Calls f(T{}) for every type of operands, as with_precision does for one.
template <typename F>
void for_each_precision(F f) {
  for (const DType precision : {DType::f32, DType::bf16, DType::f16}) with_precision(precision, f);
}

inline bool aligned_to_16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// Blocks of a grid that strides over `items`, one a thread: enough to fill the GPU several times over.
inline int64_t striding_blocks(const Queue& queue, int64_t items, int threads) {
  constexpr int64_t kBlocksPerMultiprocessor = 16;
  return std::min<int64_t>(div_up(items, threads), kBlocksPerMultiprocessor * queue.multiprocessors);
}

template <typename T>
T* data_of(std::span<const TensorView> views, size_t i) {
  return static_cast<T*>(view_of(views, i).data);
}

}  // namespace sluice::cuda
