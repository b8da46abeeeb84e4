#include "gpu/cuda/cublaslt.h"

#include <string>

#include "engine/base/error.h"
#include "engine/base/shared_library.h"

namespace sluice::cuda {

CublasLt open_cublaslt() {
  const std::string major = std::to_string(CUBLAS_VER_MAJOR), name = "libcublasLt.so." + major;
  const std::string remedy = "Install cuBLAS of CUDA " + major +
                             " (Debian and Ubuntu: the package libcublas-" + major +
                             "-0), or name its folder in LD_LIBRARY_PATH.";
  SharedLibrary library(name);
  CublasLt lt;
  library.find(lt.get_version, "cublasLtGetVersion");
  library.find(lt.create, "cublasLtCreate");
  library.find(lt.destroy, "cublasLtDestroy");
  library.find(lt.matmul_desc_create, "cublasLtMatmulDescCreate");
  library.find(lt.matmul_desc_destroy, "cublasLtMatmulDescDestroy");
  library.find(lt.matmul_desc_set_attribute, "cublasLtMatmulDescSetAttribute");
  library.find(lt.matrix_layout_create, "cublasLtMatrixLayoutCreate");
  library.find(lt.matrix_layout_destroy, "cublasLtMatrixLayoutDestroy");
  library.find(lt.matmul_preference_create, "cublasLtMatmulPreferenceCreate");
  library.find(lt.matmul_preference_destroy, "cublasLtMatmulPreferenceDestroy");
  library.find(lt.matmul_preference_set_attribute, "cublasLtMatmulPreferenceSetAttribute");
  library.find(lt.matmul_algo_get_heuristic, "cublasLtMatmulAlgoGetHeuristic");
  library.find(lt.matmul_algo_init, "cublasLtMatmulAlgoInit");
  library.find(lt.matmul_algo_check, "cublasLtMatmulAlgoCheck");
  library.find(lt.matmul_algo_cap_get_attribute, "cublasLtMatmulAlgoCapGetAttribute");
  library.find(lt.matmul_algo_config_get_attribute, "cublasLtMatmulAlgoConfigGetAttribute");
  library.find(lt.matmul_algo_config_set_attribute, "cublasLtMatmulAlgoConfigSetAttribute");
  library.find(lt.matmul, "cublasLtMatmul");
  if (!library.failure().empty())
    throw Error(ExitCode::environment, "cuBLASLt cannot be opened: " + library.failure() + ".", remedy);
  library.keep_open();
  lt.file = library.file();
  return lt;
}

}  // namespace sluice::cuda
