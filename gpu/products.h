// Matrix products, row-major, and the products that each op consists of. Devices that multiply through a
// library share them. Pure functions of shapes and operands, called by devices at set-up and in the step.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <vector>

#include "gpu/device.h"

namespace sluice {

// C [m,n] = factor * op(A) [m,k] op(B) [k,n] (+ addend) (+ bias), accumulated in fp32 and rounded once.
struct Product {
  int64_t m, n, k;                       // all positive
  bool transpose_a, transpose_b;         // A is stored [k,m], B is stored [n,k]
  int64_t stride_a, stride_b, stride_c;  // of stored rows, in elements of their types
  DType precision;                       // of A, B and bias: f32, bf16 or f16
  DType result;                          // of C: `precision` or f32
  bool accumulate = false;               // there is an addend
  bool bias = false;
  bool scaled = false;  // there is a factor other than 1
  auto operator<=>(const Product&) const = default;
};

// A product of operands. C must not overlap the others, but may be the addend.
struct ProductCall {
  Product product;
  const void *a, *b;
  void* c;                       // nullptr: not wanted, nothing is done
  const void* addend = nullptr;  // if the product accumulates: what is added to it, stored as C is
  const void* bias = nullptr;    // [n], if the product has one
  float factor = 1;              // if the product is scaled
};

// Every product that the pass of an op may run. In this list, a product that makes a gradient of parameters
// has `accumulate` set, as in every micro-batch of a step after the first. In a ProductCall such a product
// accumulates only if it has an addend.
std::vector<Product> products_of(const OpShapes& shapes, Pass pass);

// ---- linear: y = factor * x W (+ b); dx = factor * dy W^T, dW += factor * x^T dy. W and dW are [in,out], or
// [out,in] if weight_out_in.

ProductCall linear_output(const OpCall& call);
std::array<ProductCall, 2> linear_gradients(const OpCall& call);  // dx, dW

// ---- linear_cross_entropy, one chunk of rows after the other. logits = factor * x W^T, fp32, in the
// workspace. The device computes losses from the logits and replaces the logits by their gradients in the
// working precision; each row of gradients begins where its row of logits did. dx = factor * dlogits W, dW +=
// factor * dlogits^T x.

struct LossLayout {
  int64_t rows, columns, vocabulary;
  int64_t chunk;   // rows of one chunk
  int64_t stride;  // floats of one row of logits: a multiple of 128 bytes, seldom a power of two
  uint64_t logits_bytes;
  uint64_t losses_bytes;
  uint64_t rights_bytes;  // 0: right rows (OpAttributes::counts_right) are not counted

  // Bytes of the workspace that come before those of the products.
  uint64_t bytes() const { return logits_bytes + losses_bytes + rights_bytes; }
};
LossLayout loss_layout(const OpShapes& shapes);

struct LossRows {
  float* logits;
  double* losses;  // one a row
  double* rights;  // one a row: 1 if the row is right, else 0; nullptr: right rows are not counted
  const int32_t* labels;
  int64_t rows, vocabulary, stride;
  float cap;  // losses are those of cap * tanh(logit / cap), NaN if a logit is infinite; 0: no cap
};

struct LossChunk {
  LossRows rows;
  ProductCall logits, dx, dw;  // order: `logits`, the device's work on `rows`, `dx`, `dw`
};
// The chunk that begins at row `begin`.
LossChunk loss_chunk(const OpCall& call, Pass pass, const LossLayout& layout, int64_t begin);

}  // namespace sluice
