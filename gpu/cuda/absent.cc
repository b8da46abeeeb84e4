// Stands in for the cuda device in builds without it.
#include "engine/base/error.h"
#include "gpu/cuda/device.h"
#include "gpu/cuda/facts.h"
#include "gpu/cuda/rates.h"

namespace sluice {

CudaStatus cuda_status(int) {
  CudaStatus status;
  status.reason =
      "This build has no cuda device: the CUDA Toolkit was not found when it was configured, SLUICE_CUDA "
      "left the device out, or it is a `local` build of a machine without a GPU.";
  status.remedy =
      "Build with tools/build.sh release where the CUDA Toolkit is, in a fresh build folder, or train on "
      "--device cpu.";
  return status;
}

std::vector<uint64_t> visible_gpus() { return {}; }

std::vector<std::string> missing_libraries() { return {}; }

Known<std::string> cublas_file() { return {{}, "this build has no cuda device"}; }

CudaFacts cuda_facts(const CudaFactsOptions& options) { return {.status = cuda_status(options.ordinal)}; }

std::unique_ptr<Device> make_cuda_device(int ordinal, const CudaOptions&) {
  const CudaStatus status = cuda_status(ordinal);
  throw Error(ExitCode::environment, status.reason, status.remedy);
}

double cuda_matmul_rate(const MatmulMeasurement& measurement) {
  const CudaStatus status = cuda_status(measurement.ordinal);
  throw Error(ExitCode::environment, status.reason, status.remedy);
}

TimedAlgorithms cuda_time_algorithms(const AlgorithmMeasurement& measurement) {
  const CudaStatus status = cuda_status(measurement.ordinal);
  throw Error(ExitCode::environment, status.reason, status.remedy);
}

}  // namespace sluice
