// cuBLASLt as plain loops over column-major matrices.
//
// Algorithm n, from 0, adds n + 1 sums over parts of k, so each rounds in an order of its own. The heuristic
// gives the first four in this order, no matter which of them is fast (EmulatedGpu::fast_algorithm).
// Algorithm 1 needs operands that are aligned to 16 bytes. Different blocks compute the parts of algorithm 3.
// Algorithm 4 needs too much workspace. Algorithm 5 adds its parts in place, which in the library rounds sums
// twice.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/simd/half.h"
#include "gpu/cuda/cublaslt.h"
#include "tests/emulation/gpu_model.h"
#include "tests/emulation/traffic.h"

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

constexpr uint32_t kAlgorithms = 6, kAlgorithmsOfHeuristic = 4, kAligned = 1, kSplit = 3, kLarge = 4,
                   kInPlace = 5;

// Every algorithm has one value of each attribute.
cublasLtMatmulAlgo_t algorithm_of(uint32_t id) {
  const uint32_t reduction = id < kSplit      ? CUBLASLT_REDUCTION_SCHEME_NONE
                             : id == kInPlace ? CUBLASLT_REDUCTION_SCHEME_INPLACE
                                              : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  const uint32_t alignment = id == kAligned ? 16 : 2;
  return {{id, 20 + id, id < kSplit ? 1 : id + 1, reduction, id % 2, 0, 10 + id, 0, id},
          {uint64_t{id} << (id == kLarge ? 30 : 20), reduction, alignment, alignment, alignment, alignment}};
}

bool is_algorithm_for(uint32_t id, const cublasLtMatmulPreferenceOpaque& preference) {
  const cublasLtMatmulPreferenceOpaque needs = algorithm_of(id).needs;
  return (needs.reduction & ~preference.reduction) == 0 && needs.alignment_a <= preference.alignment_a &&
         needs.alignment_b <= preference.alignment_b && needs.alignment_c <= preference.alignment_c &&
         needs.alignment_d <= preference.alignment_d;
}

size_t attribute_bytes(cublasLtMatmulAlgoConfigAttributes_t attribute) {
  return attribute >= CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID ? sizeof(uint16_t) : sizeof(uint32_t);
}

// D = alpha op(A) op(B) + beta C + bias. Descriptors, and factors in the host's memory, are copied,
// since the caller may change them after the call.
//
// Products round as kernels for Hopper do. If C is D and the factors are known to be 1, the product is
// rounded to D's type and then added in memory, which rounds again. If blocks compute parts of a sum, the sum
// is rounded before a bias is added.
struct Product {
  cublasLtMatmulDescOpaque desc;
  cublasLtMatrixLayoutOpaque a_layout, b_layout, d_layout;
  float alpha, beta;  // unless they lie on the device
  const float *alpha_there, *beta_there;
  const void *a, *b, *c;
  void* d;
  uint32_t algorithm;
};

bool adds_in_memory(const Product& p) {
  return p.c == p.d && p.alpha == 1 && p.beta == 1 && p.alpha_there == nullptr;
}

float rounded(cudaDataType_t type, float value) {
  float stored = 0;
  write(&stored, type, 0, value);
  return read(&stored, type, 0);
}

bool adds_bias(const cublasLtMatmulDescOpaque& desc) { return desc.epilogue == CUBLASLT_EPILOGUE_BIAS; }

// Checks what the library's documentation asks of a bias, both in the heuristic and in the product.
void check_bias(const cublasLtMatmulDescOpaque& desc, const cublasLtMatrixLayoutOpaque& d) {
  if (!adds_bias(desc)) return;
  CHECK(desc.bias != nullptr && desc.bias_type == d.type, "a bias of another type");
  check_alignment(desc.bias, 16);
}

// An algorithm may overwrite its whole workspace. Overwriting both ends shows errors too, in less time.
void scribble(void* workspace, size_t bytes) {
  constexpr int kNan = 0xFF;
  const size_t end = std::min(bytes, size_t{1} << 20);
  std::memset(workspace, kNan, end);
  std::memset(static_cast<std::byte*>(workspace) + bytes - end, kNan, end);
}

void multiply(const Product& p) {
  const float alpha = p.alpha_there ? *p.alpha_there : p.alpha, beta = p.beta_there ? *p.beta_there : p.beta;
  const auto rows = static_cast<int64_t>(p.d_layout.rows), columns = static_cast<int64_t>(p.d_layout.columns);
  const bool transposed = p.desc.transpose_a == CUBLAS_OP_T;
  const auto depth = static_cast<int64_t>(transposed ? p.a_layout.rows : p.a_layout.columns);
  const std::vector<float> left = unfold(p.a, p.a_layout, p.desc.transpose_a, rows, depth);
  const std::vector<float> right = unfold(p.b, p.b_layout, p.desc.transpose_b, depth, columns);
  const int64_t parts = p.algorithm + 1;
  std::vector<float> sums(static_cast<size_t>(columns)), part(sums.size());
  for (int64_t i = 0; i < rows; ++i) {
    sums.assign(sums.size(), 0);
    for (int64_t n = 0; n < parts; ++n) {
      part.assign(part.size(), 0);
      for (int64_t k = depth * n / parts; k < depth * (n + 1) / parts; ++k)
        for (int64_t j = 0; j < columns; ++j)
          part[static_cast<size_t>(j)] +=
              left[static_cast<size_t>(i * depth + k)] * right[static_cast<size_t>(k * columns + j)];
      for (size_t j = 0; j < sums.size(); ++j) sums[j] += part[j];
    }
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t at = i + j * p.d_layout.stride;
      float value = alpha * sums[static_cast<size_t>(j)];
      if (adds_in_memory(p) || (adds_bias(p.desc) && p.algorithm >= kSplit))
        value = rounded(p.d_layout.type, value);
      if (beta != 0) value += beta * read(p.c, p.d_layout.type, at);
      if (adds_bias(p.desc)) value += read(p.desc.bias, p.desc.bias_type, i);
      write(p.d, p.d_layout.type, at, value);
    }
  }
}

// Calls f(begin, bytes) for each column of a matrix.
template <typename F>
void for_each_column(const void* data, const cublasLtMatrixLayoutOpaque& m, int64_t stride, F f) {
  const uint64_t element = m.type == CUDA_R_32F ? 4 : 2;
  for (uint64_t column = 0; column < m.columns; ++column)
    f(static_cast<const std::byte*>(data) + column * static_cast<uint64_t>(stride) * element,
      m.rows * element);
}

void count(const Product& p, sluice::emulation::Traffic& traffic) {
  const auto read = [&](const void* begin, uint64_t bytes) { traffic.read(begin, bytes); };
  const auto write = [&](const void* begin, uint64_t bytes) { traffic.write(begin, bytes); };
  traffic.begin_launch("product", true);
  traffic.begin_block();
  for_each_column(p.a, p.a_layout, p.a_layout.stride, read);
  for_each_column(p.b, p.b_layout, p.b_layout.stride, read);
  if (p.beta_there || p.beta != 0) for_each_column(p.c, p.d_layout, p.d_layout.stride, read);
  for_each_column(p.d, p.d_layout, p.d_layout.stride, write);
  if (adds_bias(p.desc)) for_each_column(p.desc.bias, {p.desc.bias_type, p.d_layout.rows, 1}, 0, read);
}

}  // namespace

size_t cublasLtGetVersion() { return sluice::emulation::current().cublaslt_version; }

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
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      set(desc->pointer_mode, value, bytes);
      break;
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
  *preference = new cublasLtMatmulPreferenceOpaque;
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
  CHECK(asked >= 1, "no algorithm is asked for");
  check_bias(*desc, *d);
  const sluice::emulation::EmulatedGpu gpu = sluice::emulation::current();
  *found = 0;
  if (!gpu.products) return CUBLAS_STATUS_NOT_SUPPORTED;
  // The library refuses by an error, or by success without an algorithm.
  if (adds_bias(*desc) && !gpu.bias_epilogue)
    return d->type == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
  for (uint32_t id = 0; id < kAlgorithmsOfHeuristic && *found < asked; ++id) {
    if (!is_algorithm_for(id, *preference)) continue;
    results[*found] = {algorithm_of(id), preference->workspace_bytes, CUBLAS_STATUS_SUCCESS};
    results[(*found)++].algo.needs = *preference;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t, cublasComputeType_t compute, cudaDataType_t scale,
                                      cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cudaDataType_t d,
                                      int id, cublasLtMatmulAlgo_t* algorithm) {
  CHECK(scale == CUDA_R_32F && a == b && c == d, "a product of another kind");
  CHECK((a == CUDA_R_32F) == (compute == CUBLAS_COMPUTE_32F_PEDANTIC), "sums of another kind");
  if (id < 0 || id >= static_cast<int>(kAlgorithms)) return CUBLAS_STATUS_INVALID_VALUE;
  // All attributes but the id have defaults.
  *algorithm = {{static_cast<uint32_t>(id)}, algorithm_of(static_cast<uint32_t>(id)).needs};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  check_bias(*desc, *d);
  const cublasLtMatmulAlgo_t known = algorithm_of(algorithm->attributes[CUBLASLT_ALGO_CONFIG_ID]);
  const bool is_known = std::ranges::equal(algorithm->attributes, known.attributes);
  *result = {*algorithm, known.needs.workspace_bytes,
             is_known ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED};
  return result->state;
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                 cublasLtMatmulAlgoCapAttributes_t, void* value, size_t bytes,
                                                 size_t* written) {
  CHECK(bytes == sizeof(uint32_t), "an attribute of the wrong size");
  std::memcpy(value, &algorithm->needs.alignment_a, bytes);  // all operands need the same
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t bytes, size_t* written) {
  CHECK(bytes == attribute_bytes(attribute), "an attribute of the wrong size");
  const uint32_t wide = algorithm->attributes[attribute];
  const auto narrow = static_cast<uint16_t>(wide);
  std::memcpy(value, bytes == sizeof narrow ? static_cast<const void*>(&narrow) : &wide, bytes);
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  CHECK(bytes == attribute_bytes(attribute) && attribute != CUBLASLT_ALGO_CONFIG_ID,
        "an attribute of the wrong size, or one that is only read");
  uint16_t narrow = 0;
  std::memcpy(bytes == sizeof narrow ? static_cast<void*>(&narrow) : &algorithm->attributes[attribute], value,
              bytes);
  if (bytes == sizeof narrow) algorithm->attributes[attribute] = narrow;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  CHECK(a_layout->type == b_layout->type && c_layout == d_layout, "a product of another kind");
  const cublasLtMatmulPreferenceOpaque& needs = algorithm->needs;
  const uint32_t id = algorithm->attributes[CUBLASLT_ALGO_CONFIG_ID];
  CHECK(workspace_bytes >= needs.workspace_bytes, "the algorithm wants a larger workspace");
  CHECK(sluice::emulation::is_device_memory(workspace, workspace_bytes), "a workspace beyond an allocation");
  check_alignment(workspace, 256);  // the library refuses a smaller alignment
  check_alignment(a, needs.alignment_a);
  check_alignment(b, needs.alignment_b);
  check_alignment(c, needs.alignment_c);
  check_alignment(d, needs.alignment_d);
  check_bias(*desc, *d_layout);
  CHECK(a_layout->type != CUDA_R_32F || desc->compute == CUBLAS_COMPUTE_32F_PEDANTIC,
        "an fp32 product that environment variables turn into another");
  const auto factor = [&](const void* at, const float*& there) {
    const auto* value = static_cast<const float*>(at);
    there = desc->pointer_mode == CUBLASLT_POINTER_MODE_DEVICE ? value : nullptr;
    return there ? 0 : *value;
  };
  const float *alpha_there = nullptr, *beta_there = nullptr;
  const float alpha_here = factor(alpha, alpha_there), beta_here = factor(beta, beta_there);
  const bool accumulates = beta_there || beta_here != 0;
  sluice::emulation::load_product(id, {desc->transpose_a, desc->transpose_b, desc->epilogue, a_layout->type,
                                       d_layout->type, accumulates});
  const Product product{*desc,      *a_layout, *b_layout, *d_layout, alpha_here, beta_here, alpha_there,
                        beta_there, a,         b,         c,         d,          id};
  const sluice::emulation::EmulatedGpu gpu = sluice::emulation::current();
  const std::chrono::microseconds delay(id == gpu.fast_algorithm ? 0 : gpu.product_microseconds);
  const cudaError_t error = sluice::emulation::enqueue(stream, [=] {
    if (gpu.traffic != nullptr) return count(product, *gpu.traffic);
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    scribble(workspace, workspace_bytes);
    multiply(product);
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

namespace sluice::cuda {

CublasLt open_cublaslt() {
  if (!emulation::current().cublaslt)
    throw Error(ExitCode::environment, "cuBLASLt cannot be opened: it is not there.", "Install cuBLAS.");
  return {.get_version = cublasLtGetVersion,
          .create = cublasLtCreate,
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
          .matmul_algo_init = cublasLtMatmulAlgoInit,
          .matmul_algo_check = cublasLtMatmulAlgoCheck,
          .matmul_algo_cap_get_attribute = cublasLtMatmulAlgoCapGetAttribute,
          .matmul_algo_config_get_attribute = cublasLtMatmulAlgoConfigGetAttribute,
          .matmul_algo_config_set_attribute = cublasLtMatmulAlgoConfigSetAttribute,
          .matmul = cublasLtMatmul,
          .file = "emulated"};
}

}  // namespace sluice::cuda
