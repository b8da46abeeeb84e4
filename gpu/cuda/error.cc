#include "gpu/cuda/error.h"

#include <string>

#include "engine/base/error.h"

namespace sluice::cuda {
namespace {

constexpr const char* kSeeDriver =
    "Check the GPU with nvidia-smi: another process may hold its memory, or the driver may be too old for "
    "this build's CUDA.";
constexpr const char* kSeeGpu = "Check the GPU with nvidia-smi and the kernel's log.";
constexpr const char* kReport =
    "This is a bug in Sluice: report it with the command line, and with what it says under "
    "CUDA_LAUNCH_BLOCKING=1, which names the op.";

// Whether Sluice is at fault: a request that no GPU would take, or an error in a kernel.
bool is_ours(cudaError_t result) {
  switch (result) {
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorAssert:
    case cudaErrorLaunchFailure:
      return true;
    default:
      return false;
  }
}

}  // namespace

// cuBLASLt's own function for this is there only where the library has been opened.
const char* name_of(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "not initialised";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "out of memory";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "invalid value";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "not for the GPU's compute capability";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "execution failed";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "internal error";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "not supported";
    default:
      return "an error without a name";
  }
}

void check_setup(cudaError_t result, const char* doing) {
  if (result == cudaSuccess) return;
  if (result == cudaErrorNoKernelImageForDevice || result == cudaErrorInvalidDeviceFunction)
    throw Error(ExitCode::environment, "This build has no kernels for the GPU's compute capability.",
                "Configure with -DSLUICE_CUDA_ARCHITECTURES=all and build again, or train on --device cpu.");
  throw Error(ExitCode::environment, std::string(doing) + " failed: " + cudaGetErrorString(result) + ".",
              kSeeDriver);
}

void check_setup(cublasStatus_t result, const char* doing) {
  if (result == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ExitCode::environment, std::string(doing) + " failed: " + name_of(result) + ".", kSeeDriver);
}

void check_step(cudaError_t result) {
  if (result == cudaSuccess) return;
  const std::string what = std::string("The GPU failed in a step: ") + cudaGetErrorString(result) + ".";
  if (is_ours(result)) throw Error(ExitCode::bug, what, kReport);
  throw Error::in_step(ExitCode::environment, what, kSeeGpu);
}

void check_step(cublasStatus_t result) {
  if (result == CUBLAS_STATUS_SUCCESS) return;
  const std::string what = std::string("A matrix product failed in a step: ") + name_of(result) + ".";
  const bool environment = result == CUBLAS_STATUS_EXECUTION_FAILED || result == CUBLAS_STATUS_ALLOC_FAILED ||
                           result == CUBLAS_STATUS_NOT_INITIALIZED || result == CUBLAS_STATUS_INTERNAL_ERROR;
  throw environment ? Error::in_step(ExitCode::environment, what, kSeeGpu)
                    : Error(ExitCode::bug, what, kReport);
}

}  // namespace sluice::cuda
