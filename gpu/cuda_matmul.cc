// cuBLASLt is column-major: a row-major [rows, columns] matrix is its [columns, rows], so C^T = op(B)^T
// op(A)^T is what it is asked for, with B first.
#include "gpu/cuda_matmul.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/error.h"
#include "gpu/cuda_error.h"

namespace sluice::cuda {
namespace {

cudaDataType_t type_of(DType type) {
  switch (type) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      CHECK(false, "not a type of matrices");
  }
  return CUDA_R_32F;
}

// Owners of cuBLASLt's descriptors.
class Operation {
 public:
  explicit Operation(const Product& p) {
    check_step(cublasLtMatmulDescCreate(&value_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (!p.bias) return;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(p.precision));
  }
  ~Operation() {
    if (value_ != nullptr) cublasLtMatmulDescDestroy(value_);
  }
  Operation(Operation&& other) noexcept : value_(std::exchange(other.value_, nullptr)) {}
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    check_step(cublasLtMatmulDescSetAttribute(value_, attribute, &value, sizeof(value)));
  }
  cublasLtMatmulDesc_t get() const { return value_; }

 private:
  cublasLtMatmulDesc_t value_ = nullptr;
};

class Matrix {
 public:
  // As stored: `rows` rows, `stride` elements apart.
  Matrix(DType type, int64_t rows, int64_t columns, int64_t stride) {
    check_step(cublasLtMatrixLayoutCreate(&value_, type_of(type), static_cast<uint64_t>(columns),
                                          static_cast<uint64_t>(rows), stride));
  }
  ~Matrix() {
    if (value_ != nullptr) cublasLtMatrixLayoutDestroy(value_);
  }
  Matrix(Matrix&& other) noexcept : value_(std::exchange(other.value_, nullptr)) {}
  cublasLtMatrixLayout_t get() const { return value_; }

 private:
  cublasLtMatrixLayout_t value_ = nullptr;
};

class Preference {
 public:
  Preference() { check_step(cublasLtMatmulPreferenceCreate(&value_)); }
  ~Preference() { cublasLtMatmulPreferenceDestroy(value_); }
  Preference(const Preference&) = delete;
  template <typename T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    check_step(cublasLtMatmulPreferenceSetAttribute(value_, attribute, &value, sizeof(value)));
  }
  cublasLtMatmulPreference_t get() const { return value_; }

 private:
  cublasLtMatmulPreference_t value_ = nullptr;
};

struct Plan {
  Operation operation;
  Matrix a, b, c;
  cublasLtMatmulAlgo_t algorithm;
};

// What the beginning of every row is a multiple of, whichever row an operand begins at: at most the 16 bytes
// that algorithms ask for.
uint32_t alignment(DType type, int64_t stride) {
  const uint64_t bytes = static_cast<uint64_t>(stride) * dtype_bytes(type);
  return static_cast<uint32_t>(std::min<uint64_t>(16, bytes & (~bytes + 1)));
}

void choose_algorithm(cublasLtHandle_t handle, const Product& p, Plan& plan) {
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kMatmulWorkspaceBytes});
  // Parts of a sum over k in the result's type would round twice.
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                 uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  // cuBLASLt's A is our B.
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p.precision, p.stride_b));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.precision, p.stride_a));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.result, p.stride_c));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p.result, p.stride_c));
  // The choice may look at the bias's address: what operands promise of it, not what this call's has.
  if (p.bias)
    plan.operation.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(uintptr_t{64}));
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  check_step(cublasLtMatmulAlgoGetHeuristic(handle, plan.operation.get(), plan.b.get(), plan.a.get(),
                                            plan.c.get(), plan.c.get(), preference.get(), 1, &result,
                                            &found));
  CHECK(found == 1, "cuBLASLt knows no algorithm for a product");
  check_step(result.state);
  plan.algorithm = result.algo;
}

class LtMultiplier final : public Multiplier {
 public:
  explicit LtMultiplier(cudaStream_t stream) : stream_(stream) {
    check_setup(cublasLtCreate(&handle_), "Setting up cuBLASLt");
  }
  ~LtMultiplier() override { cublasLtDestroy(handle_); }

  void run(const Product& p, const void* a, const void* b, const void* bias, void* c,
           std::byte* workspace) override {
    Plan& plan = plan_of(p);
    if (p.bias) plan.operation.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    const float one = 1, beta = p.accumulate ? 1 : 0;
    check_step(cublasLtMatmul(handle_, plan.operation.get(), &one, b, plan.b.get(), a, plan.a.get(), &beta, c,
                              plan.c.get(), c, plan.c.get(), &plan.algorithm, workspace,
                              kMatmulWorkspaceBytes, stream_));
  }

 private:
  Plan& plan_of(const Product& p) {
    const auto known = plans_.find(p);
    if (known != plans_.end()) return known->second;
    Plan plan{
        Operation(p),
        p.transpose_a ? Matrix(p.precision, p.k, p.m, p.stride_a) : Matrix(p.precision, p.m, p.k, p.stride_a),
        p.transpose_b ? Matrix(p.precision, p.n, p.k, p.stride_b) : Matrix(p.precision, p.k, p.n, p.stride_b),
        Matrix(p.result, p.m, p.n, p.stride_c),
        {}};
    choose_algorithm(handle_, p, plan);
    return plans_.emplace(p, std::move(plan)).first->second;
  }

  cudaStream_t stream_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Product, Plan> plans_;
};

}  // namespace

std::unique_ptr<Multiplier> make_multiplier(void* stream) {
  return std::make_unique<LtMultiplier>(static_cast<cudaStream_t>(stream));
}

}  // namespace sluice::cuda
