// The table of ops that devices run. Flops and examples of an op stand above it, shape rules in op_shapes.h.
#include <algorithm>
#include <cmath>
#include <span>

#include "engine/base/error.h"
#include "engine/graph/attention_operands.h"
#include "engine/graph/expert_ops.h"
#include "engine/graph/op_shapes.h"

namespace sluice {

namespace {

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

// Whether the op multiplies by a factor.
bool is_scaled(const OpShapes& s) { return s.attributes.factor() != 1; }

double embedding_flops(const OpShapes& s, Pass pass) {
  const double elements = count(s.inputs[0]) * static_cast<double>(s.parameters[0][1]);
  const auto tables = static_cast<double>(s.parameters.size());
  return (pass == Pass::forward ? elements * (tables - 1) : elements * tables) +
         (is_scaled(s) ? elements : 0);
}

// A scale multiplies what the products give: y, or dx and dW.
double linear_flops(const OpShapes& s, Pass pass) {
  const auto columns = static_cast<double>(linear_columns(s));
  const double product = 2 * count(s.inputs[0]) * columns, y = static_cast<double>(s.inputs[0][0]) * columns;
  const double bias = s.parameters.size() == 2 ? y : 0;
  const double products = pass == Pass::forward ? y : count(s.inputs[0]) + count(s.parameters[0]);
  return (pass == Pass::forward ? product : 2 * product) + bias + (is_scaled(s) ? products : 0);
}

// Forward: sigmoid 4, two products. Backward: sigmoid 4, silu 1, d up 1, d gate 6. With gelu, forward: gelu
// 9, the product. Backward: cubic and tanh 6, gelu 3, d up 1, the derivative 11, d gate 2.
double swiglu_flops(const OpShapes& s, Pass pass) {
  const double elements = count(s.inputs[0]) / (s.inputs.size() == 1 ? 2 : 1);
  if (pass == Pass::forward) return elements * (s.attributes.gelu_gate ? 10 : 6);
  return elements * (s.attributes.gelu_gate ? 23 : 12);
}

// 6 for each pair. A factor needs no more: it is in the table of turns.
double rope_flops(const OpShapes& s, Pass) {
  const double pairs =
      static_cast<double>(s.attributes.heads) * static_cast<double>(s.attributes.frequencies.size());
  return 6 * static_cast<double>(s.inputs[0][0]) * pairs;
}

// For each pair of a query and a key that it sees, each product counts 2 D: q.k and p.v in forward; q.k
// again, do.v, dv, dq and dk in backward. The softmax adds 5 in forward (scale, maximum, exp, sum, quotient)
// and 5 in backward (scale, exp, less delta, product, scale). A soft cap adds 3 (quotient, tanh, product),
// and 6 in backward (these, and its derivative: square, difference, product). A sink adds 4 to each query:
// maximum, difference, exp, sum; backward difference, exp, product, sum. Documents are not known before the
// step: a sequence counts as one.
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

// Counts as attention_flops() does in forward, but each query is taken to see as many keys as it ever can.
double cached_attention_flops(const OpShapes& s, Pass pass) {
  if (pass == Pass::backward) return 0;
  const OpAttributes& a = s.attributes;
  const auto queries = static_cast<double>(s.inputs[kCachedBegins][0]) * static_cast<double>(a.heads);
  const auto seen = static_cast<double>(a.window == 0 ? a.context : std::min(a.context, a.window));
  const double of_pair = 4 * static_cast<double>(a.head_size) + 5 + (a.soft_cap == 0 ? 0 : 3);
  return queries * (seen * of_pair + (attention_has_sinks(s) ? 4 : 0));
}

double no_flops(const OpShapes&, Pass) { return 0; }

// Forward: logits, then maximum, difference, exp and sum for each. Backward: logits again, the two products
// with their gradient, and for each logit the forward's 4, the quotient and the scaling of the gradient. A
// soft cap adds 3 and 6 for each logit, as in attention. A scale multiplies what the products give. To count
// right rows, each logit is compared.
double cross_entropy_flops(const OpShapes& s, Pass pass) {
  const auto rows = static_cast<double>(s.inputs[0][0]), vocabulary = static_cast<double>(s.parameters[0][0]);
  const double product = 2 * rows * static_cast<double>(s.inputs[0][1]) * vocabulary;
  const double logits = rows * vocabulary;
  const bool forward = pass == Pass::forward, capped = s.attributes.soft_cap != 0;
  const double of_logits = (forward ? (capped ? 7 : 4) : (capped ? 12 : 6)) + s.attributes.counts_right;
  const double gradients = forward ? 0 : count(s.inputs[0]) + count(s.parameters[0]);
  return (forward ? 1 : 3) * product + of_logits * logits + (is_scaled(s) ? logits + gradients : 0);
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
  OpAttributes a{.sequence = few_rows(n), .heads = n.width / kExampleHeadSize, .head_size = kExampleHeadSize};
  for (int64_t i = 0; i < kExampleHeadSize / 2; ++i)
    a.frequencies.push_back(std::pow(10000, -2.0 * static_cast<double>(i) / kExampleHeadSize));
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

// One token of each of 8 sequences, then several tokens of one sequence.
Examples cached_attention_examples(const ExampleSizes& n) {
  const int64_t heads = n.width / kExampleHeadSize;
  Examples out;
  for (const int64_t sequence : {int64_t{1}, few_rows(n)}) {
    const int64_t rows = sequence == 1 ? 8 : sequence, context = n.rows;
    out.push_back({{.sequence = sequence,
                    .context = context,
                    .heads = heads,
                    .kv_heads = heads,
                    .head_size = kExampleHeadSize},
                   {{rows / sequence, context, 2 * n.width}, {rows}, {rows, 3 * n.width}},
                   {}});
  }
  return out;
}

Examples pick_rows_examples(const ExampleSizes& n) {
  return {{{}, {{n.rows, n.width}, {few_rows(n)}}, {}}, {{}, {{few_rows(n), n.width}, {1}}, {}}};
}

Examples cross_entropy_examples(const ExampleSizes& n) {
  Examples out;
  for (const int64_t rows : {n.rows / 2, few_rows(n)})
    out.push_back({{}, {{rows, n.width}, {rows}}, {{n.vocabulary, n.width}}});
  return out;
}

// The elements of a table that a pass touches. In a token table, this is at most a row for each token. In a
// position table, it is a row for each position of one sequence, or for each token where sequences are parts
// of longer documents.
uint64_t embedding_rows(const OpShapes& s, size_t parameter) {
  const Shape& shape = s.parameters[parameter];
  const bool by_row = parameter == 0 || s.attributes.context > 0;
  const int64_t rows = by_row ? std::min(shape[0], s.inputs[0][0]) : s.attributes.sequence;
  return static_cast<uint64_t>(element_count({rows, shape[1]}));
}

// ---- The table. A mask that is not given is 0.

constexpr OpRule kRules[kOpKinds] = {
    {.kind = OpKind::embedding,
     .name = "embedding",
     .made_again = Recompute::cheap,
     .inputs = {1, 2},
     .parameters = {1, 2},
     .infer = infer_embedding,
     .flops = embedding_flops,
     .examples = embedding_examples,
     .backward_reads_inputs = 0b11,
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
    // row sum 2, dx 3. The sums 1 + weight do not count: they are few.
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
    {.kind = OpKind::swiglu,
     .name = "swiglu",
     .made_again = Recompute::cheap,
     .inputs = {1, 2},
     .infer = infer_swiglu,
     .flops = swiglu_flops,
     .examples = activation_examples<2>,
     .backward_reads_inputs = 0b11,
     .gradient_inputs = 0b11,
     .gradient_outputs = 0b1},
    {.kind = OpKind::rope,
     .name = "rope",
     .made_again = Recompute::cheap,
     .inputs = {1, 2},
     .infer = infer_rope,
     .flops = rope_flops,
     .examples = rope_examples,
     .backward_reads_inputs = 0b10,
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
    {.kind = OpKind::cached_attention,
     .name = "cached_attention",
     .made_again = Recompute::all,
     .inputs = {3, 5},
     .parameters = {0, 1},
     .infer = infer_cached_attention,
     .flops = cached_attention_flops,
     .examples = cached_attention_examples,
     .updates_inputs = 0b1},
    {.kind = OpKind::pick_rows,
     .name = "pick_rows",
     .made_again = Recompute::cheap,
     .inputs = {2, 2},
     .infer = infer_pick_rows,
     .flops = no_flops,
     .examples = pick_rows_examples},
    {.kind = OpKind::router,
     .name = "router",
     .made_again = Recompute::products,
     .inputs = {1, 1},
     .parameters = {1, 2},
     .infer = infer_router,
     .flops = router_flops,
     .examples = router_examples,
     .backward_reads_inputs = 0b1,
     .backward_reads_parameters = 0b1,
     .gradient_inputs = 0b1,
     .gradient_outputs = 0b1},
    {.kind = OpKind::route,
     .name = "route",
     .made_again = Recompute::cheap,
     .inputs = {1, 2},
     .parameters = {0, 1},
     .infer = infer_route,
     .flops = route_flops,
     .examples = route_examples,
     .backward_reads_inputs = 0b1,
     .backward_reads_outputs = 0b10,
     .gradient_inputs = 0b1,
     .gradient_outputs = 0b1,
     .fp32_inputs = 0b1},
    {.kind = OpKind::router_statistics,
     .name = "router_statistics",
     .made_again = Recompute::all,
     .inputs = {2, 3},
     .infer = infer_router_statistics,
     .flops = router_statistics_flops,
     .examples = router_statistics_examples,
     .backward_reads_inputs = 0b101,
     .gradient_inputs = 0b1,
     .gradient_outputs = 0b1,
     .adds_to_outputs = 0b1,
     .fp32_inputs = 0b1},
    {.kind = OpKind::router_loss,
     .name = "router_loss",
     .made_again = Recompute::all,
     .inputs = {2, 2},
     .infer = infer_router_loss,
     .flops = router_loss_flops,
     .examples = router_loss_examples,
     .backward_reads_inputs = 0b11,
     .gradient_inputs = 0b1,
     .fp32_inputs = 0b1,
     .is_loss = true},
    {.kind = OpKind::dispatch,
     .name = "dispatch",
     .made_again = Recompute::cheap,
     .inputs = {2, 2},
     .infer = infer_dispatch,
     .flops = no_flops,
     .examples = dispatch_examples,
     .backward_reads_inputs = 0b1,
     .gradient_inputs = 0b10,
     .gradient_outputs = 0b1,
     .of_an_expert = true},
    {.kind = OpKind::expert_linear,
     .name = "expert_linear",
     .made_again = Recompute::products,
     .inputs = {2, 3},
     .parameters = {1, 2},
     .infer = infer_expert_linear,
     .flops = expert_linear_flops,
     .examples = expert_linear_examples,
     .backward_reads_inputs = 0b111,
     .backward_reads_parameters = 0b11,
     .gradient_inputs = 0b110,
     .gradient_outputs = 0b1,
     .overwrites_parameters = 0b1,
     .of_an_expert = true},
    {.kind = OpKind::expert_swiglu,
     .name = "expert_swiglu",
     .made_again = Recompute::cheap,
     .inputs = {2, 4},
     .infer = infer_expert_swiglu,
     .flops = expert_swiglu_flops,
     .examples = expert_swiglu_examples,
     .backward_reads_inputs = 0b1111,
     .gradient_inputs = 0b1110,
     .gradient_outputs = 0b1,
     .of_an_expert = true},
    {.kind = OpKind::combine,
     .name = "combine",
     .made_again = Recompute::cheap,
     .inputs = {2, 2},
     .infer = infer_combine,
     .flops = combine_flops,
     .examples = combine_examples,
     .backward_reads_inputs = 0b1,
     .gradient_inputs = 0b10,
     .gradient_outputs = 0b1,
     .adds_to_outputs = 0b1,
     .of_an_expert = true},
    {.kind = OpKind::add_sum,
     .name = "add_sum",
     .made_again = Recompute::cheap,
     .inputs = {2, 2},
     .infer = infer_elementwise,
     .flops = flops_per_element<1, 0>,
     .gradient_inputs = 0b11,
     .gradient_outputs = 0b1,
     .passes_gradient = 0b1,
     .fp32_inputs = 0b10},
    {.kind = OpKind::add_noise,
     .name = "add_noise",
     .made_again = Recompute::cheap,
     .inputs = {3, 3},
     .infer = infer_add_noise,
     .flops = flops_per_element<20, 20>,  // of the normal number; softplus, or its derivative; their product
     .examples = add_noise_examples,
     .backward_reads_inputs = 0b110,
     .gradient_inputs = 0b11,
     .gradient_outputs = 0b1,
     .passes_gradient = 0b1,
     .fp32_inputs = 0b11},
    {.kind = OpKind::add_shared_sum,
     .name = "add_shared_sum",
     .made_again = Recompute::cheap,
     .inputs = {4, 4},
     .infer = infer_add_shared_sum,
     .flops = flops_per_element<4, 6>,
     .examples = add_shared_sum_examples,
     .backward_reads_inputs = 0b1110,
     .gradient_inputs = 0b1111,
     .gradient_outputs = 0b1,
     .passes_gradient = 0b1,
     .fp32_inputs = 0b1100},
    {.kind = OpKind::repeat,
     .name = "repeat",
     .made_again = Recompute::cheap,
     .inputs = {1, 1},
     .infer = infer_repeat,
     .flops = flops_per_element<0, 1>,
     .examples = repeat_examples,
     .gradient_inputs = 0b1,
     .gradient_outputs = 0b1,
     .fp32_inputs = 0b1},
};
static_assert(NoneMissing<first_missing(kRules)>,
              "engine/graph/op_table.cc: every OpKind has a row in kRules, in the order of OpKind");

}  // namespace

const OpRule& op_rule(OpKind kind) {
  const auto index = static_cast<size_t>(kind);
  const std::span<const OpRule> rules = is_between_ranks(kind) ? rules_between_ranks() : kRules;
  const size_t row = is_between_ranks(kind) ? index - kOpKinds - 1 : index;
  CHECK(row < rules.size(), "an op without a row in the table");
  return rules[row];
}

std::optional<OpKind> op_kind(std::string_view name) {
  for (const std::span<const OpRule> rules : {std::span<const OpRule>(kRules), rules_between_ranks()})
    for (const OpRule& rule : rules)
      if (name == rule.name) return rule.kind;
  return std::nullopt;
}

}  // namespace sluice
