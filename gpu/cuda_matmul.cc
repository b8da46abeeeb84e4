// cuBLASLt is column-major: a row-major [rows, columns] matrix is its [columns, rows], so C^T = op(B)^T
// op(A)^T is what it is asked for, with B first.
#include "gpu/cuda_matmul.h"

#include <algorithm>
#include <map>
#include <string>
#include <type_traits>
#include <utility>

#include "engine/error.h"
#include "gpu/cuda_cublaslt.h"

namespace sluice::cuda {
namespace {

constexpr const char* kChoosing = "Choosing how to multiply matrices";

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

// A handle of the library, with the function that destroys it.
template <typename Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, cublasStatus_t (*)(Handle)>;

struct Plan {
  Owned<cublasLtMatmulDesc_t> operation;
  Owned<cublasLtMatrixLayout_t> a, b, c;
  cublasLtMatmulAlgo_t algorithm;
};

struct Rows {
  int64_t rows, columns;
};
Rows stored_a(const Product& p) { return p.transpose_a ? Rows{p.k, p.m} : Rows{p.m, p.k}; }
Rows stored_b(const Product& p) { return p.transpose_b ? Rows{p.n, p.k} : Rows{p.k, p.n}; }

// What the beginning of every row is a multiple of, whichever row an operand begins at: at most the 16 bytes
// that algorithms ask for.
uint32_t alignment(DType type, int64_t stride) {
  const uint64_t bytes = static_cast<uint64_t>(stride) * dtype_bytes(type);
  return static_cast<uint32_t>(std::min<uint64_t>(16, bytes & (~bytes + 1)));
}

uint64_t aligned(uint64_t address, uint64_t alignment) {
  return (address + alignment - 1) / alignment * alignment;
}

// Of the product's largest operand.
uint64_t operand_bytes_max(const Product& p) {
  const auto bytes = [](int64_t rows, int64_t stride, DType type) {
    return static_cast<uint64_t>(rows * stride) * dtype_bytes(type);
  };
  return std::max({bytes(stored_a(p).rows, p.stride_a, p.precision),
                   bytes(stored_b(p).rows, p.stride_b, p.precision), bytes(p.m, p.stride_c, p.result),
                   bytes(1, p.n, p.precision)});
}

// Products that differ only in `accumulate` share a plan: it is an argument of the call.
Product key_of(Product product) {
  product.accumulate = false;
  return product;
}

class LtMultiplier final : public Multiplier {
 public:
  explicit LtMultiplier(cudaStream_t stream)
      : stream_(stream), lt_(open_cublaslt()), handle_(nullptr, lt_.destroy) {
    cublasLtHandle_t handle = nullptr;
    check_setup(lt_.create(&handle), "Setting up cuBLASLt");
    handle_.reset(handle);
  }

  void prepare(const Product& product) override {
    const Product p = key_of(product);
    if (plans_.contains(p)) return;
    const Rows a = stored_a(p), b = stored_b(p);
    Plan plan{make_operation(p),
              make_matrix(p.precision, a.rows, a.columns, p.stride_a),
              make_matrix(p.precision, b.rows, b.columns, p.stride_b),
              make_matrix(p.result, p.m, p.n, p.stride_c),
              {}};
    choose_algorithm(p, plan);
    plans_.emplace(p, std::move(plan));
  }

  void warm_up(std::span<std::byte> scratch) override {
    CHECK(reinterpret_cast<uintptr_t>(scratch.data()) % 256 == 0, "an arena's beginning is aligned");
    for (const auto& [p, plan] : plans_) {
      const uint64_t operand_bytes = aligned(operand_bytes_max(p), 64);
      CHECK(scratch.size() >= operand_bytes + kMatmulWorkspaceBytes,
            "an arena smaller than a product's operands");
      std::byte* all = scratch.data();
      multiply({p, all, all, all, p.bias ? all : nullptr}, plan, all + operand_bytes);
    }
  }

  void run(const ProductCall& call, std::byte* workspace) override {
    if (call.c == nullptr) return;
    const auto plan = plans_.find(key_of(call.product));
    CHECK(plan != plans_.end(), "a product that was not prepared");
    multiply(call, plan->second, workspace);
  }

 private:
  void multiply(const ProductCall& call, const Plan& plan, std::byte* workspace) {
    if (call.product.bias)
      check_step(set(plan.operation.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias));
    auto* const aligned_workspace = reinterpret_cast<std::byte*>(
        aligned(reinterpret_cast<uintptr_t>(workspace), kLibraryWorkspaceAlignment));
    const float one = 1, beta = call.product.accumulate ? 1 : 0;
    check_step(lt_.matmul(handle_.get(), plan.operation.get(), &one, call.b, plan.b.get(), call.a,
                          plan.a.get(), &beta, call.c, plan.c.get(), call.c, plan.c.get(), &plan.algorithm,
                          aligned_workspace, kLibraryWorkspaceBytes, stream_));
  }

  template <typename T>
  cublasStatus_t set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                     T value) const {
    return lt_.matmul_desc_set_attribute(operation, attribute, &value, sizeof(value));
  }

  Owned<cublasLtMatmulDesc_t> make_operation(const Product& p) const {
    cublasLtMatmulDesc_t made = nullptr;
    check_setup(lt_.matmul_desc_create(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), kChoosing);
    Owned<cublasLtMatmulDesc_t> operation(made, lt_.matmul_desc_destroy);
    const auto fix = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
      check_setup(set(made, attribute, value), kChoosing);
    };
    fix(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    fix(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.bias) {
      fix(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      fix(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(p.precision));
      // The choice looks at the bias's address: what operands promise of it, not what a call's has.
      fix(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(uintptr_t{64}));
    }
    return operation;
  }

  // As stored: `rows` rows, `stride` elements apart.
  Owned<cublasLtMatrixLayout_t> make_matrix(DType type, int64_t rows, int64_t columns, int64_t stride) const {
    cublasLtMatrixLayout_t made = nullptr;
    check_setup(lt_.matrix_layout_create(&made, type_of(type), static_cast<uint64_t>(columns),
                                         static_cast<uint64_t>(rows), stride),
                kChoosing);
    return {made, lt_.matrix_layout_destroy};
  }

  Owned<cublasLtMatmulPreference_t> make_preference(const Product& p) const {
    cublasLtMatmulPreference_t made = nullptr;
    check_setup(lt_.matmul_preference_create(&made), kChoosing);
    Owned<cublasLtMatmulPreference_t> preference(made, lt_.matmul_preference_destroy);
    const auto fix = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check_setup(lt_.matmul_preference_set_attribute(made, attribute, &value, sizeof(value)), kChoosing);
    };
    fix(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kLibraryWorkspaceBytes});
    // Parts of a sum over k in the result's type would round twice.
    fix(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    // cuBLASLt's A is our B.
    fix(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p.precision, p.stride_b));
    fix(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.precision, p.stride_a));
    fix(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.result, p.stride_c));
    fix(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p.result, p.stride_c));
    return preference;
  }

  void choose_algorithm(const Product& p, Plan& plan) const {
    const Owned<cublasLtMatmulPreference_t> preference = make_preference(p);
    cublasLtMatmulHeuristicResult_t result = {};
    int found = 0;
    const cublasStatus_t asked =
        lt_.matmul_algo_get_heuristic(handle_.get(), plan.operation.get(), plan.b.get(), plan.a.get(),
                                      plan.c.get(), plan.c.get(), preference.get(), 1, &result, &found);
    if (asked == CUBLAS_STATUS_NOT_SUPPORTED || (asked == CUBLAS_STATUS_SUCCESS && found == 0))
      throw Error(ExitCode::environment,
                  "cuBLASLt knows no algorithm for a product of " + std::to_string(p.m) + " x " +
                      std::to_string(p.n) + " x " + std::to_string(p.k) + " in " + dtype_name(p.precision) +
                      ".",
                  "Choose widths and a vocabulary that are multiples of 8, or train on --device cpu.");
    check_setup(asked, kChoosing);
    check_setup(result.state, kChoosing);
    plan.algorithm = result.algo;
  }

  cudaStream_t stream_;
  CublasLt lt_;
  Owned<cublasLtHandle_t> handle_;
  std::map<Product, Plan> plans_;
};

}  // namespace

std::unique_ptr<Multiplier> make_multiplier(void* stream) {
  return std::make_unique<LtMultiplier>(static_cast<cudaStream_t>(stream));
}

}  // namespace sluice::cuda
