#include "engine/graph/expert_ops.h"

#include <limits>

#include "engine/graph/draws.h"
#include "engine/graph/op_shapes.h"
#include "engine/graph/routing.h"
#include "engine/graph/shape_checks.h"

namespace sluice {
namespace {

void check_routing(const OpShapes& in) {
  const Routing& r = in.attributes.routing;
  require(r.experts >= 1 && r.experts <= std::numeric_limits<int32_t>::max(), in,
          "{} experts are not possible.", r.experts);
  require(r.chosen >= 1 && r.chosen <= r.experts, in, "{} of {} experts cannot be chosen.", r.chosen,
          r.experts);
  require(not_negative(r.capacity_factor) && r.least_capacity >= 0, in,
          "a capacity of {} times the fair share, and at least {}, is not possible.", r.capacity_factor,
          r.least_capacity);
  require(r.counted >= 0 && r.counted <= r.chosen, in, "{} of {} choices cannot count.", r.counted, r.chosen);
}

// If choices can be dropped, checks that the rows are whole groups: an expert has a capacity in each group.
void check_groups(const OpShapes& in, int64_t rows) {
  const Routing& r = in.attributes.routing;
  if (r.drops())
    require(r.group_rows > 0 && rows % r.group_rows == 0, in, "{} rows are not whole groups of {}.", rows,
            r.group_rows);
}

// Checks the shape of the routing of `rows` rows.
void check_routing_of(const OpShapes& in, const Shape& routing, int64_t rows) {
  check_routing(in);
  const Routing& r = in.attributes.routing;
  check_shape(in, routing, {RoutingLayout{rows, r.experts, r.chosen}.size()}, "the routing");
}

// Checks the routing of an op of an expert; returns the number of its rows.
int64_t checked_rows(const OpShapes& in) {
  check_routing(in);
  check_rank(in, in.inputs[0], 1, "the routing");
  const int64_t rows = routing_layout(in).rows;
  require(rows > 0, in, "the routing has {} elements.", in.inputs[0][0]);
  check_routing_of(in, in.inputs[0], rows);
  check_groups(in, rows);
  return rows;
}

// Returns M (routing.h).
int64_t with_zeros_most(const OpShapes& in, int64_t rows) {
  return expert_rows_most(rows_of_expert_most(in.attributes.routing, rows));
}

// Checks and returns the number of ranks that experts are divided over.
int64_t checked_ranks(const OpShapes& in) {
  check_operands(in);
  check_routing(in);
  const Routing& r = in.attributes.routing;
  require(r.ranks() >= 1 && r.experts % r.ranks() == 0, in, "{} experts cannot be divided over {} ranks.",
          r.experts, r.ranks());
  return r.ranks();
}
// As checked_ranks(), and checks that all these ranks carry out the op together.
int64_t checked_ranks_together(const OpShapes& in) {
  const int64_t ranks = checked_ranks(in);
  const ProcessGroup& among = in.attributes.among;
  require(among.is_same_as(in.attributes.routing.over), in, "{} ranks carry it out, and {} have experts.",
          among.count, ranks);
  return ranks;
}

// Checks an op of an expert on tensors of M rows and, if weighted, the rows' weights. Returns R.
int64_t check_expert(const OpShapes& in) {
  check_operands(in);
  const int64_t rows = checked_rows(in);
  const bool weighted = in.attributes.routing.weighted;
  const size_t tensors = in.inputs.size() - (weighted ? 1 : 0);
  require(tensors >= 2, in, "{} inputs are too few.", in.inputs.size());
  for (size_t i = 1; i < tensors; ++i) {
    check_rank(in, in.inputs[i], 2, "the input");
    require(in.inputs[i][0] == with_zeros_most(in, rows), in, "an expert has {} rows, the input {}.",
            with_zeros_most(in, rows), in.inputs[i][0]);
  }
  if (weighted)
    check_shape(in, in.inputs.back(), {rows, in.attributes.routing.chosen}, "the matrix of weights");
  return rows;
}

double size(int64_t n) { return static_cast<double>(n); }

// The number of logits of a router's op.
double logits_of(const OpShapes& s) { return size(s.inputs[0][0]) * size(s.inputs[0][1]); }

Routing example_routing() { return {.experts = 8, .chosen = 2}; }
Shape routing_shape(int64_t rows, const Routing& r) {
  return {RoutingLayout{rows, r.experts, r.chosen}.size()};
}

}  // namespace

void infer_router(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  const Shape& x = in.inputs[0];
  const Shape& weight = in.parameters[0];
  check_rank(in, x, 2, "the input");
  check_rank(in, weight, 2, "the weight");
  require(weight[1] == x[1], in, "the input has {} columns, the weight {} takes {}.", x[1], text(weight),
          weight[1]);
  if (in.parameters.size() == 2) check_shape(in, in.parameters[1], {weight[0]}, "the bias");
  set_outputs(in, outputs, dtypes, {{x[0], weight[0]}}, {DType::f32});
}

void infer_route(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  check_routing(in);
  const Routing& r = in.attributes.routing;
  const Shape& logits = in.inputs[0];
  check_rank(in, logits, 2, "the matrix of logits");
  check_shape(in, logits, {logits[0], r.experts}, "the matrix of logits");
  if (!in.parameters.empty()) check_shape(in, in.parameters[0], {r.experts}, "the correction bias");
  require(r.scores == Routing::Scores::sigmoid || (in.parameters.empty() && r.group_scores <= 1), in,
          "correction biases and sums of scores are for sigmoids.");
  require(not_negative(r.scale), in, "the scale {} is neither a positive number nor 0.", r.scale);
  if (r.groups > 0) {
    require(r.experts % r.groups == 0, in, "{} experts are not {} groups of equal size.", r.experts,
            r.groups);
    const int64_t of_group = r.experts / r.groups;
    require(r.best_groups >= 1 && r.best_groups <= r.groups, in, "the best {} of {} groups are not possible.",
            r.best_groups, r.groups);
    require(r.group_scores >= 1 && r.group_scores <= of_group, in, "{} scores of a group of {} do not exist.",
            r.group_scores, of_group);
    require(r.chosen <= r.best_groups * of_group, in, "{} experts cannot be chosen of {}.", r.chosen,
            r.best_groups * of_group);
  }
  check_groups(in, logits[0]);
  require(!r.random_second || (r.chosen == 2 && r.normalized), in,
          "a second choice is random only of two whose weights sum to 1.");
  require(in.inputs.size() == (r.random_second ? 2u : 1u), in,
          "draws come with a random second choice, and with no other.");
  if (r.random_second) check_shape(in, in.inputs[1], {kDrawWords}, "the vector of draws");
  const RoutingLayout layout{logits[0], r.experts, r.chosen};
  int64_t entries = 0;
  require(!__builtin_mul_overflow(2 * logits[0], r.chosen, &entries) &&
              entries + r.experts < std::numeric_limits<int32_t>::max() &&
              logits[0] <= std::numeric_limits<int32_t>::max() / r.experts,
          in, "{} rows are too many for 32-bit entries and logits.", logits[0]);
  set_outputs(in, outputs, dtypes, {{logits[0], r.chosen}, {layout.size()}}, {DType::f32, DType::i32});
}

void infer_router_statistics(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  check_routing(in);
  check_rank(in, in.inputs[0], 2, "the matrix of logits");
  const int64_t experts = in.attributes.routing.experts;
  check_shape(in, in.inputs[0], {in.inputs[0][0], experts}, "the matrix of logits");
  check_routing_of(in, in.inputs[1], in.inputs[0][0]);
  if (in.inputs.size() == 3) check_shape(in, in.inputs[2], {in.inputs[0][0]}, "the label vector");
  set_outputs(in, outputs, dtypes, {{1, router_statistics_count(experts)}}, {DType::f32});
}

void infer_router_loss(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  check_routing(in);
  const Routing& r = in.attributes.routing;
  check_shape(in, in.inputs[0], {1, router_statistics_count(r.experts)}, "the vector of statistics");
  check_rank(in, in.inputs[1], 1, "the label vector");
  require(r.layers >= 1, in, "{} layers have no routers.", r.layers);
  require(not_negative(r.balance_loss) && not_negative(r.z_loss), in,
          "the factors {} and {} are not both numbers of 0 or more.", r.balance_loss, r.z_loss);
  set_outputs(in, outputs, dtypes, {{3}}, {DType::f64});
}

void infer_dispatch(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  const int64_t rows = checked_rows(in);
  check_rank(in, in.inputs[1], 2, "the input");
  check_shape(in, in.inputs[1], {rows, in.inputs[1][1]}, "the input");
  set_outputs(in, outputs, dtypes, {{with_zeros_most(in, rows), in.inputs[1][1]}}, {in.precision});
}

void infer_expert_linear(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_expert(in);
  const Shape& x = in.inputs[1];
  const Shape& weight = in.parameters[0];
  check_rank(in, weight, 2, "the weight");
  const int64_t taken = weight[in.attributes.weight_out_in ? 1 : 0], columns = linear_columns(in);
  require(taken == x[1], in, "the input has {} columns, the weight {} takes {}.", x[1], text(weight), taken);
  check_scale(in);
  require(!in.attributes.routing.weighted || in.parameters.size() == 2, in,
          "there is no bias to be weighted.");
  if (in.parameters.size() == 2) check_shape(in, in.parameters[1], {columns}, "the bias");
  set_outputs(in, outputs, dtypes, {{x[0], columns}}, {in.precision});
}

void infer_expert_swiglu(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_expert(in);
  const Shape& x = in.inputs[1];
  const bool single = in.inputs.size() - (in.attributes.routing.weighted ? 1 : 0) == 2;
  const bool packed = single && !in.attributes.ungated;
  if (in.attributes.ungated)
    require(single && in.attributes.swiglu_limit == 0, in, "an input or a limit is for gates.");
  else if (packed)
    require(x[1] % 2 == 0, in, "{} columns are not a gate and as many others.", x[1]);
  else
    check_shape(in, in.inputs[2], x, "an input");
  require(not_negative(in.attributes.swiglu_limit) && not_negative(in.attributes.swiglu_alpha), in,
          "the limit {} and alpha {} are not both numbers of 0 or more.", in.attributes.swiglu_limit,
          in.attributes.swiglu_alpha);
  set_outputs(in, outputs, dtypes, {{x[0], packed ? x[1] / 2 : x[1]}}, {in.precision});
}

void infer_combine(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  const int64_t rows = check_expert(in);
  set_outputs(in, outputs, dtypes, {{rows, in.inputs[1][1]}}, {DType::f32});
}

void infer_add_noise(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  check_rank(in, in.inputs[0], 2, "the matrix of logits");
  check_shape(in, in.inputs[1], in.inputs[0], "the matrix of deviations");
  check_shape(in, in.inputs[2], {kDrawWords}, "the vector of draws");
  set_outputs(in, outputs, dtypes, {in.inputs[0]}, {DType::f32});
}

void infer_add_shared_sum(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  check_operands(in);
  const Shape& x = in.inputs[0];
  check_rank(in, x, 2, "the input");
  for (const size_t i : {size_t{1}, size_t{2}}) check_shape(in, in.inputs[i], x, "an input");
  check_shape(in, in.inputs[3], {x[0], 2}, "the matrix of shares");
  set_outputs(in, outputs, dtypes, {x}, {in.precision});
}

void infer_all_gather(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  const int64_t ranks = checked_ranks_together(in);
  checked_rows(in);
  set_outputs(in, outputs, dtypes, {{ranks * in.inputs[0][0]}}, {DType::i32});
}

void infer_repeat(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  const int64_t ranks = checked_ranks(in);
  check_rank(in, in.inputs[0], 2, "the input");
  set_outputs(in, outputs, dtypes, {{ranks * in.inputs[0][0], in.inputs[0][1]}}, {DType::f32});
}

void infer_all_to_all(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  const int64_t ranks = checked_ranks_together(in);
  check_rank(in, in.inputs[0], 2, "the input");
  require(in.inputs[0][0] % ranks == 0, in, "{} rows are not {} equal parts.", in.inputs[0][0], ranks);
  set_outputs(in, outputs, dtypes, {in.inputs[0]}, {DType::f32});
}

void infer_all_to_allv(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes) {
  const int64_t ranks = checked_ranks(in), rows = checked_rows(in), node = travel_node_ranks(in.attributes);
  const ProcessGroup& among = in.attributes.among;
  require(among.count > 0 && node > 0 && ranks % node == 0, in, "{} ranks are not nodes of {}.", ranks, node);
  check_shape(in, in.inputs[1], {ranks * in.inputs[0][0]}, "the routing of all ranks");
  check_rank(in, in.inputs[2], 2, "the input");
  check_shape(in, in.inputs[2], {ranks * with_zeros_most(in, rows), in.inputs[2][1]}, "the input");
  set_outputs(in, outputs, dtypes, {in.inputs[2]}, {in.precision});
}

// Counts as linear_flops() does, but nothing scales the logits.
double router_flops(const OpShapes& s, Pass pass) {
  const double product = 2 * logits_of(s) * size(s.parameters[0][0]);
  const double bias = s.parameters.size() == 2 ? size(s.inputs[0][0]) * size(s.parameters[0][0]) : 0;
  return (pass == Pass::forward ? 1 : 2) * product + bias;
}

// Forward: for each logit maximum, difference, exp, sum and quotient, and one comparison for each choice.
// Backward: the first five again, a product and a difference.
double route_flops(const OpShapes& s, Pass pass) {
  const double choices = size(s.attributes.routing.chosen);
  return logits_of(s) * (pass == Pass::forward ? 5 + choices : 7);
}

// Forward: the softmax's 5 and a sum. Backward: 5, then a product, its row sum, a difference and a product.
double router_statistics_flops(const OpShapes& s, Pass pass) {
  return logits_of(s) * (pass == Pass::forward ? 6 : 10);
}

double router_loss_flops(const OpShapes& s, Pass) { return 4 * size(s.attributes.routing.experts); }

double expert_linear_flops(const OpShapes& s, Pass pass) {
  const double rows = assumed_rows(s), columns = size(linear_columns(s));
  const double product = 2 * multiplied_rows(s) * size(s.inputs[1][1]) * columns;
  const double bias = s.parameters.size() == 2 ? (s.attributes.routing.weighted ? 2 : 1) * rows * columns : 0;
  return (pass == Pass::forward ? 1 : 2) * product + bias;
}

// Counts as swiglu_flops() does. If ungated, forward counts as gelu's does. Weights add a product in forward,
// and two products and a sum in backward.
double expert_swiglu_flops(const OpShapes& s, Pass pass) {
  const bool weighted = s.attributes.routing.weighted;
  const double elements = assumed_rows(s) * size(s.outputs[0][1]);
  if (s.attributes.ungated)
    return elements * (pass == Pass::forward ? 9 + (weighted ? 1 : 0) : 20 + (weighted ? 3 : 0));
  return elements * (pass == Pass::forward ? 6 + (weighted ? 1 : 0) : 12 + (weighted ? 3 : 0));
}

double combine_flops(const OpShapes& s, Pass pass) {
  return pass == Pass::forward ? assumed_rows(s) * size(s.inputs[1][1]) : 0;
}

std::vector<OpExample> router_examples(const ExampleSizes& n) {
  return {{{}, {{n.rows, n.width}}, {{8, n.width}}}, {{}, {{n.rows / 8, n.width}}, {{8, n.width}}}};
}

std::vector<OpExample> route_examples(const ExampleSizes& n) {
  const Routing r = example_routing();
  return {{{.routing = r}, {{n.rows, r.experts}}, {}}, {{.routing = r}, {{n.rows / 8, r.experts}}, {}}};
}

std::vector<OpExample> router_statistics_examples(const ExampleSizes& n) {
  const Routing r = example_routing();
  std::vector<OpExample> out;
  for (const int64_t rows : {n.rows, n.rows / 8})
    out.push_back({{.routing = r}, {{rows, r.experts}, routing_shape(rows, r), {rows}}, {}});
  return out;
}

std::vector<OpExample> router_loss_examples(const ExampleSizes& n) {
  Routing r = example_routing();
  r.layers = 1, r.balance_loss = 0.01;
  std::vector<OpExample> out;
  for (const int64_t rows : {n.rows, n.rows / 8})
    out.push_back({{.routing = r}, {{1, router_statistics_count(r.experts)}, {rows}}, {}});
  return out;
}

std::vector<OpExample> dispatch_examples(const ExampleSizes& n) {
  const Routing r = example_routing();
  std::vector<OpExample> out;
  for (const int64_t rows : {n.rows, n.rows / 8})
    out.push_back({{.routing = r}, {routing_shape(rows, r), {rows, n.width}}, {}});
  return out;
}

std::vector<OpExample> combine_examples(const ExampleSizes& n) {
  std::vector<OpExample> out = dispatch_examples(n);
  for (OpExample& example : out) example.inputs[1][0] = expert_rows_most(example.inputs[1][0]);
  return out;
}

// In some examples an expert has many rows, in others few.
std::vector<OpExample> expert_linear_examples(const ExampleSizes& n) {
  Routing all = example_routing();
  all.experts = all.chosen = 1;
  const Routing some = example_routing();
  const auto example = [](const Routing& r, int64_t rows, int64_t in, int64_t out) {
    return OpExample{{.routing = r}, {routing_shape(rows, r), {expert_rows_most(rows), in}}, {{in, out}}};
  };
  return {example(all, n.rows, n.width, 3 * n.width), example(some, n.rows, n.width, 2 * n.width),
          example(some, n.rows, 4 * n.width, n.width)};
}

std::vector<OpExample> expert_swiglu_examples(const ExampleSizes& n) {
  Routing r = example_routing();
  r.weighted = true;
  std::vector<OpExample> out;
  for (const int64_t rows : {n.rows, n.rows / 8}) {
    const Shape x = {expert_rows_most(rows), 3 * n.width};
    out.push_back({{.routing = r}, {routing_shape(rows, r), x, x, {rows, r.chosen}}, {}});
  }
  return out;
}

std::vector<OpExample> add_noise_examples(const ExampleSizes& n) {
  const int64_t experts = example_routing().experts;
  std::vector<OpExample> out;
  for (const int64_t rows : {n.rows, n.rows / 8})
    out.push_back({{}, {{rows, experts}, {rows, experts}, {kDrawWords}}, {}});
  return out;
}

std::vector<OpExample> add_shared_sum_examples(const ExampleSizes& n) {
  std::vector<OpExample> out;
  for (const int64_t rows : {n.rows, n.rows / 8}) {
    const Shape x = {rows, n.width};
    out.push_back({{}, {x, x, x, {rows, 2}}, {}});
  }
  return out;
}

std::vector<OpExample> repeat_examples(const ExampleSizes& n) {
  Routing r = example_routing();
  r.over.count = 2;
  return {{{.routing = r}, {{n.rows, n.width}}, {}}, {{.routing = r}, {{n.rows / 8, n.width}}, {}}};
}

}  // namespace sluice
