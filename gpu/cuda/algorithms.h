// Algorithms of matrix products that were chosen by time, as text. `sluice bench` writes the text into a
// machine description, and a run keeps it in checkpoints. Only the cuda device reads the text.
//
// The text is JSON: {"gpu", "compute_capability", "cublaslt", "products": {PRODUCT: ALGORITHM}}. PRODUCT is
// product_text(), ALGORITHM is algorithm_text(). The texts name everything in which two products, or two
// algorithms, can differ, so it is enough to compare texts. Equal choices have equal text. Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "gpu/cuda/device.h"
#include "gpu/products.h"

namespace sluice::cuda {

// The attributes by which cuBLASLt tells algorithms apart (cublasLtMatmulAlgoConfigAttributes_t), in the
// order of that enumeration.
constexpr std::array<const char*, 9> kAlgorithmAttributes = {
    "id", "tile", "split_k", "reduction", "swizzle", "custom", "stages", "inner_shape", "cluster_shape"};
using Algorithm = std::array<uint32_t, kAlgorithmAttributes.size()>;

// Where algorithms were timed. In another place they may be slow or missing.
struct TimingPlace {
  std::string gpu;                 // its printable name
  std::string compute_capability;  // "9.0"
  uint64_t cublaslt = 0;           // version: 130100 is 13.1.0
  bool operator==(const TimingPlace&) const = default;
};

struct ChosenAlgorithms {
  TimingPlace place;
  std::map<std::string, Algorithm> products;  // by product_text()
};

// "16384 x 4800 x 1600 bf16 a=1600 b=4800 c=4800 bias": m, n, k, types, and strides; a' is a transposed A.
// `accumulate` is an argument of a call, so it is not in the text.
std::string product_text(const Product& product);

// "id=66 tile=20 split_k=1 ..."
std::string algorithm_text(const Algorithm& algorithm);

std::string algorithms_text(const ChosenAlgorithms& chosen);
// Throws Error(malformed_file).
ChosenAlgorithms parse_algorithms(const std::string& text);

TimingPlace timing_place(const CudaStatus& gpu, uint64_t cublaslt);
// Throws Error(environment) unless the algorithms were timed `here`.
void check_place(const TimingPlace& timed, const TimingPlace& here);

// The remedy where timed algorithms cannot be used.
constexpr const char* kTimeAlgorithmsAnew =
    "Time them here, with `sluice bench` and the same --model, --batch, --seq, --micro-batch and "
    "--precision, or give --matmul-algorithms none.";

}  // namespace sluice::cuda
