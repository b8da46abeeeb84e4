#include "gpu/cuda_cublaslt.h"

#include <dlfcn.h>

#include <string>

#include "engine/error.h"

namespace sluice::cuda {

CublasLt open_cublaslt() {
  const std::string major = std::to_string(CUBLAS_VER_MAJOR), name = "libcublasLt.so." + major;
  const std::string remedy = "Install cuBLAS of CUDA " + major +
                             " (Debian and Ubuntu: the package libcublas-" + major +
                             "-0), or name its folder in LD_LIBRARY_PATH.";
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw Error(ExitCode::environment, std::string("cuBLASLt cannot be opened: ") + dlerror() + ".", remedy);
  const auto find = [&]<typename F>(F*& function, const char* symbol) {
    function = reinterpret_cast<F*>(dlsym(library, symbol));
    if (function == nullptr)
      throw Error(ExitCode::environment, "The library " + name + " has no " + symbol + ".", remedy);
  };
  CublasLt lt;
  find(lt.create, "cublasLtCreate");
  find(lt.destroy, "cublasLtDestroy");
  find(lt.matmul_desc_create, "cublasLtMatmulDescCreate");
  find(lt.matmul_desc_destroy, "cublasLtMatmulDescDestroy");
  find(lt.matmul_desc_set_attribute, "cublasLtMatmulDescSetAttribute");
  find(lt.matrix_layout_create, "cublasLtMatrixLayoutCreate");
  find(lt.matrix_layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(lt.matmul_preference_create, "cublasLtMatmulPreferenceCreate");
  find(lt.matmul_preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(lt.matmul_preference_set_attribute, "cublasLtMatmulPreferenceSetAttribute");
  find(lt.matmul_algo_get_heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(lt.matmul, "cublasLtMatmul");
  return lt;
}

}  // namespace sluice::cuda
