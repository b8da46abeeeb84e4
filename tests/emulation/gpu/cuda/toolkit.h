// Stands in for gpu/cuda/toolkit.h where the cuda device's kernels are compiled as plain C++ for tests: a
// block's threads are fibers on one thread of the host.
//
// A fiber runs until the block's barrier or an operation of its warp. There it waits for all others that have
// not returned. Blocks, and the threads between two meetings, run in an order shuffled by EmulatedGpu::seed
// (0: ascending), so that a wrong index, a missing barrier or a wrong lane shows as a wrong result. Dynamic
// shared memory begins as NaN in every block and has guard bands. Static shared memory keeps its contents.
// Kernels run on the emulated GPU's thread (emulated_gpu.h).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <string>
#include <tuple>

#include "engine/base/error.h"
#include "gpu/cuda/error.h"
#include "gpu/cuda/kernels.h"
#include "tests/emulation/gpu_model.h"

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)

// What is declared for the device lies in the host's memory here.
template <typename T>
cudaError_t cudaGetSymbolAddress(void** address, const T& symbol) {
  *address = const_cast<T*>(&symbol);
  return cudaSuccess;
}

namespace sluice::emulation {

struct Index {
  unsigned x = 0;
};

// Runs a launch, in the order of the seed. EmulatedGpu::traffic counts it under `source`.
void run(const std::string& source, int64_t blocks, int threads, uint64_t shared_bytes,
         const std::function<void()>& thread);
void check_launch(int64_t blocks, int threads, uint64_t shared_bytes);
int blocks_together(uint64_t shared_bytes);  // as shared memory allows: the emulation has no registers
void meet_block();
int thread_in_block();
std::byte* shared_memory();
void begin_copy(void* to, const void* from);  // from nullptr: zeros
void commit_copies();                         // makes a group of the copies since the last call
void finish_copies(size_t groups = 0);        // finishes all but the last `groups` groups

// Every lane of the warp hands over a value of `bytes` bytes. Returns the address of lane 0's value; the
// values of the other lanes follow at distances of kSlotBytes. The address is valid until the lane's next
// exchange. `combine`, which all 32 lanes must give alike, runs once on the slots and leaves its result
// there.
constexpr int kSlotBytes = 32;
using Combine = void (*)(std::byte* slots);
const std::byte* exchange(const void* value, size_t bytes, Combine combine = nullptr);

template <typename T>
T from_lane(const std::byte* slots, int lane) {
  T value;
  std::memcpy(&value, slots + lane * kSlotBytes, sizeof(T));
  return value;
}

}  // namespace sluice::emulation

inline sluice::emulation::Index threadIdx, blockIdx, blockDim, gridDim;

inline void __syncthreads() { sluice::emulation::meet_block(); }
inline int __syncthreads_or(int condition) {
  static int any;
  __syncthreads();
  any = 0;
  __syncthreads();
  if (condition != 0) any = 1;
  __syncthreads();
  return any;
}
inline void __syncwarp() {
  const int nothing = 0;
  sluice::emulation::exchange(&nothing, sizeof(nothing));
}
template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  return sluice::emulation::from_lane<T>(sluice::emulation::exchange(&value, sizeof(T)), lane);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  const int lane = sluice::emulation::thread_in_block() % 32;
  return sluice::emulation::from_lane<T>(sluice::emulation::exchange(&value, sizeof(T)), lane ^ mask);
}
inline unsigned __ballot_sync(unsigned, int condition) {
  const std::byte* slots = sluice::emulation::exchange(&condition, sizeof(condition));
  unsigned ballot = 0;
  for (int lane = 0; lane < 32; ++lane)
    if (sluice::emulation::from_lane<int>(slots, lane) != 0) ballot |= 1u << lane;
  return ballot;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }

inline float __uint_as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(x));
  return bits;
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }

namespace sluice::cuda {

float half_to_float(uint16_t bits);
uint32_t pack_half(float low, float high);
uint32_t pack_bf16(float low, float high);

inline std::byte* shared_memory() { return emulation::shared_memory(); }
inline void require(bool condition) { CHECK(condition, "a kernel trapped"); }
inline int unhoisted(int x) { return x; }
inline float fast_exp2(float x) { return std::exp2(x); }
inline float fast_reciprocal(float x) { return 1 / x; }

// Fragments in the layout of the PTX manual's m16n8k16.
void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void mma_half(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void load_matrices(uint32_t (&to)[4], const void* row);
void load_transposed(uint32_t (&to)[4], const void* row);

// The target of a copy becomes NaN at once and gets the bytes as late as CUDA allows: at the thread's
// wait_copies or wait_groups.
constexpr bool kBackgroundCopies = true;
void copy_async(void* shared, const void* global, bool there);
void wait_copies();
void commit_copies();
template <int kGroups>
void wait_groups() {
  emulation::finish_copies(kGroups);
}

template <typename... Parameters>
void load(void (*kernel)(Parameters...), uint64_t shared_bytes = 0,
          const std::source_location& where = std::source_location::current()) {
  check_setup(emulation::load(reinterpret_cast<const void*>(kernel), shared_bytes, where.file_name()),
              "Loading kernels onto the GPU");
}

template <typename... Parameters>
int blocks_together(void (*)(Parameters...), int, uint64_t shared_bytes) {
  return emulation::blocks_together(shared_bytes);
}

template <typename... Parameters, typename... Arguments>
void launch(const Queue& queue, void (*kernel)(Parameters...), int64_t blocks, int threads,
            uint64_t shared_bytes, const Arguments&... arguments) {
  emulation::check_loaded(reinterpret_cast<const void*>(kernel), shared_bytes);
  emulation::check_launch(blocks, threads, shared_bytes);
  const auto thread = [kernel, values = std::tuple<Parameters...>(arguments...)] {
    std::apply(kernel, values);
  };
  const bool idle = emulation::is_idle(reinterpret_cast<const void*>(kernel));
  const std::string source = emulation::source_of(reinterpret_cast<const void*>(kernel));
  check_step(emulation::enqueue(static_cast<cudaStream_t>(queue.stream), [=] {
    if (!idle) emulation::run(source, blocks, threads, shared_bytes, thread);
  }));
}

}  // namespace sluice::cuda

#include "gpu/cuda/volta.h"
