// The CUDA runtime's calls over one GPU that does not exist.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "an error of the emulated GPU";
}

cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  if (ordinal != 0) return cudaErrorInvalidDevice;
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "emulated GPU");
  properties->major = 8;
  properties->multiProcessorCount = 2;
  properties->totalGlobalMem = size_t{1} << 30;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int ordinal) { return ordinal == 0 ? cudaSuccess : cudaErrorInvalidDevice; }

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t) {
  std::memset(data, value, bytes);
  return cudaSuccess;
}
