// What kernels share: conversions, wide loads and stores, sums over a warp or block, and dispatch by
// precision. Included by .cu files and the emulation's tests only. Device functions depend on their arguments
// and on thread and block indices only.
#pragma once

#include <algorithm>
#include <cfloat>
#include <climits>
#include <cmath>

#include "engine/base/error.h"
#include "engine/base/simd/half.h"
#include "engine/graph/op.h"
#include "gpu/cuda/toolkit.h"

namespace sluice::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;
constexpr int kWide = 8;  // elements that a thread takes at a time: 16 bytes of 16-bit numbers

__host__ __device__ constexpr int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

__device__ inline bool is_ignored(int64_t label) { return label == kIgnoreLabel || label == kPaddingLabel; }

// ---- Conversions, to nearest even as engine/base/simd/half.h has them; only the bits of a NaN may differ.

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

// ---- kWide elements at a time. Whole: p is aligned to 16 bytes, and all kWide elements exist. Part: only
// the first `count` exist. These are moved one by one, and a load gives zeros for the missing ones.

struct Whole {};
struct Part {
  int64_t count;
};
__device__ inline bool present(Whole, int) { return true; }
__device__ inline bool present(Part part, int i) { return i < part.count; }

// Calls f(Whole) or f(Part): one branch around all that f loads, so that its loads are under way together.
template <typename F>
__device__ inline void with_part(bool aligned, int64_t count, F f) {
  if (aligned && count >= kWide)
    f(Whole());
  else
    f(Part{count});
}

struct alignas(16) Words {
  uint32_t word[4];
};

__device__ inline Words load_words(const float* p) { return *reinterpret_cast<const Words*>(p); }

// kWide elements as they are stored.
template <typename T>
struct Raw {
  Words words[sizeof(T) * kWide / sizeof(Words)];
};
template <typename T>
__device__ inline Raw<T> load_raw(const T* p) {
  return *reinterpret_cast<const Raw<T>*>(p);
}
template <typename T>
__device__ inline void unpack(const Raw<T>& raw, float (&out)[kWide]) {
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    if constexpr (sizeof(T) == 4)
      out[i] = __uint_as_float(raw.words[i / 4].word[i % 4]);
    else
      out[i] = widen(T{static_cast<uint16_t>(raw.words[0].word[i / 2] >> (16 * (i % 2)))});
  }
}

template <typename T>
__device__ inline void load(const T* p, Whole, float (&out)[kWide]) {
  unpack(load_raw(p), out);
}
template <typename T>
__device__ inline void load(const T* p, Part part, float (&out)[kWide]) {
#pragma unroll
  for (int i = 0; i < kWide; ++i) out[i] = i < part.count ? widen(p[i]) : 0.0f;
}

template <typename T>
__device__ inline void store(T* p, Whole, const float (&in)[kWide]) {
  Raw<T> raw;
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    if constexpr (sizeof(T) == 4)
      raw.words[i / 4].word[i % 4] = __float_as_uint(in[i]);
    else if (i % 2 == 0)
      raw.words[0].word[i / 2] = pack(in[i], in[i + 1], T{});
  }
  *reinterpret_cast<Raw<T>*>(p) = raw;
}
template <typename T>
__device__ inline void store(T* p, Part part, const float (&in)[kWide]) {
#pragma unroll
  for (int i = 0; i < kWide; ++i)
    if (i < part.count) p[i] = narrow<T>(in[i]);
}

// Where a gradient of an input goes (nullptr: it is not wanted), and what is added to it (nullptr: nothing).
template <typename T>
struct Gradient {
  T* data;
  const T* addend;
};
// Loads the addend, or zeros. Call it where the operands are loaded, so that these loads are under way
// together and the store need not wait.
template <typename T, typename P>
__device__ inline void load_before(const Gradient<T>& to, int64_t offset, P part, float (&before)[kWide]) {
#pragma unroll
  for (int i = 0; i < kWide; ++i) before[i] = 0;
  if (to.addend != nullptr) load(to.addend + offset, part, before);
}
template <typename T, typename P>
__device__ inline void store_after(const Gradient<T>& to, int64_t offset, P part,
                                   const float (&before)[kWide], float (&value)[kWide]) {
  if (to.data == nullptr) return;
#pragma unroll
  for (int i = 0; i < kWide; ++i) value[i] += before[i];
  store(to.data + offset, part, value);
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

// Adds lanes, then warps in order. `shared` has one double a warp; the whole block calls.
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

// Calls f(From{}, To{}) for every conversion that with_precisions knows.
template <typename F>
void for_each_conversion(F f) {
  for (const DType narrow : {DType::bf16, DType::f16}) {
    with_precisions(narrow, narrow, f);
    with_precisions(narrow, DType::f32, f);
    with_precisions(DType::f32, narrow, f);
  }
  with_precisions(DType::f32, DType::f32, f);
}

inline bool aligned_to_16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// The number of blocks of a grid that strides over `items`: enough for one item a thread, but no more than
// fill the GPU several times over.
inline int64_t striding_blocks(const Queue& queue, int64_t items, int threads) {
  CHECK(items <= INT_MAX, "grids count in 32 bits");
  constexpr int64_t kBlocksPerMultiprocessor = 16;
  return std::min<int64_t>(div_up(items, threads), kBlocksPerMultiprocessor * queue.multiprocessors);
}

template <typename T>
T* data_of(std::span<const TensorView> views, size_t i) {
  return static_cast<T*>(view_of(views, i).data);
}
template <typename T>
Gradient<T> gradient_of(std::span<const TensorView> views, size_t i) {
  return {data_of<T>(views, i), static_cast<const T*>(view_of(views, i).addend)};
}

}  // namespace sluice::cuda
