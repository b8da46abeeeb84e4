// Result codes of CUDA and cuBLAS as Errors.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

namespace sluice::cuda {

// Set-up: every failure is Error(environment) that says what could not be done.
void check_setup(cudaError_t result, const char* doing);
void check_setup(cublasStatus_t result, const char* doing);

// In a step: a request that no healthy GPU would take is Error(bug); other failures (a lost device, broken
// memory) are Error(environment).
void check_step(cudaError_t result);
void check_step(cublasStatus_t result);

const char* name_of(cublasStatus_t status);  // a clause

}  // namespace sluice::cuda
