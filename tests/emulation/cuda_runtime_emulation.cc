// The CUDA runtime's calls over the emulated GPU.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

#include "engine/base/error.h"
#include "tests/emulation/gpu_model.h"

namespace {

namespace emulation = sluice::emulation;

thread_local cudaError_t last_error = cudaSuccess;  // of the calling thread, as in CUDA

cudaError_t noted(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

bool is_there(int ordinal) { return ordinal >= 0 && ordinal < emulation::current().count; }

void check_copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  CHECK(kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice,
        "a copy of no known kind");
  const char* const device = "a copy beyond an allocation of the GPU";
  if (kind != cudaMemcpyDeviceToHost) CHECK(emulation::is_device_memory(to, bytes), device);
  if (kind != cudaMemcpyHostToDevice) CHECK(emulation::is_device_memory(from, bytes), device);
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorDevicesUnavailable:
      return "cudaErrorDevicesUnavailable";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "cudaErrorHostMemoryAlreadyRegistered";
    case cudaErrorHostMemoryNotRegistered:
      return "cudaErrorHostMemoryNotRegistered";
    default:
      return "an error that tests set";
  }
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

cudaError_t cudaGetLastError() {
  const cudaError_t error = emulation::lost() != cudaSuccess ? emulation::lost() : last_error;
  last_error = cudaSuccess;
  return error;
}

// ---- The device.

cudaError_t cudaDriverGetVersion(int* version) {
  *version = emulation::current().driver_version;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  const emulation::EmulatedGpu gpu = emulation::current();
  *count = gpu.count;
  if (gpu.driver_version < CUDART_VERSION) return noted(cudaErrorInsufficientDriver);
  return gpu.count == 0 ? noted(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  if (!is_there(ordinal)) return noted(cudaErrorInvalidDevice);
  const emulation::EmulatedGpu gpu = emulation::current();
  *properties = {"", gpu.capability_major, gpu.capability_minor, gpu.multiprocessors, gpu.memory_bytes};
  gpu.name.copy(properties->name, sizeof properties->name - 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int ordinal) {
  if (!is_there(ordinal)) return noted(cudaErrorInvalidDevice);
  const emulation::EmulatedGpu gpu = emulation::current();
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = gpu.multiprocessors;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = gpu.capability_major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = gpu.capability_minor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(gpu.shared_bytes_max);
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(gpu.shared_bytes_together);
      return cudaSuccess;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      *value = static_cast<int>(gpu.shared_bytes_reserved);
      return cudaSuccess;
  }
  return noted(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int ordinal) {
  if (!is_there(ordinal)) return noted(cudaErrorInvalidDevice);
  const int written = std::snprintf(text, static_cast<size_t>(length), "0000:E%d:00.0",
                                    emulation::current().hidden + ordinal);
  return written < length ? cudaSuccess : noted(cudaErrorInvalidValue);
}

cudaError_t cudaGetDevice(int* ordinal) {
  *ordinal = emulation::chosen();
  return noted(is_there(*ordinal) ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int ordinal) {
  return noted(is_there(ordinal) ? emulation::choose(ordinal) : cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceSynchronize() { return noted(emulation::synchronize()); }

// ---- Memory.

cudaError_t cudaMalloc(void** data, size_t bytes) {
  if (bytes == 0) return noted(cudaErrorInvalidValue);  // the runtime gives nullptr, which nothing here wants
  return noted(emulation::allocate(data, bytes));
}
cudaError_t cudaFree(void* data) { return noted(emulation::free_memory(data)); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) { return noted(emulation::memory_info(free, total)); }
cudaError_t cudaHostRegister(void* begin, size_t bytes, unsigned) {
  return noted(emulation::register_host(begin, bytes));
}
cudaError_t cudaHostUnregister(void* begin) { return noted(emulation::unregister_host(begin)); }

// Copies from or to host memory that need not be registered.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  check_copy(to, from, bytes, kind);
  const auto copy = [=] { std::memcpy(to, from, bytes); };
  const cudaError_t error = emulation::enqueue(nullptr, copy, emulation::Work::copy);
  return noted(error == cudaSuccess ? emulation::synchronize(cudaStream_t{}) : error);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const auto check = [=] {
    check_copy(to, from, bytes, kind);
    const char* const pinned = "an asynchronous copy of host memory that is not pinned";
    if (kind == cudaMemcpyHostToDevice) CHECK(emulation::is_registered(from, bytes), pinned);
    if (kind == cudaMemcpyDeviceToHost) CHECK(emulation::is_registered(to, bytes), pinned);
  };
  check();
  const auto copy = [=] {
    check();  // the memory must still be there
    std::memcpy(to, from, bytes);
  };
  return noted(emulation::enqueue(stream, copy, emulation::Work::copy));
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  CHECK(emulation::is_device_memory(data, bytes), "a memset beyond an allocation of the GPU");
  return noted(emulation::enqueue(stream, [=] { std::memset(data, value, bytes); }));
}

// ---- Streams and events.

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  CHECK(flags == cudaStreamNonBlocking, "the emulation has no streams that wait for the null stream");
  return noted(emulation::create_stream(stream));
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return noted(emulation::destroy_stream(stream)); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return noted(emulation::synchronize(stream)); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return noted(emulation::wait_for(stream, event));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return noted(emulation::create_event(event, (flags & cudaEventDisableTiming) == 0));
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return noted(emulation::destroy_event(event)); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return noted(emulation::record(event, stream));
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return noted(emulation::synchronize(event)); }
cudaError_t cudaEventQuery(cudaEvent_t event) { return noted(emulation::query(event)); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return noted(emulation::elapsed(milliseconds, begin, end));
}
