// The table of ops. What an op's row needs stands above it: shape rules, flops and examples.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "engine/base/error.h"
#include "engine/graph/attention_operands.h"
#include "engine/graph/op.h"

namespace sluice {

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
  require(in.inputs.size() >= rule.inputs.least && in.inputs.size() <= rule.inputs.most, in,
          "{} inputs are given, {} to {} are taken.", in.inputs.size(), rule.inputs.least, rule.inputs.most);
  require(in.parameters.size() >= rule.parameters.least && in.parameters.size() <= rule.parameters.most, in,
          "{} parameters are given, {} to {} are taken.", in.parameters.size(), rule.parameters.least,
          rule.parameters.most);
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
  for (const Shape& shape : shapes) require(element_count(shape) > 0, in, "output {} is empty.", text(shape));
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

// For elementwise ops: all inputs have one shape, and so has the output.
void infer_elementwise(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  check_rank(in, in.inputs[0], 2, "the input");
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

void check_scores(const OpShapes& in) {
  const OpAttributes& a = in.attributes;
  const auto not_negative = [](double value) { return std::isfinite(value) && value >= 0; };
  require(a.window >= 0, in, "the window {} is negative.", a.window);
  require(not_negative(a.soft_cap), in, "the soft cap {} is neither a positive number nor 0.", a.soft_cap);
  require(not_negative(a.scale), in, "the scale {} is neither a positive number nor 0.", a.scale);
}

void infer_attention(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  require(in.inputs.size() != 2 || in.inputs[1].size() == 1, in,
          "the inputs are q, k and v, or all three packed into one.");
  check_scores(in);
  const OpAttributes& a = in.attributes;
  check_rank(in, in.inputs[0], 2, "the input");
  const int64_t rows = in.inputs[0][0], q_columns = head_columns(in, a.heads),
                kv_columns = head_columns(in, a.kv_heads);
  check_sequence(in, rows);
  require(a.heads % a.kv_heads == 0, in, "{} heads cannot share {} key/value heads evenly.", a.heads,
          a.kv_heads);
  if (attention_is_packed(in)) {
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
  if (attention_has_documents(in)) check_shape(in, in.inputs.back(), {rows}, "the vector of document begins");
  if (attention_has_sinks(in)) check_shape(in, in.parameters[0], {a.heads}, "the vector of sinks");
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

// ---- Flops: additions, multiplications, divisions, comparisons and elementary functions count one each.

double count(const Shape& shape) {
  double product = 1;
  for (const int64_t n : shape) product *= static_cast<double>(n);
  return product;
}

// `forward` or `backward` flops for each element of the first input.
template <int forward, int backward>
double flops_per_element(const OpShapes& s, Pass pass) {
  return count(s.inputs[0]) * (pass == Pass::forward ? forward : backward);
}

double embedding_flops(const OpShapes& s, Pass pass) {
  const double elements = count(s.inputs[0]) * static_cast<double>(s.parameters[0][1]);
  const auto tables = static_cast<double>(s.parameters.size());
  return pass == Pass::forward ? elements * (tables - 1) : elements * tables;
}

double linear_flops(const OpShapes& s, Pass pass) {
  const auto columns = static_cast<double>(linear_columns(s));
  const double product = 2 * count(s.inputs[0]) * columns;
  const double bias = s.parameters.size() == 2 ? static_cast<double>(s.inputs[0][0]) * columns : 0;
  return (pass == Pass::forward ? product : 2 * product) + bias;
}

// Per pair of a query and a key that it sees: forward q.k and p.v, backward q.k again, do.v, dv, dq, dk: 2 D
// each; the softmax adds 5 (scale, maximum, exp, sum, quotient) and 5 (scale, exp, less delta, product,
// scale). A soft cap adds 3 (quotient, tanh, product), and 6 in backward (these, and its derivative: square,
// difference, product). A sink adds 4 to each query: maximum, difference, exp, sum; backward difference, exp,
// product, sum. Documents are not known before the step: a sequence counts as one.
double attention_flops(const OpShapes& s, Pass pass) {
  const OpAttributes& a = s.attributes;
  const bool forward = pass == Pass::forward;
  const auto size = static_cast<double>(a.head_size), length = static_cast<double>(a.sequence);
  const auto heads = static_cast<double>(s.inputs[0][0] / a.sequence) * static_cast<double>(a.heads);
  // The first queries of a sequence see 1, 2, ... keys, the others see `widest` each.
  const double widest = a.window == 0 ? length : std::min(length, static_cast<double>(a.window));
  const double pairs = heads * (widest * (widest + 1) / 2 + (length - widest) * widest);
  const double cap = a.soft_cap == 0 ? 0 : forward ? 3 : 6;
  return pairs * ((forward ? 4 : 10) * size + 5 + cap) + (attention_has_sinks(s) ? 4 * heads * length : 0);
}

// Forward: logits, then maximum, difference, exp and sum for each. Backward: logits again, the two products
// with their gradient, and for each logit the forward's 4, the quotient and the scaling of the gradient.
double cross_entropy_flops(const OpShapes& s, Pass pass) {
  const auto rows = static_cast<double>(s.inputs[0][0]), vocabulary = static_cast<double>(s.parameters[0][0]);
  const double product = 2 * rows * static_cast<double>(s.inputs[0][1]) * vocabulary;
  return pass == Pass::forward ? product + 4 * rows * vocabulary : 3 * product + 6 * rows * vocabulary;
}

// ---- Examples: with many rows, and with few.

using Examples = std::vector<OpExample>;
constexpr int64_t kExampleHeadSize = 64;

int64_t few_rows(const ExampleSizes& n) { return n.rows / 8; }

Examples embedding_examples(const ExampleSizes& n) {
  Examples out;
  for (const int64_t rows : {n.rows, few_rows(n)})
    out.push_back({{.sequence = few_rows(n)}, {{rows}}, {{n.vocabulary, n.width}, {few_rows(n), n.width}}});
  return out;
}

template <size_t parameters>
Examples norm_examples(const ExampleSizes& n) {
  Examples out;
  for (const int64_t rows : {n.rows, few_rows(n)})
    out.push_back({{.epsilon = 1e-5}, {{rows, n.width}}, std::vector<Shape>(parameters, {n.width})});
  return out;
}

Examples linear_examples(const ExampleSizes& n) {
  const int64_t few = few_rows(n), width = n.width;
  return {{{}, {{n.rows, width}}, {{width, 3 * width}, {3 * width}}},
          {{}, {{few, width}}, {{width, 2 * width}, {2 * width}}},
          {{}, {{n.rows, 4 * width}}, {{4 * width, width}, {width}}}};
}

template <size_t inputs>
Examples activation_examples(const ExampleSizes& n) {
  Examples out;
  for (const int64_t rows : {n.rows, few_rows(n)})
    out.push_back({{}, std::vector<Shape>(inputs, {rows, 3 * n.width}), {}});
  return out;
}

Examples rope_examples(const ExampleSizes& n) {
  const OpAttributes a{.sequence = few_rows(n),
                       .heads = n.width / kExampleHeadSize,
                       .head_size = kExampleHeadSize,
                       .rope_theta = 10000};
  return {{a, {{n.rows, n.width}}, {}}, {a, {{few_rows(n), n.width}}, {}}};
}

// Several lengths of sequences: the flops grow with the sequence.
Examples attention_examples(const ExampleSizes& n) {
  const int64_t heads = n.width / kExampleHeadSize;
  Examples out;
  for (const int64_t sequence : {n.rows, n.rows / 4, n.rows / 8})
    out.push_back({{.sequence = sequence, .heads = heads, .kv_heads = heads, .head_size = kExampleHeadSize},
                   {{n.rows, 3 * n.width}},
                   {}});
  return out;
}

Examples cross_entropy_examples(const ExampleSizes& n) {
  Examples out;
  for (const int64_t rows : {n.rows / 2, few_rows(n)})
    out.push_back({{}, {{rows, n.width}, {rows}}, {{n.vocabulary, n.width}}});
  return out;
}

// Elements that are touched: of a token table, at most a row for each token; of a position table, a row for
// each position of one sequence.
uint64_t embedding_rows(const OpShapes& s, size_t parameter) {
  const Shape& shape = s.parameters[parameter];
  const int64_t rows = parameter == 0 ? std::min(shape[0], s.inputs[0][0]) : s.attributes.sequence;
  return static_cast<uint64_t>(element_count({rows, shape[1]}));
}

// ---- The table. A mask that is not given is 0.

constexpr OpRule kRules[kOpKinds] = {
    {.kind = OpKind::embedding,
     .name = "embedding",
     .made_again = Recompute::cheap,
     .inputs = {1, 1},
     .parameters = {1, 2},
     .infer = infer_embedding,
     .flops = embedding_flops,
     .examples = embedding_examples,
     .backward_reads_inputs = 0b1,
     .gradient_outputs = 0b1,
     .looks_up_rows = true,
     .touched_elements = embedding_rows},
    // Flops, forward: mean 1, variance 3, normalise 2, affine 2. Backward: normalise 2, bias 1, weight 2,
    // dy*w 1, its two row sums 3, dx 4.
    {.kind = OpKind::layer_norm,
     .name = "layer_norm",
     .made_again = Recompute::cheap,
     .inputs = {1, 1},
     .parameters = {2, 2},
     .infer = infer_layer_norm,
     .flops = flops_per_element<8, 13>,
     .examples = norm_examples<2>,
     .backward_reads_inputs = 0b1,
     .backward_reads_outputs = 0b110,
     .backward_reads_parameters = 0b1,
     .gradient_inputs = 0b1,
     .gradient_outputs = 0b1},
    // Flops, forward: sum of squares 2, normalise 1, weight 1. Backward: normalise 1, weight 2, dy*w 1, its
    // row sum 2, dx 3.
    {.kind = OpKind::rms_norm,
     .name = "rms_norm",
     .made_again = Recompute::cheap,
     .inputs = {1, 1},
     .parameters = {1, 1},
     .infer = infer_rms_norm,
     .flops = flops_per_element<4, 9>,
     .examples = norm_examples<1>,
     .backward_reads_inputs = 0b1,
     .backward_reads_outputs = 0b10,
     .backward_reads_parameters = 0b1,
     .gradient_inputs = 0b1,
     .gradient_outputs = 0b1},
    {.kind = OpKind::linear,
     .name = "linear",
     .made_again = Recompute::products,
     .inputs = {1, 1},
     .parameters = {1, 2},
     .infer = infer_linear,
     .flops = linear_flops,
     .examples = linear_examples,
     .backward_reads_inputs = 0b1,
     .backward_reads_parameters = 0b1,
     .gradient_inputs = 0b1,
     .gradient_outputs = 0b1,
     .overwrites_parameters = 0b1},
    // Flops, forward: the cubic 5, tanh 1, the product 3. Backward: cubic and tanh 6, their derivative 11,
    // times dy 1.
    {.kind = OpKind::gelu,
     .name = "gelu",
     .made_again = Recompute::cheap,
     .inputs = {1, 1},
     .infer = infer_elementwise,
     .flops = flops_per_element<9, 18>,
     .examples = activation_examples<1>,
     .backward_reads_inputs = 0b1,
     .gradient_inputs = 0b1,
     .gradient_outputs = 0b1},
    // Flops, forward: sigmoid 4, two products. Backward: sigmoid 4, silu 1, d up 1, d gate 6.
    {.kind = OpKind::swiglu,
     .name = "swiglu",
     .made_again = Recompute::cheap,
     .inputs = {2, 2},
     .infer = infer_elementwise,
     .flops = flops_per_element<6, 12>,
     .examples = activation_examples<2>,
     .backward_reads_inputs = 0b11,
     .gradient_inputs = 0b11,
     .gradient_outputs = 0b1},
    {.kind = OpKind::rope,
     .name = "rope",
     .made_again = Recompute::cheap,
     .inputs = {1, 1},
     .infer = infer_rope,
     .flops = flops_per_element<3, 3>,  // 6 for each pair
     .examples = rope_examples,
     .gradient_inputs = 0b1,
     .gradient_outputs = 0b1},
    {.kind = OpKind::attention,
     .name = "attention",
     .made_again = Recompute::all,
     .inputs = {1, 4},
     .parameters = {0, 1},
     .infer = infer_attention,
     .flops = attention_flops,
     .examples = attention_examples,
     .backward_reads_inputs = 0b1111,
     .backward_reads_outputs = 0b11,
     .backward_reads_parameters = 0b1,
     .gradient_inputs = 0b1111,
     .gradient_outputs = 0b1},
    {.kind = OpKind::add,
     .name = "add",
     .made_again = Recompute::cheap,
     .inputs = {2, 2},
     .infer = infer_elementwise,
     .flops = flops_per_element<1, 0>,
     .gradient_inputs = 0b11,
     .gradient_outputs = 0b1,
     .passes_gradient = 0b11},
    {.kind = OpKind::linear_cross_entropy,
     .name = "linear_cross_entropy",
     .made_again = Recompute::all,
     .inputs = {2, 2},
     .parameters = {1, 1},
     .infer = infer_cross_entropy,
     .flops = cross_entropy_flops,
     .examples = cross_entropy_examples,
     .backward_reads_inputs = 0b11,
     .backward_reads_parameters = 0b1,
     .gradient_inputs = 0b1,
     .overwrites_parameters = 0b1,
     .is_loss = true},
};
static_assert(NoneMissing<first_missing(kRules)>,
              "engine/graph/op_table.cc: every OpKind has a row in kRules, in the order of OpKind");

}  // namespace

const OpRule& op_rule(OpKind kind) {
  CHECK(kind < OpKind::number_of_kinds, "an op without a row in the table");
  return kRules[static_cast<size_t>(kind)];
}

}  // namespace sluice
