// The CUDA Toolkit as kernels see it: intrinsics that need its headers, shared memory, launches and result
// codes. The tests' emulation (tests/emulation/gpu/cuda/toolkit.h) stands in for this header where kernels
// are compiled as plain C++, so kernels use nothing of CUDA but this header and the keywords of the language.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "engine/base/error.h"
#include "gpu/cuda/error.h"
#include "gpu/cuda/kernels.h"

namespace sluice::cuda {

__device__ inline float half_to_float(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
// Two numbers rounded to nearest even, the first in the low half. A NaN stays a NaN.
__device__ inline uint32_t pack_half(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return static_cast<uint32_t>(__half_as_ushort(__low2half(pair))) |
         static_cast<uint32_t>(__half_as_ushort(__high2half(pair))) << 16;
}
__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return static_cast<uint32_t>(__bfloat16_as_ushort(__low2bfloat16(pair))) |
         static_cast<uint32_t>(__bfloat16_as_ushort(__high2bfloat16(pair))) << 16;
}

}  // namespace sluice::cuda

#include "gpu/cuda/volta.h"

namespace sluice::cuda {

// The block's dynamic shared memory, aligned to 16.
__device__ inline std::byte* shared_memory() {
  extern __shared__ __align__(16) unsigned char dynamic_shared_memory[];
  return reinterpret_cast<std::byte*>(dynamic_shared_memory);
}

// Ends the launch unless `condition`: an index out of its range is a bug, and reading there would hide it.
__device__ inline void require(bool condition) {
  if (!condition) __trap();
}

// Whether copy_async copies in the background, without registers.
#if __CUDA_ARCH__ >= 800
constexpr bool kBackgroundCopies = true;
#else
constexpr bool kBackgroundCopies = false;
#endif

// One D += A B of m16n8k16 in the layout of the PTX manual; all lanes of a warp call it together. Tensor
// cores compute it: bf16 from compute capability 8.0 on, fp16 from 7.5 on.
__device__ inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();                             // the device refuses bf16 before compute capability 8.0
#endif
}
__device__ inline void mma_half(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif __CUDA_ARCH__ >= 750
#pragma unroll
  for (int half = 0; half < 2; ++half)  // columns 0-7 of A with rows 0-7 of B, then the others
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
#else
  mma_half_by_shuffles(d, a, b);
#endif
}

// Returns x in such a way that the compiler computes nothing from x ahead of a loop: the result would hold
// registers throughout the loop.
__device__ inline int unhoisted(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// 2^x, with a relative error below 2^-22 and results below 2^-126 as zero.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x, with a relative error below 2^-22 and 1 / infinity = 0.
__device__ inline float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Four 8 x 8 matrices of 16-bit numbers out of shared memory. Lane i gives the address of row i % 8 of matrix
// i / 8. It receives elements (i / 4, 2 * (i % 4)) and (i / 4, 2 * (i % 4) + 1) of each matrix or, from
// load_transposed, of each transposed matrix.
__device__ inline void load_matrices(uint32_t (&to)[4], const void* row) {
#if __CUDA_ARCH__ >= 750
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
#else
  load_matrices_by_shuffles(to, row);
#endif
}
__device__ inline void load_transposed(uint32_t (&to)[4], const void* row) {
#if __CUDA_ARCH__ >= 750
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
#else
  load_transposed_by_shuffles(to, row);
#endif
}

// Copies 16 bytes from global to shared memory, or writes zeros if not `there`. The two addresses are aligned
// to 16. A thread's copies are complete after its wait_copies, the block's after a barrier that follows.
// commit_copies makes a group of the copies begun since its last call; after wait_groups<n> all but the last
// n groups are complete.
__device__ inline void copy_async(void* shared, const void* global, bool there) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global)), "r"(there ? 16 : 0)
               : "memory");
#else
  *static_cast<uint4*>(shared) = there ? *static_cast<const uint4*>(global) : uint4{};
#endif
}
__device__ inline void wait_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" : : : "memory");
#endif
}
__device__ inline void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}
template <int kGroups>
__device__ inline void wait_groups() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" : : "n"(kGroups) : "memory");
#endif
}

// Set-up: loads the kernel, which CUDA would otherwise do at its first launch, and lets it have
// `shared_bytes` of dynamic shared memory. Asking for the kernel's attributes loads it wholly, since only a
// loaded kernel has three of them (cuda.h, cuFuncGetAttribute). A launch would add nothing, and would need
// real operands, since some kernels check what they read.
template <typename... Parameters>
void load(void (*kernel)(Parameters...), uint64_t shared_bytes = 0) {
  constexpr uint64_t kWithoutAsking = 48 << 10;  // bytes of shared memory that every kernel may have
  constexpr const char* kLoading = "Loading kernels onto the GPU";
  cudaFuncAttributes attributes;
  check_setup(cudaFuncGetAttributes(&attributes, kernel), kLoading);
  if (shared_bytes > kWithoutAsking)
    check_setup(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(shared_bytes)),
                kLoading);
  if (shared_bytes > 0)  // all that a multiprocessor's cache can give, so that more blocks fit together
    check_setup(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared),
                kLoading);
}

// Set-up: how many blocks of a loaded kernel a multiprocessor runs together.
template <typename... Parameters>
int blocks_together(void (*kernel)(Parameters...), int threads, uint64_t shared_bytes) {
  int blocks = 0;
  check_setup(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes),
              "Asking how many blocks of a kernel run together");
  return blocks;
}

// Enqueues kernel(arguments...) on `blocks` blocks of `threads`. The kernel must have been loaded for
// `shared_bytes`. A launch that fails throws Error.
template <typename... Parameters, typename... Arguments>
void launch(const Queue& queue, void (*kernel)(Parameters...), int64_t blocks, int threads,
            uint64_t shared_bytes, const Arguments&... arguments) {
  CHECK(blocks > 0 && blocks <= INT32_MAX, "a launch of more blocks than a grid has");
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared_bytes,
           static_cast<cudaStream_t>(queue.stream)>>>(arguments...);
  check_step(cudaGetLastError());
}

}  // namespace sluice::cuda
