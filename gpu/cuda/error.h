// Result codes of CUDA and cuBLAS as Errors.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

namespace sluice::cuda {

// Set-up: everything that is no success is an environment Error that says what could not be done.
void check_setup(cudaError_t result, const char* doing);
void check_setup(cublasStatus_t result, const char* doing);

// In a step: a request that no healthy GPU would take is a bug of ours; the rest (a device that was lost,
// memory that broke) is the environment.
void check_step(cudaError_t result);
void check_step(cublasStatus_t result);

}  // namespace sluice::cuda
