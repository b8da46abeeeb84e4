// The emulated GPUs behind cuda_runtime_api.h, cublasLt.h and kernel launches: streams, events, memory. They
// share one thread, and are lost together.
//
// Streams are queues of work, waits and records. A record gives its event a new moment. A wait for an event
// waits for the moment that the event had at the time of the call, and does nothing if it had none. No stream
// has an implicit order to another, the null stream included, since only non-blocking ones are made. Every
// function may be called from any thread; work runs on the GPU's own thread. A thread that has chosen no GPU
// uses the first. Work is enqueued in streams of the thread's GPU only (CUDA would accept copies in streams
// of other GPUs too); an event belongs to the streams of one GPU.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tests/emulation/emulated_gpu.h"

namespace sluice::emulation {

// Results are those of the runtime's calls, such as the errors for a lost device or a bad handle.
enum class Work { kernel, copy };
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work, Work kind = Work::kernel);
cudaError_t synchronize();
cudaError_t synchronize(cudaStream_t stream);
cudaError_t create_stream(cudaStream_t* stream);
cudaError_t destroy_stream(cudaStream_t stream);
cudaError_t wait_for(cudaStream_t stream, cudaEvent_t event);
// What comes after a gate in a stream waits until it is opened.
using Gate = std::shared_ptr<struct Moment>;
Gate make_gate();
void open(const Gate& gate);  // from any thread, also a second time
cudaError_t wait_for(cudaStream_t stream, const Gate& gate);
cudaError_t create_event(cudaEvent_t* event, bool timed);
cudaError_t destroy_event(cudaEvent_t event);
cudaError_t record(cudaEvent_t event, cudaStream_t stream);
cudaError_t synchronize(cudaEvent_t event);
cudaError_t query(cudaEvent_t event);
cudaError_t elapsed(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);
cudaError_t allocate(void** data, uint64_t bytes);
cudaError_t free_memory(void* data);
cudaError_t choose(int ordinal);  // sets the calling thread's GPU, on which these calls act
int chosen();
cudaError_t memory_info(uint64_t* free, uint64_t* total);
cudaError_t register_host(void* begin, uint64_t bytes);
cudaError_t unregister_host(void* begin);

EmulatedGpu current();       // what was set up last
uint64_t count_nccl_call();  // returns the number of earlier calls
cudaError_t lost();          // cudaSuccess while the device is there
struct MemoryUse {
  uint64_t held, page_tables, others, total;  // bytes; held: by this process, without page tables
};
MemoryUse memory_use(int ordinal);
bool is_device_memory(const void* begin, uint64_t bytes);  // wholly, inside one allocation
bool is_registered(const void* begin, uint64_t bytes);     // wholly, inside one registration

// A kernel must be loaded before it is launched, for at least the dynamic shared memory of the launch;
// otherwise a CHECK fails.
cudaError_t load(const void* kernel, uint64_t shared_bytes, const char* source);
void check_loaded(const void* kernel, uint64_t shared_bytes);
std::string source_of(const void* kernel);  // the name of its file
bool is_idle(const void* kernel);           // by EmulatedGpu::idle_kernels
// Counts a product. cuBLASLt's algorithm has a kernel for the properties `kernel`, the last of which is
// whether the product adds to C. That kernel is loaded onto the calling thread's GPU when it is first run.
void load_product(uint32_t algorithm, const std::vector<int>& kernel);

}  // namespace sluice::emulation
