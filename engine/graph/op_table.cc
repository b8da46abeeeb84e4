#include "engine/op.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "engine/error.h"

namespace sluice {

const char* dtype_name(DType t) {
  switch (t) {
    case DType::f32: return "fp32";
    case DType::bf16: return "bf16";
    case DType::f16: return "fp16";
    case DType::f64: return "fp64";
    case DType::i32: return "int32";
    case DType::u8: return "uint8";
  }
  return "?";
}

int64_t element_count(const Shape& shape) {
  // An eighth, so that bytes of any type are representable.
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max() / 8;
  int64_t count = 1;
  for (const int64_t n : shape)
    if (n < 0 || __builtin_mul_overflow(count, n, &count) || count > kMax)
      throw std::invalid_argument(
          fmt::format("A tensor of shape [{}] has no representable size.", fmt::join(shape, ", ")));
  return count;
}

int64_t cross_entropy_chunk(int64_t vocabulary) {
  CHECK(vocabulary > 0, "a vocabulary has at least one entry");
  const auto quotient = static_cast<uint64_t>((int64_t{1} << 25) / vocabulary);
  return std::max<int64_t>(16, static_cast<int64_t>(std::bit_floor(quotient)));
}

namespace {

// ---- Shape rules.

template <typename... Values>
void require(bool condition, const OpShapes& in, const char* sentence, const Values&... values) {
  if (condition) return;
  const char* name = op_rule(in.kind).name;
  throw std::invalid_argument(fmt::format("{}: {}", name, fmt::format(fmt::runtime(sentence), values...)));
}

std::string text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// Checks that hold for every op: operand counts, precision, and shapes of a representable, non-zero size.
void check_operands(const OpShapes& in) {
  const OpRule& rule = op_rule(in.kind);
  require(in.inputs.size() >= rule.inputs_min && in.inputs.size() <= rule.inputs_max, in,
          "{} inputs are given, {} to {} are taken.", in.inputs.size(), rule.inputs_min, rule.inputs_max);
  require(in.parameters.size() >= rule.parameters_min && in.parameters.size() <= rule.parameters_max, in,
          "{} parameters are given, {} to {} are taken.", in.parameters.size(), rule.parameters_min,
          rule.parameters_max);
  require(in.precision == DType::f32 || in.precision == DType::bf16 || in.precision == DType::f16, in,
          "{} is no working precision.", dtype_name(in.precision));
  for (const std::vector<Shape>* shapes : {&in.inputs, &in.parameters})
    for (const Shape& shape : *shapes)
      require(element_count(shape) > 0 && !shape.empty(), in, "an operand of shape {} is empty.",
              text(shape));
}

void check_rank(const OpShapes& in, const Shape& shape, size_t rank, const char* what) {
  require(shape.size() == rank, in, "{} of shape {} needs {} dimensions.", what, text(shape), rank);
}

void check_shape(const OpShapes& in, const Shape& shape, const Shape& wanted, const char* what) {
  require(shape == wanted, in, "{} has shape {} where {} is needed.", what, text(shape), text(wanted));
}

// Rows must be whole sequences.
void check_sequence(const OpShapes& in, int64_t rows) {
  const int64_t sequence = in.attributes.sequence;
  require(sequence > 0, in, "the sequence length {} is not positive.", sequence);
  require(rows % sequence == 0, in, "{} rows are not whole sequences of {}.", rows, sequence);
}

// heads * head_size, checked.
int64_t head_columns(const OpShapes& in, int64_t heads) {
  const int64_t size = in.attributes.head_size;
  int64_t columns = 0;
  require(heads > 0 && size > 0, in, "{} heads of size {} are not possible.", heads, size);
  require(!__builtin_mul_overflow(heads, size, &columns), in, "{} heads of size {} overflow.", heads, size);
  return columns;
}

void check_index_range(const OpShapes& in, int64_t vocabulary) {
  require(vocabulary <= std::numeric_limits<int32_t>::max(), in,
          "a vocabulary of {} does not fit the 32-bit token type.", vocabulary);
}

void check_epsilon(const OpShapes& in) {
  const double epsilon = in.attributes.epsilon;
  require(std::isfinite(epsilon) && epsilon > 0, in, "epsilon {} is not a positive number.", epsilon);
}

void set_outputs(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes,
                 std::vector<Shape> shapes, std::vector<DType> types) {
  for (const Shape& shape : shapes)
    require(element_count(shape) > 0, in, "output {} is empty.", text(shape));
  outputs = std::move(shapes);
  dtypes = std::move(types);
}

void infer_embedding(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  check_rank(in, in.inputs[0], 1, "tokens");
  check_rank(in, in.parameters[0], 2, "the token table");
  const int64_t rows = in.inputs[0][0], columns = in.parameters[0][1];
  check_index_range(in, in.parameters[0][0]);
  if (in.parameters.size() == 2) {
    check_sequence(in, rows);
    const Shape& positions = in.parameters[1];
    check_rank(in, positions, 2, "the position table");
    require(positions[1] == columns, in, "the tables have {} and {} columns.", columns, positions[1]);
    require(positions[0] >= in.attributes.sequence, in, "{} positions are too few for sequences of {}.",
            positions[0], in.attributes.sequence);
  }
  set_outputs(in, outputs, dtypes, {{rows, columns}}, {in.precision});
}

void infer_layer_norm(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  check_epsilon(in);
  const Shape& x = in.inputs[0];
  check_rank(in, x, 2, "the input");
  check_shape(in, in.parameters[0], {x[1]}, "the weight");
  check_shape(in, in.parameters[1], {x[1]}, "the bias");
  set_outputs(in, outputs, dtypes, {x, {x[0]}, {x[0]}}, {in.precision, DType::f32, DType::f32});
}

void infer_rms_norm(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  check_epsilon(in);
  const Shape& x = in.inputs[0];
  check_rank(in, x, 2, "the input");
  check_shape(in, in.parameters[0], {x[1]}, "the weight");
  set_outputs(in, outputs, dtypes, {x, {x[0]}}, {in.precision, DType::f32});
}

// Columns of a linear op's output.
int64_t linear_columns(const OpShapes& s) { return s.parameters[0][s.attributes.weight_out_in ? 0 : 1]; }

void infer_linear(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  const Shape& x = in.inputs[0];
  const Shape& weight = in.parameters[0];
  check_rank(in, x, 2, "the input");
  check_rank(in, weight, 2, "the weight");
  const int64_t taken = weight[in.attributes.weight_out_in ? 1 : 0];
  require(taken == x[1], in, "the input has {} columns, the weight {} takes {}.", x[1], text(weight), taken);
  const int64_t columns = linear_columns(in);
  if (in.parameters.size() == 2) check_shape(in, in.parameters[1], {columns}, "the bias");
  set_outputs(in, outputs, dtypes, {{x[0], columns}}, {in.precision});
}

void infer_linear_gelu(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  infer_linear(in, outputs, dtypes);
  outputs.push_back(outputs[0]);
  dtypes.push_back(dtypes[0]);
}

// swiglu, add: all inputs alike, one output like them.
void infer_elementwise(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  for (const Shape& shape : in.inputs) check_shape(in, shape, in.inputs[0], "an input");
  set_outputs(in, outputs, dtypes, {in.inputs[0]}, {in.precision});
}

void check_rope_scaling(const OpShapes& in) {
  const RopeScaling& s = in.attributes.rope_scaling;
  const bool finite = std::isfinite(s.factor) && std::isfinite(s.low) && std::isfinite(s.high) &&
                      std::isfinite(s.original_context);
  require(finite && s.factor > 0, in, "the scaling factor {} is not a positive number.", s.factor);
  if (s.factor == 1) return;
  require(s.low > 0 && s.high > s.low, in,
          "the scaling's low factor {} must be positive and below its high factor {}.", s.low, s.high);
  require(s.original_context > 0, in, "the scaling's original context {} is not positive.",
          s.original_context);
}

void infer_rope(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  const Shape& x = in.inputs[0];
  const OpAttributes& a = in.attributes;
  check_rank(in, x, 2, "the input");
  check_sequence(in, x[0]);
  require(head_columns(in, a.heads) == x[1], in, "{} columns are not {} heads of size {}.", x[1], a.heads,
          a.head_size);
  require(a.head_size % 2 == 0, in, "the head size {} is odd.", a.head_size);
  require(std::isfinite(a.rope_theta) && a.rope_theta > 0, in, "theta {} is not a positive number.",
          a.rope_theta);
  check_rope_scaling(in);
  set_outputs(in, outputs, dtypes, {x}, {in.precision});
}

void infer_attention(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  require(in.inputs.size() != 2, in, "the inputs are q, k and v, or all three packed into one.");
  const OpAttributes& a = in.attributes;
  check_rank(in, in.inputs[0], 2, "the input");
  const int64_t rows = in.inputs[0][0], q_columns = head_columns(in, a.heads),
                kv_columns = head_columns(in, a.kv_heads);
  check_sequence(in, rows);
  require(a.heads % a.kv_heads == 0, in, "{} heads cannot share {} key/value heads evenly.", a.heads,
          a.kv_heads);
  if (in.inputs.size() == 1) {
    int64_t columns = 0;
    require(!__builtin_mul_overflow(kv_columns, 2, &columns) &&
                !__builtin_add_overflow(columns, q_columns, &columns),
            in, "{} heads of size {} overflow.", a.heads, a.head_size);
    check_shape(in, in.inputs[0], {rows, columns}, "the packed input");
  } else {
    check_shape(in, in.inputs[0], {rows, q_columns}, "q");
    check_shape(in, in.inputs[1], {rows, kv_columns}, "k");
    check_shape(in, in.inputs[2], {rows, kv_columns}, "v");
  }
  set_outputs(in, outputs, dtypes, {{rows, q_columns}, {rows / a.sequence, a.heads, a.sequence}},
              {in.precision, DType::f32});
}

void infer_cross_entropy(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  const Shape& x = in.inputs[0];
  const Shape& weight = in.parameters[0];
  check_rank(in, x, 2, "the input");
  check_rank(in, weight, 2, "the weight");
  check_shape(in, in.inputs[1], {x[0]}, "the label vector");
  require(weight[1] == x[1], in, "the input has {} columns, the weight {} takes {}.", x[1], text(weight),
          weight[1]);
  check_index_range(in, weight[0]);
  element_count({x[0], weight[0]});  // the logits, of which a chunk is a part
  set_outputs(in, outputs, dtypes, {{1}}, {DType::f64});
}

// ---- Flops: additions, multiplications, divisions and elementary functions count one each.

double count(const Shape& shape) {
  double product = 1;
  for (const int64_t n : shape) product *= static_cast<double>(n);
  return product;
}

double per_element(const OpShapes& s, double forward, double backward, Pass pass) {
  return count(s.inputs[0]) * (pass == Pass::forward ? forward : backward);
}

double embedding_flops(const OpShapes& s, Pass pass) {
  const double elements = count(s.inputs[0]) * static_cast<double>(s.parameters[0][1]);
  const auto tables = static_cast<double>(s.parameters.size());
  return pass == Pass::forward ? elements * (tables - 1) : elements * tables;
}

// Forward: mean 1, variance 3, normalise 2, affine 2.
// Backward: normalise 2, bias 1, weight 2, dy*w 1, its two row sums 3, dx 4.
double layer_norm_flops(const OpShapes& s, Pass pass) { return per_element(s, 8, 13, pass); }

// Forward: sum of squares 2, normalise 1, weight 1.
// Backward: normalise 1, weight 2, dy*w 1, its row sum 2, dx 3.
double rms_norm_flops(const OpShapes& s, Pass pass) { return per_element(s, 4, 9, pass); }

double linear_flops(const OpShapes& s, Pass pass) {
  const auto columns = static_cast<double>(linear_columns(s));
  const double product = 2 * count(s.inputs[0]) * columns;
  const double bias = s.parameters.size() == 2 ? static_cast<double>(s.inputs[0][0]) * columns : 0;
  return (pass == Pass::forward ? product : 2 * product) + bias;
}

// For each output, forward: the cubic 5, tanh 1, the product 3. Backward: cubic and tanh 6, their derivative
// 11, times dy 1.
double linear_gelu_flops(const OpShapes& s, Pass pass) {
  const double elements = static_cast<double>(s.inputs[0][0]) * static_cast<double>(linear_columns(s));
  return linear_flops(s, pass) + elements * (pass == Pass::forward ? 9 : 18);
}

// Forward: sigmoid 4, two products. Backward: sigmoid 4, silu 1, d up 1, d gate 6.
double swiglu_flops(const OpShapes& s, Pass pass) { return per_element(s, 6, 12, pass); }

double rope_flops(const OpShapes& s, Pass pass) { return per_element(s, 3, 3, pass); }  // 6 for each pair

// Per (query, key) pair under the causal mask: forward q.k and p.v, backward q.k again, do.v, dv, dq, dk:
// 2 D each; the softmax adds 5 (scale, maximum, exp, sum, quotient) and 5 (scale, exp, less delta, product,
// scale).
double attention_flops(const OpShapes& s, Pass pass) {
  const OpAttributes& a = s.attributes;
  const auto rows = static_cast<double>(s.inputs[0][0]), size = static_cast<double>(a.head_size);
  const double pairs = rows * static_cast<double>(a.heads) * static_cast<double>(a.sequence + 1) / 2;
  return pairs * ((pass == Pass::forward ? 4 : 10) * size + 5);
}

double add_flops(const OpShapes& s, Pass pass) { return per_element(s, 1, 0, pass); }

// Forward: logits, then maximum, difference, exp and sum for each. Backward: logits again, the two products
// with their gradient, and for each logit the forward's 4 plus quotient and seed.
double cross_entropy_flops(const OpShapes& s, Pass pass) {
  const auto rows = static_cast<double>(s.inputs[0][0]),
             vocabulary = static_cast<double>(s.parameters[0][0]);
  const double product = 2 * rows * static_cast<double>(s.inputs[0][1]) * vocabulary;
  return pass == Pass::forward ? product + 4 * rows * vocabulary : 3 * product + 6 * rows * vocabulary;
}

// ---- The table, in the order of OpKind: name, inputs (least, most), parameters (least, most), shape rule,
// flops, what backward reads of inputs and outputs, which inputs and outputs have gradients, which of the
// latter backward overwrites.

constexpr std::array<OpRule, kOpKinds> kRules{{
    {"embedding", 1, 1, 1, 2, infer_embedding, embedding_flops, 0b1, 0, 0, 0b1, 0},
    {"layer_norm", 1, 1, 2, 2, infer_layer_norm, layer_norm_flops, 0b1, 0b110, 0b1, 0b1, 0},
    {"rms_norm", 1, 1, 1, 1, infer_rms_norm, rms_norm_flops, 0b1, 0b10, 0b1, 0b1, 0},
    {"linear", 1, 1, 1, 2, infer_linear, linear_flops, 0b1, 0, 0b1, 0b1, 0},
    {"linear_gelu", 1, 1, 1, 2, infer_linear_gelu, linear_gelu_flops, 0b1, 0b10, 0b1, 0b1, 0b1},
    {"swiglu", 2, 2, 0, 0, infer_elementwise, swiglu_flops, 0b11, 0, 0b11, 0b1, 0},
    {"rope", 1, 1, 0, 0, infer_rope, rope_flops, 0, 0, 0b1, 0b1, 0},
    {"attention", 1, 3, 0, 0, infer_attention, attention_flops, 0b111, 0b11, 0b111, 0b1, 0},
    {"add", 2, 2, 0, 0, infer_elementwise, add_flops, 0, 0, 0b11, 0b1, 0},
    {"linear_cross_entropy", 2, 2, 1, 1, infer_cross_entropy, cross_entropy_flops, 0b11, 0, 0b1, 0, 0},
}};
static_assert(static_cast<size_t>(OpKind::linear_cross_entropy) + 1 == kRules.size());

// ---- Bytes.

bool bit(uint32_t mask, size_t i) { return (mask >> i & 1) != 0; }

uint64_t bytes_of(const Shape& shape, DType type) {
  return static_cast<uint64_t>(element_count(shape)) * dtype_bytes(type);
}

// Types of the inputs: token ids and labels are integers, all else is in working precision.
DType input_type(const OpShapes& s, size_t i) {
  const bool integers =
      (s.kind == OpKind::embedding && i == 0) || (s.kind == OpKind::linear_cross_entropy && i == 1);
  return integers ? DType::i32 : s.precision;
}

// Elements of a parameter that one pass touches: of a token table at most a row for each token, of a
// position table the positions of one sequence.
uint64_t touched_elements(const OpShapes& s, size_t parameter) {
  const Shape& shape = s.parameters[parameter];
  if (s.kind != OpKind::embedding) return static_cast<uint64_t>(element_count(shape));
  const int64_t rows = parameter == 0 ? std::min(shape[0], s.inputs[0][0]) : s.attributes.sequence;
  return static_cast<uint64_t>(element_count({rows, shape[1]}));
}

}  // namespace

const OpRule& op_rule(OpKind kind) {
  const auto index = static_cast<size_t>(kind);
  CHECK(index < kRules.size(), "an op without a table entry");
  return kRules[index];
}

std::optional<OpKind> op_kind(std::string_view name) {
  for (size_t i = 0; i < kRules.size(); ++i)
    if (name == kRules[i].name) return static_cast<OpKind>(i);
  return std::nullopt;
}

uint64_t op_bytes(const OpShapes& s, Pass pass) {
  const OpRule& rule = op_rule(s.kind);
  std::vector<Shape> outputs;
  std::vector<DType> types;
  rule.infer(s, outputs, types);
  const bool forward = pass == Pass::forward;
  uint64_t bytes = 0;
  for (size_t i = 0; i < s.inputs.size(); ++i) {
    if (forward || bit(rule.backward_reads_inputs, i)) bytes += bytes_of(s.inputs[i], input_type(s, i));
    if (!forward && bit(rule.gradient_inputs, i)) bytes += bytes_of(s.inputs[i], s.precision);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool loss = s.kind == OpKind::linear_cross_entropy;  // added to in both passes
    if (forward || loss || bit(rule.backward_reads_outputs, i)) bytes += bytes_of(outputs[i], types[i]);
    if (!forward && bit(rule.gradient_outputs, i)) bytes += bytes_of(outputs[i], s.precision);
  }
  for (size_t i = 0; i < s.parameters.size(); ++i) {
    const bool read_in_backward =
        i == 0 && s.kind != OpKind::embedding;  // weights; no backward reads a bias or a table
    if (forward || read_in_backward) bytes += touched_elements(s, i) * dtype_bytes(s.precision);
    if (!forward) bytes += touched_elements(s, i) * dtype_bytes(DType::f32);
  }
  return bytes;
}

}  // namespace sluice
