#include "gpu/cuda/facts.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <functional>

#include "engine/base/error.h"
#include "engine/base/shared_library.h"
#include "gpu/cuda/cublaslt.h"
#include "gpu/cuda/gpu.h"
#include "gpu/cuda/owned.h"

namespace sluice {
namespace {

using cuda::check_setup;
using cuda::GpuBytes;
using cuda::Stream;

constexpr uint64_t kCopyMost = 256ull << 20, kCopyLeast = 1ull << 20;  // bytes; smaller ones measure latency
constexpr int kCopies = 9;

// Host memory like the host arena's: an anonymous mapping that is registered afterwards.
struct Pages {
  explicit Pages(uint64_t size)
      : data(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)), bytes(size) {}
  ~Pages() {
    if (registered) (void)cudaHostUnregister(data);
    if (data != MAP_FAILED) munmap(data, bytes);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  void* data;
  uint64_t bytes;
  bool registered = false;
};

// ---- Measurements.

// Pins `pages`. Returns an empty string, or a clause why they cannot be pinned.
std::string pin(Pages& pages) {
  if (pages.data == MAP_FAILED) return "that much host memory cannot be mapped";
  const cudaError_t error = cudaHostRegister(pages.data, pages.bytes, cudaHostRegisterDefault);
  pages.registered = error == cudaSuccess;
  if (pages.registered) return "";
  (void)cudaGetLastError();  // clears the error, which is handled here
  return std::string("cudaHostRegister says: ") + cudaGetErrorString(error);
}

// Pins as much of `most` bytes as the system allows.
CudaPinning pin_most(uint64_t most, double (*clock)(), std::unique_ptr<Pages>& pages) {
  CudaPinning result;
  result.asked = most;
  for (uint64_t bytes = most; bytes >= kCopyLeast; bytes /= 2) {
    pages = std::make_unique<Pages>(bytes);
    const double begin = clock();
    const std::string reason = pin(*pages);
    if (reason.empty()) {
      result.seconds = clock() - begin;
      result.pinned = bytes;
      return result;
    }
    result.reason = reason;
  }
  pages.reset();
  return result;
}

double median_seconds(double (*clock)(), const std::function<void()>& work) {
  work();  // the first one also wakes the link
  std::array<double, kCopies> seconds;
  for (double& s : seconds) {
    const double begin = clock();
    work();
    s = clock() - begin;
  }
  std::nth_element(seconds.begin(), seconds.begin() + kCopies / 2, seconds.end());
  return seconds[kCopies / 2];
}

// `pages` have room for two copies.
CudaCopies measure_copies(const Pages& pages, uint64_t bytes, double (*clock)()) {
  const GpuBytes gpu(2 * bytes);
  const Stream down, up;
  auto* host = static_cast<char*>(pages.data);
  auto* device = static_cast<char*>(gpu.data);
  const auto copy_down = [&] {
    check_setup(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, down.get()), "A copy");
  };
  const auto copy_up = [&] {
    check_setup(cudaMemcpyAsync(host + bytes, device + bytes, bytes, cudaMemcpyDeviceToHost, up.get()),
                "A copy");
  };
  const auto wait = [](const Stream& s) { check_setup(cudaStreamSynchronize(s.get()), "A copy"); };
  CudaCopies copies{bytes, kCopies};
  const double n = static_cast<double>(bytes);
  copies.host_to_device = n / median_seconds(clock, [&] {
                            copy_down();
                            wait(down);
                          });
  copies.device_to_host = n / median_seconds(clock, [&] {
                            copy_up();
                            wait(up);
                          });
  copies.both = 2 * n / median_seconds(clock, [&] {
                  copy_down();
                  copy_up();
                  wait(down);
                  wait(up);
                });
  return copies;
}

std::string without_stop(std::string sentence) {
  if (sentence.ends_with('.')) sentence.pop_back();
  return sentence;
}

void measure(const CudaFactsOptions& options, CudaFacts& facts) {
  cuda::choose_gpu(options.ordinal);
  if (!facts.memory.value) facts.memory = {cuda::runtime_memory(), ""};
  std::unique_ptr<Pages> pages;
  facts.pinning = {pin_most(options.host_bytes_most, options.clock, pages), ""};
  const uint64_t half = std::min(facts.pinning.value->pinned, facts.memory.value->free / 2) / 2;
  const uint64_t bytes = std::min(kCopyMost, half / kCopyLeast * kCopyLeast);
  if (bytes == 0) {
    facts.copies.reason = "less than 2 MiB could be pinned, or less than 4 MiB of the GPU are free";
    return;
  }
  facts.copies = {measure_copies(*pages, bytes, options.clock), ""};
}

}  // namespace

Known<std::string> cublas_file() {
  try {
    return {cuda::open_cublaslt().file, ""};
  } catch (const Error& error) {
    return {{}, without_stop(error.what())};
  }
}

std::vector<std::string> missing_libraries() {
  std::vector<std::string> names{"libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR), "libnccl.so.2"};
  std::erase_if(names, [](const std::string& name) { return SharedLibrary(name).is_open(); });
  return names;
}

CudaFacts cuda_facts(const CudaFactsOptions& options) {
  CudaFacts facts;
  facts.status = cuda_status(options.ordinal);
  facts.toolkit_version = CUDART_VERSION;
  if (!facts.status.available) return facts;
  facts.cublas = cublas_file();
  facts.driver.reason = facts.memory.reason = facts.link.reason = "the GPU does not answer";
  try {
    facts.pci_bus_id = cuda::pci_bus_id(options.ordinal);
    const NvmlGpu nvml(options.nvml, facts.pci_bus_id);
    facts.driver = nvml.driver_version();
    facts.memory = nvml.memory();
    measure(options, facts);
    facts.link = nvml.link();
  } catch (const Error& error) {
    // What was found before the failure stays.
    const std::string clause = "this failed: " + without_stop(error.what());
    if (!facts.pinning.value) facts.pinning.reason = clause;
    facts.copies = {{}, clause};
  }
  return facts;
}

}  // namespace sluice
