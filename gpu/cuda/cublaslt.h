// cuBLASLt, opened at run time. If it were linked, its relocations would cost every start of the command,
// whatever the device, 150 MB of resident memory and 0.1 s.
//
// The table holds the library's functions by their names without the prefix cublasLt. The tests' emulation
// fills it from its own functions (tests/emulation/cublaslt_emulation.cc). Callers: set-up code.
#pragma once

#include <string>

#include "gpu/cuda/error.h"

namespace sluice::cuda {

struct CublasLt {
  decltype(&cublasLtGetVersion) get_version;
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
  decltype(&cublasLtMatmulAlgoInit) matmul_algo_init;
  decltype(&cublasLtMatmulAlgoCheck) matmul_algo_check;
  decltype(&cublasLtMatmulAlgoCapGetAttribute) matmul_algo_cap_get_attribute;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) matmul_algo_config_get_attribute;
  decltype(&cublasLtMatmulAlgoConfigSetAttribute) matmul_algo_config_set_attribute;
  decltype(&cublasLtMatmul) matmul;
  std::string file;  // of the library
};

// Opens the library in the major version that this build's toolkit has. The loader searches for it as for
// every shared library; the command's RUNPATH names the toolkit's folder. Throws Error (environment) if the
// library or one of its functions is missing. The library is never closed, since it does not promise that
// this is safe.
CublasLt open_cublaslt();

}  // namespace sluice::cuda
