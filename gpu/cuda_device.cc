#include "gpu/cuda_device.h"

#include "engine/error.h"
#include "gpu/cuda_error.h"
#include "gpu/cuda_matmul.h"
#include "gpu/cuda_ops.h"

namespace sluice {
namespace {

constexpr int kCapabilityMin = 75;  // the least that kernels are built for

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

CudaStatus refused(CudaStatus status, const std::string& reason, const std::string& remedy) {
  status.reason = reason;
  status.remedy = remedy;
  return status;
}

// The device's ops; what the GPU cannot do is refused when workspaces are asked for, before the first step.
class CudaDevice final : public Device {
 public:
  CudaDevice(void* stream, const CudaStatus& status)
      : bf16_(status.bf16),
        multiplier_(cuda::make_multiplier(stream)),
        ops_(cuda::make_ops_device({stream, status.multiprocessors}, *multiplier_)) {}

  void forward(const OpCall& call) override { ops_->forward(call); }
  void backward(const OpCall& call) override { ops_->backward(call); }
  uint64_t workspace_bytes(const OpShapes& shapes, Pass pass) const override {
    if (shapes.precision == DType::bf16 && !bf16_)
      throw Error(ExitCode::environment, "The GPU has no bf16: that begins with compute capability 8.0.",
                  "Train with --precision fp16.");
    return ops_->workspace_bytes(shapes, pass);
  }
  void prepare(const OpShapes& shapes, Pass pass) override { ops_->prepare(shapes, pass); }
  void warm_up(std::span<std::byte> arena) override { ops_->warm_up(arena); }
  void round(const float* accumulator, void* gradient, DType precision, uint64_t elements,
             double* block_sums) override {
    ops_->round(accumulator, gradient, precision, elements, block_sums);
  }
  void optimize(const AdamWRange& range, const StepScalars::Update* update) override {
    ops_->optimize(range, update);
  }
  void zero(void* data, uint64_t bytes) override { ops_->zero(data, bytes); }

 private:
  bool bf16_;
  std::unique_ptr<cuda::Multiplier> multiplier_;
  std::unique_ptr<Device> ops_;
};

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
        "Choose --device cuda:0 to cuda:" + std::to_string(count - 1) + ".");
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
                       std::to_string(properties.minor) + ", 7.5 is needed.",
                   "Use a newer GPU, or train on --device cpu.");
  status.available = true;
  return status;
}

std::unique_ptr<Device> make_cuda_device(int ordinal, void* stream) {
  const CudaStatus status = cuda_status(ordinal);
  if (!status.available) throw Error(ExitCode::environment, status.reason, status.remedy);
  cuda::check_setup(cudaSetDevice(ordinal), "Choosing the GPU");
  return std::make_unique<CudaDevice>(stream, status);
}

uint64_t cuda_workspace_bytes(const OpShapes& shapes, Pass pass) {
  return cuda::workspace_bytes(shapes, pass);
}

}  // namespace sluice
