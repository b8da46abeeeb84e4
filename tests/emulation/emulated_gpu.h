// The GPU that the emulated cuda device runs on, as tests set it up. There is one state for the process, as
// with CUDA.
//
// Calls of the CUDA runtime come from any thread and enqueue work; one thread, the GPU, carries it out. It
// takes the head of any stream whose waits are over, chosen by the seed, so every order that CUDA allows can
// occur. Device memory may be touched by that thread only, and only while it works: any other access ends the
// process. Fresh device memory is NaN. An asynchronous copy to or from host memory that is not registered, or
// beyond the end of an allocation, ends the process; so does a kernel that was not loaded.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace sluice::emulation {

class Traffic;  // traffic.h

constexpr uint64_t kNever = ~uint64_t{0};

// lists_none, lists_no_bytes: as in many containers.
enum class Nvml { lists_processes, lists_none, lists_no_bytes, absent };

struct EmulatedGpu {
  // Decides the order in which streams, and blocks and threads of kernels, run. 0: the oldest stream that can
  // run, blocks and threads ascending. Odd seeds choose streams evenly, even ones prefer one for a while.
  uint32_t seed = 0;
  int delay_microseconds_max = 0;  // before each piece of work, at random
  int count = 1;                   // GPUs that the driver sees, all alike
  int hidden = 0;                  // GPUs of the machine before these, which a launcher hides
  int driver_version = CUDART_VERSION;
  int capability_major = 8, capability_minor = 0;
  int multiprocessors = 2;
  uint64_t shared_bytes_max = 163 << 10;       // of a block
  uint64_t shared_bytes_together = 164 << 10;  // of a multiprocessor's blocks
  uint64_t shared_bytes_reserved = 1 << 10;    // of each of them, beside its own
  std::string name = "emulated GPU";
  bool cublaslt = true;  // whether the library is there
  uint64_t cublaslt_version = 130100;
  uint32_t fast_algorithm = 0;                 // of cuBLASLt
  int product_microseconds = 0;                // that a product by any other algorithm sleeps
  bool products = true, bias_epilogue = true;  // cuBLASLt has algorithms for these
  uint64_t memory_bytes = uint64_t{8} << 30;
  uint64_t used_by_others = 0;      // of memory_bytes
  uint64_t context_bytes = 0;       // that this process's context takes, from the first call that needs one
  uint64_t library_bytes = 0;       // that libraries take for their kernels, from the first work on
  uint64_t library_host_bytes = 0;  // host memory that libraries take then
  uint64_t product_bytes = 0;       // that each of cuBLASLt's kernels takes when it is first run
  uint64_t copy_bytes = 0;          // that the first copy on each stream takes
  Nvml nvml = Nvml::lists_processes;
  int nccl_version = 22809;                   // 0: there is no NCCL
  uint64_t nccl_bytes = 0;                    // that a rank's part of an NCCL communicator takes
  int nccl_rank_that_cannot_join = -1;        // only this rank hears that joining failed
  uint64_t nccl_call_that_fails = kNever;     // counted over all ranks from now on; only the caller hears
  cudaError_t loading_returns = cudaSuccess;  // what asking for a kernel returns
  uint64_t pinned_bytes_max = kNever;
  uint64_t registration_bytes_max = (uint64_t{512} << 30) - 4096;  // of one call, with drivers up to 610
  Traffic* traffic = nullptr;  // counts what kernels and products touch; products then compute nothing
  std::string idle_kernels;    // the kernels of this source, such as "norm.cu", do nothing
  // The number, from 0, of the call that fails, counted from now on.
  uint64_t allocation_that_fails = kNever, registration_that_fails = kNever;
  uint64_t stream_that_fails = kNever, event_that_fails = kNever;
  // The device is lost at this piece of work (from 0): it and all later work is dropped, and every later call
  // returns `lost_with`.
  uint64_t work_that_is_lost = kNever;
  cudaError_t lost_with = cudaErrorDevicesUnavailable;
};

// Requires that all work is done. Counts begin anew, and the calling thread has chosen no GPU afterwards.
// Values that the variable SLUICE_EMULATED_GPU sets, as in "memory_bytes=1000000,count=1", replace those of
// `gpu`.
void set_up(const EmulatedGpu& gpu);

// While paused the GPU begins nothing. What is enqueued meanwhile runs in an order that the seed alone
// decides.
void pause();
void resume();

struct Counts {
  uint64_t allocations = 0, registrations = 0, streams = 0, events = 0;  // that were made
  uint64_t works = 0;                                                    // pieces that were carried out
  uint64_t nccl_calls = 0;
  // What was not given back yet.
  uint64_t allocated_bytes = 0, registered_bytes = 0, streams_there = 0, events_there = 0;
  // Bytes of context, libraries, products, first copies, allocations in granules of 2 MiB and page tables of
  // registered memory: now, and most at once on one GPU.
  uint64_t held = 0, held_most = 0;
  uint64_t untouched_bytes = 0;  // that were registered before their pages existed
  std::vector<int> contexts;     // ordinals of the GPUs on which this process has one
  // Products that were enqueued, by cuBLASLt's algorithm and whether they add to C.
  std::map<std::pair<uint32_t, bool>, uint64_t> products;
};
Counts counts();

}  // namespace sluice::emulation
