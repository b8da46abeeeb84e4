// cuBLASLt as plain loops over column-major matrices.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/simd/half.h"
#include "gpu/cuda/cublaslt.h"
#include "tests/emulation/gpu_model.h"

namespace {

using sluice::Bf16, sluice::F16, sluice::to_float;

// Copies an attribute's value into `to`, whose size must be `bytes`.
template <typename T>
void set(T& to, const void* value, size_t bytes) {
  CHECK(bytes == sizeof(T), "an attribute of the wrong size");
  std::memcpy(&to, value, bytes);
}

float read(const void* data, cudaDataType_t type, int64_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[i];
  if (type == CUDA_R_16F) return to_float(static_cast<const F16*>(data)[i]);
  return to_float(static_cast<const Bf16*>(data)[i]);
}

void write(void* data, cudaDataType_t type, int64_t i, float value) {
  if (type == CUDA_R_32F)
    static_cast<float*>(data)[i] = value;
  else if (type == CUDA_R_16F)
    static_cast<F16*>(data)[i] = sluice::to_f16(value);
  else
    static_cast<Bf16*>(data)[i] = sluice::to_bf16(value);
}

void check_alignment(const void* data, uint32_t alignment) {
  CHECK(reinterpret_cast<uintptr_t>(data) % alignment == 0, "an operand lies worse than the preference said");
}

// op(M) as fp32, [rows, columns] row by row.
std::vector<float> unfold(const void* data, const cublasLtMatrixLayoutOpaque& m, cublasOperation_t operation,
                          int64_t rows, int64_t columns) {
  const bool transposed = operation == CUBLAS_OP_T;
  CHECK(static_cast<int64_t>(m.rows) == (transposed ? columns : rows), "rows of a matrix do not fit");
  CHECK(static_cast<int64_t>(m.columns) == (transposed ? rows : columns), "columns of a matrix do not fit");
  std::vector<float> out(static_cast<size_t>(rows * columns));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      out[static_cast<size_t>(i * columns + j)] =
          read(data, m.type, transposed ? j + i * m.stride : i + j * m.stride);
  return out;
}

// D = epilogue(alpha op(A) op(B) + beta D + bias). Descriptors and scalars are copied, since the caller may
// change them after the call.
struct Product {
  cublasLtMatmulDescOpaque desc;
  cublasLtMatrixLayoutOpaque a_layout, b_layout, d_layout;
  float alpha, beta;
  const void *a, *b;
  void* d;
};

bool adds_bias(const cublasLtMatmulDescOpaque& desc) { return (desc.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
bool applies_gelu(const cublasLtMatmulDescOpaque& desc) {
  return (desc.epilogue & CUBLASLT_EPILOGUE_GELU_AUX) == CUBLASLT_EPILOGUE_GELU_AUX;
}

// Checks what the library's documentation asks of the operands of bias and gelu, both in the heuristic and in
// the product.
void check_epilogue(const cublasLtMatmulDescOpaque& desc, const cublasLtMatrixLayoutOpaque& d) {
  if (adds_bias(desc)) {
    CHECK(desc.bias != nullptr && desc.bias_type == d.type, "a bias of another type");
    check_alignment(desc.bias, 16);
  }
  if (applies_gelu(desc)) {
    CHECK(desc.aux != nullptr && desc.aux_type == d.type, "gelu's input of another type");
    CHECK(desc.aux_stride % 8 == 0 && desc.aux_stride >= static_cast<int64_t>(d.rows),
          "gelu's input has columns that are not a multiple of 8 elements apart, or overlap");
    check_alignment(desc.aux, 16);
  }
}

float gelu(float x) { return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x))); }

// An algorithm may overwrite its whole workspace. Overwriting both ends shows errors too, in less time.
void scribble(void* workspace, size_t bytes) {
  constexpr int kNan = 0xFF;
  const size_t end = std::min(bytes, size_t{1} << 20);
  std::memset(workspace, kNan, end);
  std::memset(static_cast<std::byte*>(workspace) + bytes - end, kNan, end);
}

void multiply(const Product& p) {
  const auto rows = static_cast<int64_t>(p.d_layout.rows), columns = static_cast<int64_t>(p.d_layout.columns);
  const bool transposed = p.desc.transpose_a == CUBLAS_OP_T;
  const auto depth = static_cast<int64_t>(transposed ? p.a_layout.rows : p.a_layout.columns);
  const std::vector<float> left = unfold(p.a, p.a_layout, p.desc.transpose_a, rows, depth);
  const std::vector<float> right = unfold(p.b, p.b_layout, p.desc.transpose_b, depth, columns);
  std::vector<float> sums(static_cast<size_t>(columns));
  for (int64_t i = 0; i < rows; ++i) {
    sums.assign(sums.size(), 0);
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t j = 0; j < columns; ++j)
        sums[static_cast<size_t>(j)] +=
            left[static_cast<size_t>(i * depth + k)] * right[static_cast<size_t>(k * columns + j)];
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t at = i + j * p.d_layout.stride;
      float value = p.alpha * sums[static_cast<size_t>(j)];
      if (p.beta != 0) value += p.beta * read(p.d, p.d_layout.type, at);
      if (adds_bias(p.desc)) value += read(p.desc.bias, p.desc.bias_type, i);
      if (applies_gelu(p.desc)) {
        write(p.desc.aux, p.desc.aux_type, i + j * p.desc.aux_stride, value);
        value = gelu(value);
      }
      write(p.d, p.d_layout.type, at, value);
    }
  }
}

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new int(0);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  CHECK(scale == CUDA_R_32F, "factors are fp32");
  *desc = new cublasLtMatmulDescOpaque{.compute = compute};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      set(desc->transpose_a, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      set(desc->transpose_b, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      set(desc->epilogue, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      set(desc->bias, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      set(desc->bias_type, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      set(desc->aux, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      set(desc->aux_stride, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      set(desc->aux_type, value, bytes);
      break;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t stride) {
  CHECK(rows > 0 && columns > 0 && stride >= static_cast<int64_t>(rows), "columns of a matrix overlap");
  *layout = new cublasLtMatrixLayoutOpaque{type, rows, columns, stride};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulAlgo_t;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      set(preference->workspace_bytes, value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      set(preference->reduction, value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      set(preference->alignment_a, value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      set(preference->alignment_b, value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      set(preference->alignment_c, value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      set(preference->alignment_d, value, bytes);
      break;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  CHECK(asked == 1, "the first algorithm is taken");
  check_epilogue(*desc, *d);
  const sluice::emulation::EmulatedGpu gpu = sluice::emulation::current();
  *found = 0;
  if (!gpu.products) return CUBLAS_STATUS_NOT_SUPPORTED;
  // The library refuses by an error, or by success without an algorithm.
  if (applies_gelu(*desc) && !gpu.gelu_epilogue)
    return adds_bias(*desc) ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_NOT_SUPPORTED;
  if (adds_bias(*desc) && !gpu.bias_epilogue) return CUBLAS_STATUS_SUCCESS;
  CHECK(preference->reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, "sums of parts are fp32");
  results[0] = {*preference, CUBLAS_STATUS_SUCCESS};
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  CHECK(a_layout->type == b_layout->type && c == d && c_layout == d_layout, "a product of another kind");
  CHECK(workspace_bytes >= algorithm->workspace_bytes, "the algorithm wants a larger workspace");
  CHECK(sluice::emulation::is_device_memory(workspace, workspace_bytes), "a workspace beyond an allocation");
  check_alignment(workspace, 256);  // the library refuses less
  check_alignment(a, algorithm->alignment_a);
  check_alignment(b, algorithm->alignment_b);
  check_alignment(c, algorithm->alignment_c);
  check_alignment(d, algorithm->alignment_d);
  check_epilogue(*desc, *d_layout);
  CHECK(a_layout->type != CUDA_R_32F || desc->compute == CUBLAS_COMPUTE_32F_PEDANTIC,
        "an fp32 product that environment variables turn into another");
  const bool accumulates = *static_cast<const float*>(beta) != 0;
  sluice::emulation::load_product(
      {desc->transpose_a, desc->transpose_b, desc->epilogue, a_layout->type, d_layout->type, accumulates});
  const Product product{*desc,
                        *a_layout,
                        *b_layout,
                        *d_layout,
                        *static_cast<const float*>(alpha),
                        *static_cast<const float*>(beta),
                        a,
                        b,
                        d};
  const cudaError_t error = sluice::emulation::enqueue(stream, [=] {
    scribble(workspace, workspace_bytes);
    multiply(product);
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

namespace sluice::cuda {

CublasLt open_cublaslt() {
  if (!emulation::current().cublaslt)
    throw Error(ExitCode::environment, "cuBLASLt cannot be opened: it is not there.", "Install cuBLAS.");
  return {.create = cublasLtCreate,
          .destroy = cublasLtDestroy,
          .matmul_desc_create = cublasLtMatmulDescCreate,
          .matmul_desc_destroy = cublasLtMatmulDescDestroy,
          .matmul_desc_set_attribute = cublasLtMatmulDescSetAttribute,
          .matrix_layout_create = cublasLtMatrixLayoutCreate,
          .matrix_layout_destroy = cublasLtMatrixLayoutDestroy,
          .matmul_preference_create = cublasLtMatmulPreferenceCreate,
          .matmul_preference_destroy = cublasLtMatmulPreferenceDestroy,
          .matmul_preference_set_attribute = cublasLtMatmulPreferenceSetAttribute,
          .matmul_algo_get_heuristic = cublasLtMatmulAlgoGetHeuristic,
          .matmul = cublasLtMatmul,
          .file = "emulated"};
}

}  // namespace sluice::cuda
