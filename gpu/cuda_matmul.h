// Matrix products of the cuda device: C [m,n] = or += op(A) [m,k] op(B) [k,n] (+ bias), row-major, fp32
// accumulation, through cuBLASLt.
//
// The library's algorithm is its heuristic's first for the shape under kMatmulWorkspaceBytes; sums of parts
// of k are only allowed in fp32 and in a fixed order. So results depend on shape, values and GPU model only.
// TF32 is never used. Owner: the cuda device, one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/op.h"

namespace sluice::cuda {

// What cuBLAS recommends for Hopper; at least as much as other GPUs want.
constexpr uint64_t kMatmulWorkspaceBytes = 32ull << 20;

struct Product {
  int64_t m, n, k;                       // all positive
  bool transpose_a, transpose_b;         // A is stored [k,m], B is stored [n,k]
  int64_t stride_a, stride_b, stride_c;  // of stored rows, in elements of their types
  DType precision;                       // of A, B and bias: f32, bf16 or f16
  DType result;                          // of C: `precision` or f32
  bool accumulate = false;               // C += instead of C =
  bool bias = false;
  auto operator<=>(const Product&) const = default;
};

class Multiplier {
 public:
  virtual ~Multiplier() = default;
  // bias [n] in `precision`, or nullptr where the product has none. C must not overlap the others. Every
  // operand begins where a multiple of its rows does within a buffer aligned to 64 bytes. workspace:
  // kMatmulWorkspaceBytes, aligned to 64. Throws Error (bug or environment).
  virtual void run(const Product& product, const void* a, const void* b, const void* bias, void* c,
                   std::byte* workspace) = 0;
};

// Products on `stream` (a cudaStream_t) of the current device. A product's algorithm is looked up when it
// first runs. Throws Error (environment) if cuBLASLt cannot be set up.
std::unique_ptr<Multiplier> make_multiplier(void* stream);

}  // namespace sluice::cuda
