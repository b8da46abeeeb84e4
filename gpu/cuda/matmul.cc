// cuBLASLt is column-major: it reads a row-major [rows, columns] matrix as [columns, rows]. So it is asked
// for C^T = op(B)^T op(A)^T, with B first.
#include "gpu/cuda/matmul.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "gpu/cuda/cublaslt.h"

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

// The part of a product that the library does, and how.
struct PreparedProduct {
  Product part;
  Owned<cublasLtMatmulDesc_t> operation;
  Owned<cublasLtMatrixLayout_t> a, b, c;
  cublasLtMatmulAlgo_t algorithm;
};

struct Rows {
  int64_t rows, columns;
};
Rows stored_a(const Product& p) { return p.transpose_a ? Rows{p.k, p.m} : Rows{p.m, p.k}; }
Rows stored_b(const Product& p) { return p.transpose_b ? Rows{p.n, p.k} : Rows{p.k, p.n}; }

// Alignment in bytes of every row, whichever row an operand begins at: at most 16, the most that algorithms
// ask for.
uint32_t alignment(DType type, int64_t stride) {
  const uint64_t bytes = static_cast<uint64_t>(stride) * dtype_bytes(type);
  return static_cast<uint32_t>(std::min<uint64_t>(16, bytes & (~bytes + 1)));
}

uint64_t aligned(uint64_t address, uint64_t alignment) {
  return (address + alignment - 1) / alignment * alignment;
}

// Bytes of the product's largest operand.
uint64_t operand_bytes_max(const Product& p) {
  const auto bytes = [](int64_t rows, int64_t stride, DType type) {
    return static_cast<uint64_t>(rows * stride) * dtype_bytes(type);
  };
  return std::max({bytes(stored_a(p).rows, p.stride_a, p.precision),
                   bytes(stored_b(p).rows, p.stride_b, p.precision), bytes(p.m, p.stride_c, p.result),
                   bytes(1, p.n, p.precision)});
}

// Which part of a product the library may do: alternatives, the largest first. The first one for which it has
// an algorithm is used. Sluice's own kernels do the rest.
//
// gelu: in 16 bits only, as the library does not say how exact its tanh is. The leading dimension of the
// pre-activation must be divisible by 8 (cuBLAS documentation of CUDA 13.0, section
// cublasLtMatmulDescAttributes_t: CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD).
std::vector<Product> parts_of(Product p) {
  std::vector<Product> parts;
  if (p.gelu && p.precision != DType::f32 && p.n % 8 == 0) parts.push_back(p);
  p.gelu = false;
  parts.push_back(p);
  if (p.bias) {
    p.bias = false;
    parts.push_back(p);
  }
  return parts;
}

cublasLtEpilogue_t epilogue_of(const Product& p) {
  if (p.gelu) return p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  return p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

// The library's choice depends on the alignment of the addresses of bias and pre-activation. This address has
// the alignment that operands promise, not that of a particular call.
void* const kPromised = reinterpret_cast<void*>(uintptr_t{64});

// Products that differ only in `accumulate` share a prepared one: `accumulate` is an argument of the call.
Product key_of(Product product) {
  product.accumulate = false;
  return product;
}

class LtMultiplier final : public Multiplier {
 public:
  explicit LtMultiplier(const Queue& queue)
      : queue_(queue), lt_(open_cublaslt()), handle_(nullptr, lt_.destroy) {
    cublasLtHandle_t handle = nullptr;
    check_setup(lt_.create(&handle), "Setting up cuBLASLt");
    handle_.reset(handle);
  }

  void prepare(const Product& product) override {
    const Product p = key_of(product);
    if (prepared_.contains(p)) return;
    const bool alone = !p.bias && !p.gelu;
    CHECK(alone || (p.stride_c == p.n && p.result == p.precision), "an epilogue on a part of a matrix");
    for (const Product& part : parts_of(p))
      if (std::optional<PreparedProduct> prepared = prepared_for(part)) {
        prepared_.emplace(p, std::move(*prepared));
        return;
      }
    throw Error(ExitCode::environment,
                "cuBLASLt knows no algorithm for a product of " + std::to_string(p.m) + " x " +
                    std::to_string(p.n) + " x " + std::to_string(p.k) + " in " + dtype_name(p.precision) +
                    ".",
                "Choose widths and a vocabulary that are multiples of 8, or train on --device cpu.");
  }

  void warm_up(std::span<std::byte> scratch) override {
    CHECK(reinterpret_cast<uintptr_t>(scratch.data()) % 256 == 0, "an arena's beginning is aligned");
    for (const auto& [p, prepared] : prepared_) {
      const uint64_t operand_bytes = aligned(operand_bytes_max(p), 64);
      CHECK(scratch.size() >= operand_bytes + kMatmulWorkspaceBytes,
            "an arena smaller than a product's operands");
      std::byte* all = scratch.data();
      ProductCall call{p, all, all, all, all, all};
      run(call, prepared, all + operand_bytes);
      if (p.bias || p.gelu) continue;
      call.product.accumulate = true;  // the library has other kernels for it, of the same algorithm
      run(call, prepared, all + operand_bytes);
    }
  }

  void run(const ProductCall& call, std::byte* workspace) override {
    if (call.c == nullptr) return;
    const auto prepared = prepared_.find(key_of(call.product));
    CHECK(prepared != prepared_.end(), "a product that was not prepared");
    run(call, prepared->second, workspace);
  }

 private:
  // A bias that the library does not add is written to C first. The product is added to it in fp32, and the
  // sum is rounded once.
  void run(const ProductCall& call, const PreparedProduct& prepared, std::byte* workspace) {
    const Product& p = call.product;
    const bool own_bias = p.bias && !prepared.part.bias, own_gelu = p.gelu && !prepared.part.gelu;
    CHECK(!p.accumulate || (!p.bias && !p.gelu), "a product that accumulates and has an epilogue");
    ProductCall part = call;
    part.product.accumulate = p.accumulate || own_bias;
    if (own_gelu) part.c = call.pre_activation;
    if (own_bias) repeat_row(queue_, p.result, call.bias, part.c, p.m, p.n);
    multiply(part, prepared, workspace);
    if (own_gelu) gelu(queue_, p.result, call.pre_activation, call.c, p.m * p.n);
  }

  void multiply(const ProductCall& call, const PreparedProduct& prepared, std::byte* workspace) {
    const cublasLtMatmulDesc_t operation = prepared.operation.get();
    if (prepared.part.bias) check_step(set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias));
    if (prepared.part.gelu)
      check_step(set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.pre_activation));
    auto* const aligned_workspace = reinterpret_cast<std::byte*>(
        aligned(reinterpret_cast<uintptr_t>(workspace), kLibraryWorkspaceAlignment));
    const float one = 1, beta = call.product.accumulate ? 1 : 0;
    check_step(lt_.matmul(handle_.get(), operation, &one, call.b, prepared.b.get(), call.a, prepared.a.get(),
                          &beta, call.c, prepared.c.get(), call.c, prepared.c.get(), &prepared.algorithm,
                          aligned_workspace, kLibraryWorkspaceBytes,
                          static_cast<cudaStream_t>(queue_.stream)));
  }

  template <typename T>
  cublasStatus_t set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                     T value) const {
    return lt_.matmul_desc_set_attribute(operation, attribute, &value, sizeof(value));
  }

  Owned<cublasLtMatmulDesc_t> make_operation(const Product& p) const {
    cublasLtMatmulDesc_t made = nullptr;
    const bool fp32 = p.precision == DType::f32;
    const cublasComputeType_t compute = fp32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
    check_setup(lt_.matmul_desc_create(&made, compute, CUDA_R_32F), kChoosing);
    Owned<cublasLtMatmulDesc_t> operation(made, lt_.matmul_desc_destroy);
    const auto fix = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
      check_setup(set(made, attribute, value), kChoosing);
    };
    fix(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    fix(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    fix(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p));
    if (p.bias) {
      fix(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(p.precision));
      fix(CUBLASLT_MATMUL_DESC_BIAS_POINTER, kPromised);
    }
    if (p.gelu) {
      fix(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, type_of(p.result));
      fix(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.stride_c);
      fix(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, kPromised);
    }
    return operation;
  }

  // A matrix as it is stored: `rows` rows, `stride` elements apart.
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
    // A sum over k whose parts are in the result's type would be rounded twice.
    fix(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    // cuBLASLt's A is the product's B.
    fix(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p.precision, p.stride_b));
    fix(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.precision, p.stride_a));
    fix(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.result, p.stride_c));
    fix(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p.result, p.stride_c));
    return preference;
  }

  // Returns nothing where the library has no algorithm.
  std::optional<PreparedProduct> prepared_for(const Product& p) const {
    const Rows a = stored_a(p), b = stored_b(p);
    PreparedProduct prepared{p,
                             make_operation(p),
                             make_matrix(p.precision, a.rows, a.columns, p.stride_a),
                             make_matrix(p.precision, b.rows, b.columns, p.stride_b),
                             make_matrix(p.result, p.m, p.n, p.stride_c),
                             {}};
    const Owned<cublasLtMatmulPreference_t> preference = make_preference(p);
    cublasLtMatmulHeuristicResult_t result = {};
    int found = 0;
    const cublasStatus_t asked = lt_.matmul_algo_get_heuristic(
        handle_.get(), prepared.operation.get(), prepared.b.get(), prepared.a.get(), prepared.c.get(),
        prepared.c.get(), preference.get(), 1, &result, &found);
    const cublasStatus_t status = asked != CUBLAS_STATUS_SUCCESS ? asked
                                  : found == 0                   ? CUBLAS_STATUS_NOT_SUPPORTED
                                                                 : result.state;
    // A version or a GPU without an epilogue may call it an invalid value.
    const bool refused = status == CUBLAS_STATUS_INVALID_VALUE && (p.bias || p.gelu);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || refused) return {};
    check_setup(status, kChoosing);
    prepared.algorithm = result.algo;
    return prepared;
  }

  Queue queue_;
  CublasLt lt_;
  Owned<cublasLtHandle_t> handle_;
  std::map<Product, PreparedProduct> prepared_;
};

}  // namespace

std::unique_ptr<Multiplier> make_multiplier(const Queue& queue) {
  return std::make_unique<LtMultiplier>(queue);
}

}  // namespace sluice::cuda
