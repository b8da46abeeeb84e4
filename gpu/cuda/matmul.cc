// cuBLASLt is column-major: it reads a row-major [rows, columns] matrix as [columns, rows]. So it is asked
// for C^T = op(B)^T op(A)^T, with B first.
#include "gpu/cuda/matmul.h"

#include <algorithm>
#include <array>
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

// Returns the alignment in bytes that all rows have. It is 16 at most, since algorithms ask for no more.
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

// Parts of a product, the largest first. The library does the first part for which it has an algorithm;
// Sluice's own kernels do the rest.
std::vector<Product> parts_of(Product p) {
  std::vector<Product> parts{p};
  if (p.bias) {
    p.bias = false;
    parts.push_back(p);
  }
  return parts;
}

// The library's choice depends on the alignment of the bias's address. This address has the alignment that
// operands promise, not that of a particular call.
void* const kPromised = reinterpret_cast<void*>(uintptr_t{64});

cublasComputeType_t compute_of(const Product& p) {
  return p.precision == DType::f32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
}

// How the parts of a sum over k, which different blocks compute, may be added. Parts in the result's type
// would be rounded twice. So would a sum of parts to which a bias in 16 bits is added (seen with cuBLASLt
// 13.0 on Hopper), so such a sum may have no parts.
uint32_t reductions_of(const Product& p) {
  return p.bias && p.result != DType::f32 ? CUBLASLT_REDUCTION_SCHEME_NONE
                                          : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

// The alignment that rows of the library's operands promise. The library's A is the product's B.
struct Alignments {
  uint32_t a, b, c;
};
Alignments alignments_of(const Product& p) {
  return {alignment(p.precision, p.stride_b), alignment(p.precision, p.stride_a),
          alignment(p.result, p.stride_c)};
}

// kAlgorithmAttributes as the library has them. The first is set by matmul_algo_init.
struct Attribute {
  cublasLtMatmulAlgoConfigAttributes_t name;
  size_t bytes;
};
constexpr std::array<Attribute, kAlgorithmAttributes.size()> kAttributes = {{
    {CUBLASLT_ALGO_CONFIG_ID, 4},
    {CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
    {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
    {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4},
    {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
    {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
    {CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
    {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
    {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2},
}};
constexpr size_t kReductionAttribute = 3;

// Products that differ only in `accumulate` and `scaled` share a prepared product, since these two are
// arguments of the call.
Product key_of(Product product) {
  product.accumulate = product.scaled = false;
  return product;
}

class LtMultiplier final : public Multiplier {
 public:
  LtMultiplier(const Queue& queue, std::optional<ChosenAlgorithms> chosen)
      : queue_(queue), lt_(open_cublaslt()), handle_(nullptr, lt_.destroy), chosen_(std::move(chosen)) {
    cublasLtHandle_t handle = nullptr;
    check_setup(lt_.create(&handle), "Setting up cuBLASLt");
    handle_.reset(handle);
  }

  void prepare(const Product& product) override {
    const Product p = key_of(product);
    if (prepared_.contains(p)) return;
    PreparedProduct prepared = prepared_for(p);
    if (chosen_) {
      const std::string text = product_text(prepared.part);
      const auto found = chosen_->products.find(text);
      if (found == chosen_->products.end())
        throw Error(ExitCode::usage, "The algorithms that were timed have none for the product " + text + ".",
                    kTimeAlgorithmsAnew);
      set_algorithm(prepared, found->second);
    }
    prepared_.emplace(p, std::move(prepared));
  }

  Candidates candidates(const Product& product, int most) override {
    const PreparedProduct prepared = prepared_for(key_of(product));
    Candidates candidates{prepared.part, {}};
    for (const cublasLtMatmulHeuristicResult_t& result : ask(prepared, most)) {
      const Algorithm algorithm = described(result.algo);
      std::string why;
      if (result.state == CUBLAS_STATUS_SUCCESS && restored(prepared, algorithm, why))
        candidates.algorithms.push_back(algorithm);
    }
    return candidates;
  }

  void prepare(const Product& product, const Algorithm& algorithm) override {
    const Product p = key_of(product);
    PreparedProduct prepared = prepared_for(p);
    set_algorithm(prepared, algorithm);
    prepared_.insert_or_assign(p, std::move(prepared));
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
      if (p.bias) continue;
      call.product.accumulate = true;  // the same algorithm has other kernels for this
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
    const bool own_bias = p.bias && !prepared.part.bias;
    CHECK(!p.accumulate || !p.bias, "a product that accumulates and has a bias");
    ProductCall part = call;
    part.product.accumulate = p.accumulate || own_bias;
    if (own_bias) {
      repeat_row(queue_, p.result, call.bias, part.c, p.m, p.n);
      part.addend = part.c;
    }
    multiply(part, prepared, workspace);
  }

  // Where C is both addend and result, and the factors of product and addend are known to be 1, kernels for
  // Hopper round the product to C's type and let the memory add it, so that the sum is rounded twice (seen
  // with cuBLASLt 13.0). So the factors then lie on the device, where the library cannot know them.
  void multiply(const ProductCall& call, const PreparedProduct& prepared, std::byte* workspace) {
    const cublasLtMatmulDesc_t operation = prepared.operation.get();
    if (prepared.part.bias) check_step(set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias));
    auto* const aligned_workspace = reinterpret_cast<std::byte*>(
        aligned(reinterpret_cast<uintptr_t>(workspace), kLibraryWorkspaceAlignment));
    const bool accumulates = call.product.accumulate;
    const bool on_device = accumulates && call.addend == call.c && call.product.result != DType::f32;
    check_step(set(operation, CUBLASLT_MATMUL_DESC_POINTER_MODE,
                   on_device ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST));
    const float beta = accumulates ? 1 : 0;
    const float* factor = &call.factor;
    if (on_device)
      factor = call.product.scaled ? put_factor(call.factor, workspace, aligned_workspace) : one_;
    const void* const second = on_device ? one_ : &beta;
    const void* const addend = accumulates ? call.addend : call.c;
    check_step(lt_.matmul(handle_.get(), operation, factor, call.b, prepared.b.get(), call.a,
                          prepared.a.get(), second, addend, prepared.c.get(), call.c, prepared.c.get(),
                          &prepared.algorithm, aligned_workspace, kLibraryWorkspaceBytes,
                          static_cast<cudaStream_t>(queue_.stream)));
  }

  // Puts the factor on the device. The library's part of the workspace begins at an aligned address. Before
  // or behind that part there are at least 64 bytes for the factor.
  const float* put_factor(float factor, std::byte* workspace, std::byte* aligned_workspace) const {
    static_assert(kMatmulWorkspaceBytes == kLibraryWorkspaceBytes + kLibraryWorkspaceAlignment - 64);
    const bool before = aligned_workspace - workspace >= 64;
    auto* to = reinterpret_cast<float*>(before ? workspace : aligned_workspace + kLibraryWorkspaceBytes);
    put(queue_, factor, to);
    return to;
  }

  template <typename T>
  cublasStatus_t set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                     T value) const {
    return lt_.matmul_desc_set_attribute(operation, attribute, &value, sizeof(value));
  }

  Owned<cublasLtMatmulDesc_t> make_operation(const Product& p) const {
    cublasLtMatmulDesc_t made = nullptr;
    check_setup(lt_.matmul_desc_create(&made, compute_of(p), CUDA_R_32F), kChoosing);
    Owned<cublasLtMatmulDesc_t> operation(made, lt_.matmul_desc_destroy);
    const auto fix = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
      check_setup(set(made, attribute, value), kChoosing);
    };
    fix(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    fix(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    fix(CUBLASLT_MATMUL_DESC_EPILOGUE, p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
    if (p.bias) {
      fix(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(p.precision));
      fix(CUBLASLT_MATMUL_DESC_BIAS_POINTER, kPromised);
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
    fix(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions_of(p));
    const Alignments alignments = alignments_of(p);
    fix(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments.a);
    fix(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments.b);
    fix(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments.c);
    fix(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments.c);
    return preference;
  }

  // The largest part that the library has an algorithm for, with the heuristic's first algorithm.
  PreparedProduct prepared_for(const Product& p) const {
    CHECK(!p.bias || (p.stride_c == p.n && p.result == p.precision), "a bias on a part of a matrix");
    for (const Product& part : parts_of(p)) {
      PreparedProduct prepared = described_part(part);
      const std::vector<cublasLtMatmulHeuristicResult_t> found = ask(prepared, 1);
      if (found.empty()) continue;
      prepared.algorithm = found.front().algo;
      return prepared;
    }
    throw Error(ExitCode::environment, "cuBLASLt knows no algorithm for the product " + product_text(p) + ".",
                "Choose widths and a vocabulary that are multiples of 8, or train on --device cpu.");
  }

  PreparedProduct described_part(const Product& p) const {
    const Rows a = stored_a(p), b = stored_b(p);
    return {p,
            make_operation(p),
            make_matrix(p.precision, a.rows, a.columns, p.stride_a),
            make_matrix(p.precision, b.rows, b.columns, p.stride_b),
            make_matrix(p.result, p.m, p.n, p.stride_c),
            {}};
  }

  // The heuristic's first `most` algorithms; none where the library has none.
  std::vector<cublasLtMatmulHeuristicResult_t> ask(const PreparedProduct& prepared, int most) const {
    const Product& p = prepared.part;
    const Owned<cublasLtMatmulPreference_t> preference = make_preference(p);
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
    int found = 0;
    const cublasStatus_t asked = lt_.matmul_algo_get_heuristic(
        handle_.get(), prepared.operation.get(), prepared.b.get(), prepared.a.get(), prepared.c.get(),
        prepared.c.get(), preference.get(), most, results.data(), &found);
    const cublasStatus_t status = asked != CUBLAS_STATUS_SUCCESS ? asked
                                  : found == 0                   ? CUBLAS_STATUS_NOT_SUPPORTED
                                                                 : results.front().state;
    // A version or a GPU without the epilogue may call it an invalid value.
    const bool refused = status == CUBLAS_STATUS_INVALID_VALUE && p.bias;
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || refused) return {};
    check_setup(status, kChoosing);
    results.resize(static_cast<size_t>(found));
    return results;
  }

  Algorithm described(const cublasLtMatmulAlgo_t& algorithm) const {
    Algorithm values{};
    for (size_t i = 0; i < values.size(); ++i) {
      const auto [name, bytes] = kAttributes[i];
      uint16_t narrow = 0;
      void* const value = bytes == sizeof narrow ? static_cast<void*>(&narrow) : &values[i];
      size_t written = 0;
      check_setup(lt_.matmul_algo_config_get_attribute(&algorithm, name, value, bytes, &written), kChoosing);
      if (bytes == sizeof narrow) values[i] = narrow;
    }
    return values;
  }

  // Returns the library's form of `algorithm`. Returns nothing, and puts a clause into `why`, if the library
  // does not take the algorithm for the part, or if the algorithm breaks what make_preference() asks for.
  std::optional<cublasLtMatmulAlgo_t> restored(const PreparedProduct& prepared, const Algorithm& algorithm,
                                               std::string& why) const {
    const Product& p = prepared.part;
    const cudaDataType_t operand = type_of(p.precision), result = type_of(p.result);
    cublasLtMatmulAlgo_t made;
    cublasStatus_t status = lt_.matmul_algo_init(handle_.get(), compute_of(p), CUDA_R_32F, operand, operand,
                                                 result, result, static_cast<int>(algorithm.front()), &made);
    for (size_t i = 1; i < algorithm.size() && status == CUBLAS_STATUS_SUCCESS; ++i) {
      const auto [name, bytes] = kAttributes[i];
      const auto narrow = static_cast<uint16_t>(algorithm[i]);
      const void* const value = bytes == sizeof narrow ? static_cast<const void*>(&narrow) : &algorithm[i];
      status = bytes == sizeof narrow && narrow != algorithm[i]
                   ? CUBLAS_STATUS_INVALID_VALUE
                   : lt_.matmul_algo_config_set_attribute(&made, name, value, bytes);
    }
    cublasLtMatmulHeuristicResult_t checked = {};
    if (status == CUBLAS_STATUS_SUCCESS)
      status = lt_.matmul_algo_check(handle_.get(), prepared.operation.get(), prepared.b.get(),
                                     prepared.a.get(), prepared.c.get(), prepared.c.get(), &made, &checked);
    if (status != CUBLAS_STATUS_SUCCESS)
      why = std::string("cuBLASLt says: ") + name_of(status);
    else if (checked.workspaceSize > kLibraryWorkspaceBytes)
      why = "it needs more workspace than products are given";
    else if ((algorithm[kReductionAttribute] & ~reductions_of(p)) != 0)
      why = "it would round sums twice";
    else if (!is_aligned_for(made, p))
      why = "rows are not aligned as it needs them";
    else
      return made;
    return std::nullopt;
  }

  bool is_aligned_for(const cublasLtMatmulAlgo_t& algorithm, const Product& p) const {
    const Alignments there = alignments_of(p);
    for (const auto& [name, promised] : {std::pair{CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES, there.a},
                                         {CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES, there.b},
                                         {CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_C_BYTES, there.c},
                                         {CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_D_BYTES, there.c}}) {
      uint32_t needed = 0;
      size_t written = 0;
      check_setup(lt_.matmul_algo_cap_get_attribute(&algorithm, name, &needed, sizeof needed, &written),
                  kChoosing);
      if (needed > promised) return false;
    }
    return true;
  }

  void set_algorithm(PreparedProduct& prepared, const Algorithm& algorithm) const {
    std::string why;
    const std::optional<cublasLtMatmulAlgo_t> made = restored(prepared, algorithm, why);
    if (!made)
      throw Error(ExitCode::environment,
                  "The algorithm `" + algorithm_text(algorithm) + "` that was timed for the product " +
                      product_text(prepared.part) + " cannot be used: " + why + ".",
                  kTimeAlgorithmsAnew);
    prepared.algorithm = *made;
  }

  Queue queue_;
  CublasLt lt_;
  Owned<cublasLtHandle_t> handle_;
  const std::optional<ChosenAlgorithms> chosen_;
  const float* const one_ = one_on_device();
  std::map<Product, PreparedProduct> prepared_;
};

}  // namespace

std::unique_ptr<Multiplier> make_multiplier(const Queue& queue, std::optional<ChosenAlgorithms> chosen) {
  return std::make_unique<LtMultiplier>(queue, std::move(chosen));
}

}  // namespace sluice::cuda
