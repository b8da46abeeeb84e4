#include <charconv>

#include "engine/base/error.h"
#include "gpu/cuda/device.h"
#include "gpu/cuda/error.h"
#include "gpu/cuda/gpu.h"

namespace sluice {
namespace {

// The least compute capability that kernels are built for (cmake/cuda.cmake). CUDA 13 does not have 7.0.
constexpr int kCapabilityMin = CUDART_VERSION < 13000 ? 70 : 75;

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

CudaStatus refused(CudaStatus status, const std::string& reason, const std::string& remedy) {
  status.reason = reason;
  status.remedy = remedy;
  return status;
}

}  // namespace

CudaStatus cuda_status(int ordinal) {
  CudaStatus status;
  status.built = true;
  if (cudaDriverGetVersion(&status.driver_version) != cudaSuccess || status.driver_version == 0)
    return refused(status, "This machine has no NVIDIA driver.",
                   "Install the NVIDIA driver, or train on --device cpu.");
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted == cudaErrorInsufficientDriver)
    return refused(status,
                   "The NVIDIA driver knows CUDA " + version_text(status.driver_version) +
                       ", this build needs CUDA " + version_text(CUDART_VERSION) + ".",
                   "Update the NVIDIA driver, or build with an older CUDA Toolkit.");
  if (counted == cudaErrorNoDevice || (counted == cudaSuccess && count == 0))
    return refused(status, "The NVIDIA driver sees no GPU.",
                   "Check nvidia-smi and CUDA_VISIBLE_DEVICES, or train on --device cpu.");
  if (counted != cudaSuccess)
    return refused(status, std::string("The NVIDIA driver fails: ") + cudaGetErrorString(counted) + ".",
                   "Check the GPU with nvidia-smi, or train on --device cpu.");
  if (ordinal < 0 || ordinal >= count)
    return refused(
        status,
        "There is no GPU " + std::to_string(ordinal) + ": this machine has " + std::to_string(count) + ".",
        "Choose --device cuda:0" + (count > 1 ? " to cuda:" + std::to_string(count - 1) : "") + ".");
  cudaDeviceProp properties;
  const cudaError_t asked = cudaGetDeviceProperties(&properties, ordinal);
  if (asked != cudaSuccess)
    return refused(status, std::string("The GPU does not answer: ") + cudaGetErrorString(asked) + ".",
                   "Check the GPU with nvidia-smi, or train on --device cpu.");
  status.name = properties.name;
  status.capability_major = properties.major;
  status.capability_minor = properties.minor;
  status.multiprocessors = properties.multiProcessorCount;
  status.memory_bytes = properties.totalGlobalMem;
  status.bf16 = properties.major >= 8;
  if (properties.major * 10 + properties.minor < kCapabilityMin)
    return refused(status,
                   status.name + " has compute capability " + std::to_string(properties.major) + "." +
                       std::to_string(properties.minor) + ", " + std::to_string(kCapabilityMin / 10) + "." +
                       std::to_string(kCapabilityMin % 10) + " is needed.",
                   "Use a newer GPU, or train on --device cpu.");
  status.available = true;
  return status;
}

std::vector<uint64_t> visible_gpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return {};  // cuda_status() says why
  std::vector<uint64_t> gpus;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    std::string digits;  // of domain, bus, device and function
    for (const char c : cuda::pci_bus_id(ordinal))
      if (c != ':' && c != '.') digits += c;
    const char* const end = digits.data() + digits.size();
    const auto [rest, error] = std::from_chars(digits.data(), end, gpus.emplace_back(), 16);
    CHECK(error == std::errc{} && rest == end, "a GPU's PCI address is no number: " + printable(digits));
  }
  return gpus;
}

}  // namespace sluice
