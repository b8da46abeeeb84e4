// Ops: the vocabulary in which models are written and which every device implements.
//
// An op has static shapes. Its table entry gives shape rule, flops, bytes and what its backward reads; models
// derive the backward pass from that. No code of models or devices is here. Activations and their gradients
// are in the working precision; statistics (mean, rstd, log-sum-exp) are fp32; parameter gradients are fp32
// and always added to.
// A "row" is one token: activations are [rows, columns] with rows = slice's sequences * T, in sequence order.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

enum class DType : uint8_t { f32, bf16, f16, f64, i32, u8 };
constexpr uint64_t dtype_bytes(DType t) {
  switch (t) {
    case DType::f64: return 8;
    case DType::f32: case DType::i32: return 4;
    case DType::bf16: case DType::f16: return 2;
    case DType::u8: return 1;
  }
  return 0;
}
const char* dtype_name(DType t);  // "fp32", "bf16", "fp16", "fp64", "int32", "uint8"

using Shape = std::vector<int64_t>;  // outermost dimension first
int64_t element_count(const Shape& shape);  // 1 for a scalar

// Labels equal to this are ignored by the loss (PyTorch's default ignore_index).
constexpr int32_t kIgnoreLabel = -100;

// kind: inputs -> outputs | parameters | what its backward reads
enum class OpKind : uint8_t {
  embedding,             // tokens i32 [R] -> x [R,C] | wte [V,C], optionally wpe [T,C] added at position
                         //   r % T | tokens
  layer_norm,            // x [R,C] -> y [R,C], mean f32 [R], rstd f32 [R] | weight [C], bias [C]
                         //   | x, mean, rstd
  rms_norm,              // x [R,C] -> y [R,C], rstd f32 [R] | weight [C] | x, rstd
  linear,                // x [R,K] -> y [R,N] | weight [K,N] or, if weight_out_in, [N,K]; optionally
                         //   bias [N] | x
  linear_gelu,           // x [R,K] -> y [R,N] = gelu(p), tanh form, p [R,N] = linear's output | linear's
                         //   | x, p
  swiglu,                // gate, up -> y = silu(gate) * up | - | gate, up
  rope,                  // x [R, heads*head_size] -> y, rotate-half form, position r % T | - | nothing
  attention,             // causal; q [R, heads*D], k, v [R, kv_heads*D]
                         //   (or one packed q|k|v [R, (heads+2*kv_heads)*D])
                         //   -> o [R, heads*D], lse f32 [R/T, heads, T] | - | all inputs and outputs
  add,                   // a, b -> y | - | nothing
  linear_cross_entropy,  // x [R,C], labels i32 [R] -> loss f64 [1], ADDED to: sum of the rows' losses
                         //   | weight [V,C] | x, labels
};

// llama3 scaling of the inverse frequencies; factor 1 = none.
struct RopeScaling {
  double factor = 1, low = 1, high = 4, original_context = 8192;
};

struct OpAttributes {
  int64_t sequence = 0;  // T: rows per sequence
  int64_t heads = 0, kv_heads = 0, head_size = 0;
  double epsilon = 0;
  bool weight_out_in = false;
  double rope_theta = 0;
  RopeScaling rope_scaling;
};

struct Op {
  OpKind kind;
  OpAttributes attributes;
  std::vector<uint32_t> inputs, outputs;  // indices into the segment's tensors
  std::vector<uint32_t> parameters;       // indices into the segment's parameters
};

constexpr int kOpKinds = 10;

enum class Pass : uint8_t { forward, backward };

// Everything about one op's operands that is known before the step.
struct OpShapes {
  OpKind kind;
  OpAttributes attributes;
  DType precision;  // working precision: activations, weights, activation gradients
  std::vector<Shape> inputs, outputs, parameters;
};

struct OpRule {
  const char* name;
  uint32_t inputs_min, inputs_max, parameters_min, parameters_max;
  // Output shapes and types. Throws std::invalid_argument with a sentence when the operands do not fit.
  void (*infer)(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
  double (*flops)(const OpShapes& s, Pass pass);  // multiply-adds count two
  uint32_t backward_reads_inputs;   // bit i: backward reads input i
  uint32_t backward_reads_outputs;  // bit i: backward reads output i
  uint32_t gradient_inputs;         // bit i: input i is differentiable
  uint32_t gradient_outputs;        // bit i: a gradient arrives for output i
  // bit i: backward leaves something else in output i's gradient, so that the output is none of its segment's
  uint32_t overwritten_gradients;
};
const OpRule& op_rule(OpKind kind);
std::optional<OpKind> op_kind(std::string_view name);

// Bytes that one pass reads and writes at least: inputs, outputs, parameters and their gradients, each once.
uint64_t op_bytes(const OpShapes& s, Pass pass);

// Elements of a rounded gradient whose squares are added into one block sum; the norm is made of these.
constexpr uint64_t kNormBlock = 65536;

// Tokens of one chunk of the loss: max(16, 2^25 / vocabulary rounded down to a power of two).
int64_t cross_entropy_chunk(int64_t vocabulary);

}  // namespace sluice
