// cuBLASLt's functions as the cuda device calls them: the library is opened at the first call. Linked, it
// would be loaded by every run of the command, whose memory it adds 150 MB to, and missed where there is no
// GPU.
#include <dlfcn.h>

#include <string>

#include "engine/error.h"
#include "gpu/cuda_error.h"

namespace {

void* open_library() {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  throw sluice::Error(sluice::ExitCode::environment,
                      std::string("cuBLAS cannot be opened: ") + dlerror() + ".",
                      "Install CUDA " + std::to_string(CUBLAS_VER_MAJOR) +
                          "'s cuBLAS, or name its folder in LD_LIBRARY_PATH.");
}

void* find(const char* name) {
  static void* const library = open_library();
  void* const function = dlsym(library, name);
  CHECK(function != nullptr, "cuBLASLt lacks a function that its header has");
  return function;
}

// Calls the library's function of the caller's name and type.
template <auto kCaller, typename... Arguments>
auto forward(const char* name, Arguments... arguments) {
  static const auto function = reinterpret_cast<decltype(kCaller)>(find(name));
  return function(arguments...);
}

}  // namespace

const char* cublasLtGetStatusName(cublasStatus_t status) {
  return forward<&cublasLtGetStatusName>("cublasLtGetStatusName", status);
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return forward<&cublasLtCreate>("cublasLtCreate", handle);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return forward<&cublasLtDestroy>("cublasLtDestroy", handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return forward<&cublasLtMatmulDescCreate>("cublasLtMatmulDescCreate", desc, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  return forward<&cublasLtMatmulDescDestroy>("cublasLtMatmulDescDestroy", desc);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
  return forward<&cublasLtMatmulDescSetAttribute>("cublasLtMatmulDescSetAttribute", desc, attribute, value,
                                                  bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t stride) {
  return forward<&cublasLtMatrixLayoutCreate>("cublasLtMatrixLayoutCreate", layout, type, rows, columns,
                                              stride);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return forward<&cublasLtMatrixLayoutDestroy>("cublasLtMatrixLayoutDestroy", layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return forward<&cublasLtMatmulPreferenceCreate>("cublasLtMatmulPreferenceCreate", preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return forward<&cublasLtMatmulPreferenceDestroy>("cublasLtMatmulPreferenceDestroy", preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  return forward<&cublasLtMatmulPreferenceSetAttribute>("cublasLtMatmulPreferenceSetAttribute", preference,
                                                        attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  return forward<&cublasLtMatmulAlgoGetHeuristic>("cublasLtMatmulAlgoGetHeuristic", handle, desc, a, b, c, d,
                                                  preference, asked, results, found);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  return forward<&cublasLtMatmul>("cublasLtMatmul", handle, desc, alpha, a, a_layout, b, b_layout, beta, c,
                                  c_layout, d, d_layout, algorithm, workspace, workspace_bytes, stream);
}
