#include "engine/graph/op.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>

#include "engine/base/error.h"
#include "engine/graph/routing.h"

namespace sluice {

namespace {

bool bit(uint32_t mask, size_t i) { return (mask >> i & 1) != 0; }

uint64_t bytes_of(const Shape& shape, DType type) {
  return static_cast<uint64_t>(element_count(shape)) * dtype_bytes(type);
}

uint64_t touched_elements(const OpRule& rule, const OpShapes& s, size_t parameter) {
  return rule.touched_elements ? rule.touched_elements(s, parameter)
                               : static_cast<uint64_t>(element_count(s.parameters[parameter]));
}

// For rules without examples of their own.
std::vector<OpExample> plain_examples(const OpRule& rule, const ExampleSizes& n) {
  std::vector<OpExample> out;
  for (const int64_t rows : {n.rows, n.rows / 8})
    out.push_back({{}, std::vector<Shape>(rule.inputs.least, {rows, n.width}), {}});
  return out;
}

}  // namespace

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

int64_t loss_rows(int64_t vocabulary, int64_t logits_max) {
  CHECK(vocabulary > 0, "a vocabulary has at least one entry");
  const auto quotient = static_cast<uint64_t>(logits_max / vocabulary);
  return std::max<int64_t>(16, static_cast<int64_t>(std::bit_floor(quotient)));
}

int64_t rows_at_a_time(const OpShapes& loss) {
  const int64_t rows = loss.inputs[0][0], most = loss.attributes.loss_rows;
  return most == 0 ? rows : std::min(rows, most);
}

const char* recompute_name(Recompute level) {
  constexpr std::array<const char*, kRecomputes.size()> kNames{"none", "cheap", "products", "all"};
  return kNames[static_cast<size_t>(level)];
}

DType input_type(const OpShapes& s, size_t input) {
  if (s.inputs[input].size() == 1) return DType::i32;
  const bool weights = s.attributes.routing.weighted && input + 1 == s.inputs.size();
  return weights || bit(op_rule(s.kind).fp32_inputs, input) ? DType::f32 : s.precision;
}

bool has_gradient(const OpShapes& s, size_t input) {
  return bit(op_rule(s.kind).gradient_inputs, input) && input_type(s, input) != DType::i32;
}

std::vector<OpShapes> op_examples(OpKind kind, DType precision, const ExampleSizes& sizes) {
  const OpRule& rule = op_rule(kind);
  std::vector<OpShapes> out;
  for (OpExample& e : rule.examples != nullptr ? rule.examples(sizes) : plain_examples(rule, sizes)) {
    out.push_back({kind, e.attributes, precision, std::move(e.inputs), {}, std::move(e.parameters)});
    std::vector<DType> types;
    rule.infer(out.back(), out.back().outputs, types);
  }
  return out;
}

uint64_t op_bytes(const OpShapes& s, Pass pass) {
  const OpRule& rule = op_rule(s.kind);
  std::vector<Shape> outputs;
  std::vector<DType> types;
  rule.infer(s, outputs, types);
  const bool forward = pass == Pass::forward;
  // An op of experts touches only the rows of its expert, or of one expert of each rank.
  const bool between = is_between_ranks(s.kind),
             of_experts = rule.of_an_expert || s.kind == OpKind::all_to_allv;
  const double ranks = between ? static_cast<double>(s.attributes.routing.ranks()) : 1;
  const double touched = of_experts ? ranks * assumed_rows(s) : 0;
  const auto moved = [&](const Shape& shape, DType type) {
    if (!of_experts || shape.size() == 1) return bytes_of(shape, type);
    const double row = static_cast<double>(bytes_of(shape, type)) / static_cast<double>(shape[0]);
    return static_cast<uint64_t>(touched * row);
  };
  if (between) return 2 * moved(outputs.front(), types.front());  // one part for each rank, and one from each
  uint64_t bytes = 0;
  for (size_t i = 0; i < s.inputs.size(); ++i) {
    if (forward || bit(rule.backward_reads_inputs, i)) bytes += moved(s.inputs[i], input_type(s, i));
    if (!forward && has_gradient(s, i)) bytes += moved(s.inputs[i], input_type(s, i));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (forward || rule.is_loss || bit(rule.backward_reads_outputs, i)) bytes += moved(outputs[i], types[i]);
    if (!forward && bit(rule.gradient_outputs, i)) bytes += moved(outputs[i], types[i]);
  }
  for (size_t i = 0; i < s.parameters.size(); ++i) {
    if (forward || bit(rule.backward_reads_parameters, i))
      bytes += touched_elements(rule, s, i) * dtype_bytes(s.precision);
    if (!forward) bytes += touched_elements(rule, s, i) * dtype_bytes(DType::f32);
  }
  return bytes;
}

std::string op_text(const OpShapes& shapes, Pass pass) {
  std::string out = fmt::format("{} {} of {}", op_rule(shapes.kind).name,
                                pass == Pass::forward ? "forward" : "backward", dtype_name(shapes.precision));
  for (const std::vector<Shape>* operands : {&shapes.inputs, &shapes.parameters})
    for (const Shape& shape : *operands) out += fmt::format(" [{}]", fmt::join(shape, " "));
  return out;
}

}  // namespace sluice
