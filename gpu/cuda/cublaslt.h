// cuBLASLt, opened at run time. Linked, its relocations would cost every start of the program, whatever the
// device, 150 MB of resident memory and 0.1 s.
//
// The table holds the library's functions by their names without the prefix cublasLt. The tests' emulation
// fills it from its own functions (tests/emulation/cublaslt_emulation.cc). Called at set-up by
// gpu/cuda_matmul.
#pragma once

#include "gpu/cuda/error.h"

namespace sluice::cuda {

struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmulDescCreate) matmul_desc_create;
  decltype(&cublasLtMatmulDescDestroy) matmul_desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) matmul_desc_set_attribute;
  decltype(&cublasLtMatrixLayoutCreate) matrix_layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) matrix_layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) matmul_preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) matmul_preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) matmul_preference_set_attribute;
  decltype(&cublasLtMatmulAlgoGetHeuristic) matmul_algo_get_heuristic;
  decltype(&cublasLtMatmul) matmul;
};

// The major version that this build's toolkit has, searched for as every shared library is; the executable's
// RUNPATH names the toolkit's folder. Throws Error (environment) if it or one of its functions is missing. It
// is never closed: the library does not promise that this is safe.
CublasLt open_cublaslt();

}  // namespace sluice::cuda
