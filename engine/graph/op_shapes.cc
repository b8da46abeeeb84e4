#include "engine/graph/op_shapes.h"

#include <algorithm>

#include "engine/graph/attention_operands.h"
#include "engine/graph/shape_checks.h"

namespace sluice {
namespace {

// Checks what both kinds of attention have: q, k and v or all three packed, from input `first` on, and how
// scores are made.
void check_projections(const OpShapes& in, size_t first, int64_t rows) {
  const OpAttributes& a = in.attributes;
  require(a.window >= 0, in, "the window {} is negative.", a.window);
  check_soft_cap(in);
  check_scale(in);
  const int64_t q_columns = head_columns(in, a.heads), kv_columns = head_columns(in, a.kv_heads);
  require(a.heads % a.kv_heads == 0, in, "{} heads cannot share {} key/value heads evenly.", a.heads,
          a.kv_heads);
  if (in.inputs.size() < first + 3) {
    int64_t columns = 0;
    require(!__builtin_mul_overflow(kv_columns, 2, &columns) &&
                !__builtin_add_overflow(columns, q_columns, &columns),
            in, "{} heads of size {} overflow.", a.heads, a.head_size);
    check_shape(in, in.inputs[first], {rows, columns}, "the packed input");
  } else {
    check_shape(in, in.inputs[first], {rows, q_columns}, "q");
    check_shape(in, in.inputs[first + 1], {rows, kv_columns}, "k");
    check_shape(in, in.inputs[first + 2], {rows, kv_columns}, "v");
  }
  if (attention_has_sinks(in)) check_shape(in, in.parameters[0], {a.heads}, "the vector of sinks");
}

}  // namespace

void infer_embedding(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  check_rank(in, in.inputs[0], 1, "tokens");
  check_rank(in, in.parameters[0], 2, "the token table");
  const int64_t rows = in.inputs[0][0], columns = in.parameters[0][1];
  check_index_range(in, in.parameters[0][0]);
  check_scale(in);
  require(in.inputs.size() == 1 || in.parameters.size() == 2, in,
          "document begins are given, and no position table.");
  if (in.inputs.size() == 2) check_documents(in, in.inputs[1], rows);
  if (in.parameters.size() == 2) {
    check_sequence(in, rows);
    const Shape& positions = in.parameters[1];
    check_rank(in, positions, 2, "the position table");
    require(positions[1] == columns, in, "the tables have {} and {} columns.", columns, positions[1]);
    const int64_t longest = std::max(in.attributes.sequence, in.attributes.context);
    require(positions[0] >= longest, in, "{} positions are too few for sequences of {}.", positions[0],
            longest);
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
  const Shape& weight = in.parameters[0];
  check_rank(in, weight, 1, "the weight");
  require(x[1] % weight[0] == 0, in, "{} columns are no multiple of the weight's {}.", x[1], weight[0]);
  Shape statistics = {x[0], x[1] / weight[0]};
  if (statistics[1] == 1) statistics.pop_back();
  set_outputs(in, outputs, dtypes, {x, statistics}, {in.precision, DType::f32});
}

void infer_linear(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  const Shape& x = in.inputs[0];
  const Shape& weight = in.parameters[0];
  check_rank(in, x, 2, "the input");
  check_rank(in, weight, 2, "the weight");
  const int64_t taken = weight[in.attributes.weight_out_in ? 1 : 0];
  require(taken == x[1], in, "the input has {} columns, the weight {} takes {}.", x[1], text(weight), taken);
  const int64_t columns = linear_columns(in);
  check_scale(in);
  if (in.parameters.size() == 2) check_shape(in, in.parameters[1], {columns}, "the bias");
  set_outputs(in, outputs, dtypes, {{x[0], columns}}, {in.precision});
}

void infer_elementwise(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  check_rank(in, in.inputs[0], 2, "the input");
  for (const Shape& shape : in.inputs) check_shape(in, shape, in.inputs[0], "an input");
  set_outputs(in, outputs, dtypes, {in.inputs[0]}, {in.precision});
}

void infer_swiglu(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  if (in.inputs.size() != 1) return infer_elementwise(in, outputs, dtypes);
  check_operands(in);
  const Shape& x = in.inputs[0];
  check_rank(in, x, 2, "the input");
  require(x[1] % 2 == 0, in, "{} columns are not a gate and as many others.", x[1]);
  set_outputs(in, outputs, dtypes, {{x[0], x[1] / 2}}, {in.precision});
}

void infer_rope(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  const Shape& x = in.inputs[0];
  const OpAttributes& a = in.attributes;
  check_rank(in, x, 2, "the input");
  check_sequence(in, x[0]);
  require(head_columns(in, a.heads) <= x[1], in, "{} columns are fewer than {} heads of size {} have.", x[1],
          a.heads, a.head_size);
  const auto pairs = static_cast<int64_t>(a.frequencies.size());
  require(pairs >= 1 && pairs <= a.head_size / 2, in, "{} frequencies are given for heads of size {}.", pairs,
          a.head_size);
  for (const double frequency : a.frequencies)
    require(not_negative(frequency), in, "the frequency {} is neither a positive number nor 0.", frequency);
  check_scale(in);
  if (in.inputs.size() == 2) check_documents(in, in.inputs[1], x[0]);
  set_outputs(in, outputs, dtypes, {x}, {in.precision});
}

void infer_attention(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  require(in.inputs.size() != 2 || in.inputs[1].size() == 1, in,
          "the inputs are q, k and v, or all three packed into one.");
  const OpAttributes& a = in.attributes;
  check_rank(in, in.inputs[0], 2, "the input");
  const int64_t rows = in.inputs[0][0], q_columns = head_columns(in, a.heads);
  check_sequence(in, rows);
  check_projections(in, 0, rows);
  if (const auto documents = attention_documents(in)) check_documents(in, in.inputs[*documents], rows);
  set_outputs(in, outputs, dtypes, {{rows, q_columns}, {rows / a.sequence, a.heads, a.sequence}},
              {in.precision, DType::f32});
}

void infer_cached_attention(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  require(in.inputs.size() != 4, in,
          "the inputs after the begins are q, k and v, or all three packed into one.");
  const OpAttributes& a = in.attributes;
  check_rank(in, in.inputs[kCachedQuery], 2, "the input");
  const int64_t rows = in.inputs[kCachedQuery][0];
  check_sequence(in, rows);
  check_projections(in, kCachedQuery, rows);
  check_documents(in, in.inputs[kCachedBegins], rows);
  require(a.context >= a.sequence, in, "{} tokens of context are fewer than the {} of a sequence's rows.",
          a.context, a.sequence);
  int64_t columns = 0;
  require(!__builtin_mul_overflow(head_columns(in, a.kv_heads), 2, &columns), in,
          "{} heads of size {} overflow.", a.kv_heads, a.head_size);
  check_shape(in, in.inputs[kCache], {rows / a.sequence, a.context, columns}, "the cache");
  set_outputs(in, outputs, dtypes, {{rows, head_columns(in, a.heads)}}, {in.precision});
}

void infer_pick_rows(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  check_rank(in, in.inputs[0], 2, "the input");
  check_rank(in, in.inputs[1], 1, "the vector of rows");
  set_outputs(in, outputs, dtypes, {{in.inputs[1][0], in.inputs[0][1]}}, {in.precision});
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
  check_soft_cap(in);
  check_scale(in);
  element_count({x[0], weight[0]});  // checks the size of all logits, of which a device holds a part
  set_outputs(in, outputs, dtypes, {{in.attributes.counts_right ? 2 : 1}}, {DType::f64});
}

}  // namespace sluice
