// Ops of a mixture of experts on the reference device: forward and backward by numbers worked out by hand,
// ties, groups, and an expert without rows. The balance loss is held against transformers' formula.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "engine/graph/routing.h"
#include "tests/support/op_numbers.h"

namespace sluice {
namespace {

using enum OpKind;
using Scores = Routing::Scores;

Numbers logs(Numbers values) {
  for (double& v : values) v = std::log(v);
  return values;
}

// The logit of each sigmoid.
Numbers logits_of(Numbers sigmoids) {
  for (double& s : sigmoids) s = std::log(s / (1 - s));
  return sigmoids;
}

// In fp32: losses are added to 1.5 in double.
void expect_numbers(const Numbers& found, const Numbers& wanted, const std::string& where) {
  ASSERT_EQ(found.size(), wanted.size()) << where;
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], wanted[i], kNumbersTolerance * std::max(1.0, std::fabs(wanted[i])))
        << where << " at " << i;
}

// Gradients of inputs are written without an addend; gradients of parameters are added to zero.
std::vector<Result> gradients_of(Operands& operands, std::vector<Guarded>& outputs) {
  return run_backward(*make_reference_device(), operands, outputs, {.from_zero = true});
}

// ---- routers ----

Operands logits_operands(const Routing& routing, int64_t rows, const Numbers& logits,
                         const Numbers& correction = {}) {
  std::vector<Shape> parameters;
  if (!correction.empty()) parameters.push_back({routing.experts});
  return operands_of(route, {.routing = routing}, {{rows, routing.experts}}, {logits}, parameters,
                     std::vector<Numbers>(parameters.size(), correction));
}

struct Routed {
  Numbers weights, experts;  // by row and choice
  Numbers routing;           // all of it
};

Routed routed(const Routing& routing, const Numbers& logits, const Numbers& correction = {}) {
  const int64_t rows = static_cast<int64_t>(logits.size()) / routing.experts;
  Operands operands = logits_operands(routing, rows, logits, correction);
  const auto found = results_of(operands, run_forward(*make_reference_device(), operands));
  Routed out{found[0].values, {}, found[1].values};
  const RoutingLayout layout{rows, routing.experts, routing.chosen};
  out.experts.assign(out.routing.begin() + layout.experts_of(), out.routing.end());
  return out;
}

void expect_routed(const Routing& routing, const Numbers& logits, const Numbers& experts,
                   const Numbers& weights, const Numbers& correction = {}) {
  const Routed found = routed(routing, logits, correction);
  EXPECT_EQ(found.experts, experts);
  expect_numbers(found.weights, weights, "weights");
}

TEST(ReferenceExperts, Router) {  // x W^T + b of two rows
  Operands operands =
      operands_of(router, {}, {{2, 2}}, {{1, 2, 3, -1}}, {{3, 2}, {3}}, {{1, 0, 0, 1, 1, -1}, {0, 0.5, 1}});
  set(operands.output_gradients[0], {1, 2, 3, 0, 1, 0});
  operands.freeze();
  std::vector<Guarded> outputs = run_forward(*make_reference_device(), operands);
  EXPECT_EQ(results_of(operands, outputs)[0].values, (Numbers{1, 2.5, 0, 3, -0.5, 5}));
  const auto gradients = gradients_of(operands, outputs);
  EXPECT_EQ(gradients[0].values, (Numbers{1 + 3, 2 - 3, 0, 1}));
  EXPECT_EQ(gradients[1].values, (Numbers{1, 2, 2 + 3, 4 - 1, 3, 6}));
  EXPECT_EQ(gradients[2].values, (Numbers{1, 3, 3}));
}

TEST(ReferenceExperts, LogitsStayFp32WhereOperandsHaveSixteenBits) {  // 1 + 2^-10 would be 1 in bf16
  Operands operands({"", router, {}, {{1, 2}}, {{1, 2}}}, DType::bf16);
  for (int64_t i = 0; i < 2; ++i) {
    write_value(operands.inputs[0].data(), DType::bf16, i, i == 0 ? 1 : 0x1p-10);
    write_value(operands.parameters[0].data(), DType::bf16, i, 1);
  }
  operands.freeze();
  const auto found = results_of(operands, run_forward(*make_reference_device(), operands));
  EXPECT_EQ(found[0].values, (Numbers{1 + 0x1p-10}));
}

TEST(ReferenceExperts, RouteWeighsTheLargest) {  // the softmax is 1/8, 2/8, 5/8
  const Numbers logits = logs({1, 2, 5});
  Routing r{.experts = 3, .chosen = 2};
  expect_routed(r, logits, {2, 1}, {0.625, 0.25});
  r.scale = 16;
  expect_routed(r, logits, {2, 1}, {10, 4});
  r.normalized = true, r.scale = 0;
  expect_routed(r, logits, {2, 1}, {5 / 7., 2 / 7.});
  r.scores = Scores::softmax_chosen, r.normalized = false;
  expect_routed(r, logits, {2, 1}, {5 / 7., 2 / 7.});
  r.scores = Scores::sigmoid;
  expect_routed(r, logits_of({0.25, 0.5, 0.75}), {2, 1}, {0.75, 0.5});
  r.normalized = true, r.scale = 2.5;
  expect_routed(r, logits_of({0.25, 0.5, 0.75}), {2, 1}, {1.5, 1});
}

// Rows 0 to 2 choose experts 2 and 0, 0 and 1, 2 and 1; expert 3 has no row.
TEST(ReferenceExperts, RouteSortsChoicesByExpertThenRow) {
  const Routed found = routed({.experts = 4, .chosen = 2}, {3, 1, 4, 0, /**/ 5, 4, 0, -1, /**/ -1, 2, 3, -2});
  const Numbers begins = {0, 2, 4, 6, 6}, entries = {1, 2, 3, 5, 0, 4}, experts = {2, 0, 0, 1, 2, 1};
  Numbers wanted = begins;
  wanted.insert(wanted.end(), entries.begin(), entries.end());
  wanted.insert(wanted.end(), experts.begin(), experts.end());
  EXPECT_EQ(found.routing, wanted);
}

TEST(ReferenceExperts, OfEqualScoresTheLowerExpertIsChosen) {
  const Routing two{.experts = 4, .chosen = 2};
  const double e = std::exp(-2), sum = 3 + e;
  expect_routed(two, {1, 1, 1, 1, /**/ 0, 2, 2, 2, /**/ -0.0, 0, -1, 0}, {0, 1, 1, 2, 0, 1},
                {0.25, 0.25, 1 / sum, 1 / sum, 1 / (3 + std::exp(-1)), 1 / (3 + std::exp(-1))});
  Routing sigmoid = two;
  sigmoid.scores = Scores::sigmoid;
  expect_routed(sigmoid, {0, 0, 0, 0}, {0, 1}, {0.5, 0.5});
  expect_routed(sigmoid, {0, 0, 0, 0}, {3, 0}, {0.5, 0.5}, {0.25, 0, 0.25, 0.5});  // 0 and 2 are equal
}

TEST(ReferenceExperts, NanIsTheLargest) {  // and spoils the row's weights, so that the step is seen as broken
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Scores scores : {Scores::softmax, Scores::softmax_chosen, Scores::sigmoid}) {
    const Routed found =
        routed({.experts = 3, .chosen = 2, .scores = scores}, {0, nan, 1, /**/ nan, nan, 5, /**/ 1, 2, 3});
    EXPECT_EQ(found.experts, (Numbers{1, 2, 0, 1, 2, 1}));
    EXPECT_TRUE(std::isnan(found.weights[0]) && std::isnan(found.weights[2]) && std::isnan(found.weights[3]));
    EXPECT_FALSE(std::isnan(found.weights[4]) || std::isnan(found.weights[5]));
  }
}

// DeepSeek-V2: a group's score is its largest. Groups of two: 4, 3, 5, so the second one is out.
TEST(ReferenceExperts, GroupsByTheirLargestScore) {
  Routing r{.experts = 6, .chosen = 3};
  expect_routed(r, logs({4, 1, 3, 3, 2, 5}), {5, 0, 2}, {5 / 18., 4 / 18., 3 / 18.});
  r.groups = 3, r.best_groups = 2, r.group_scores = 1;
  expect_routed(r, logs({4, 1, 3, 3, 2, 5}), {5, 0, 4}, {5 / 18., 4 / 18., 2 / 18.});
  expect_routed(r, logs({3, 1, 2, 3, 3, 2}), {0, 3, 2}, {3 / 14., 3 / 14., 2 / 14.});  // all groups: 3
}

// DeepSeek-V3: a group's score is the sum of its two largest, correction included. Weights are sigmoids.
TEST(ReferenceExperts, GroupsByTheSumOfTwoAndACorrection) {
  Routing r{.experts = 6, .chosen = 2, .scores = Scores::sigmoid, .normalized = true};
  r.groups = 2, r.best_groups = 1, r.group_scores = 2, r.scale = 2.5;
  const Numbers logits = logits_of({0.9, 0.1, 0.1, 0.6, 0.6, 0.1});
  expect_routed(r, logits, {3, 4}, {1.25, 1.25});                        // 0.9 + 0.1 < 0.6 + 0.6
  expect_routed(r, logits, {0, 1}, {2.25, 0.25}, {0, 0.3, 0, 0, 0, 0});  // 0.9 + 0.4 > 1.2
  expect_routed(r, logits, {5, 3}, {0.25 / 0.7, 1.5 / 0.7}, {0, 0, 0, 0, 0, 2});
}

Numbers route_gradient(const Routing& routing, const Numbers& logits, const Numbers& dw,
                       const Numbers& correction = {}) {
  Operands operands = logits_operands(routing, 1, logits, correction);
  set(operands.output_gradients[0], dw);
  operands.freeze();
  std::vector<Guarded> outputs = run_forward(*make_reference_device(), operands);
  const auto gradients = gradients_of(operands, outputs);
  if (!correction.empty()) {
    EXPECT_EQ(gradients[1].values, Numbers(correction.size(), 0.0));
  }
  return gradients[0].values;
}

TEST(ReferenceExperts, RouteBackward) {
  const Numbers logits = logs({1, 2, 5}), dw = {1, 2};  // the sum of dw w is 9/8, or 9/7 where it is divided
  Routing r{.experts = 3, .chosen = 2};
  const Numbers plain = {-9 / 64., -18 / 64. + 32 / 64., -45 / 64. + 40 / 64.};
  expect_numbers(route_gradient(r, logits, dw), plain, "softmax");
  r.normalized = true;
  const Numbers divided = {0, 2 / 7. * (2 - 9 / 7.), 5 / 7. * (1 - 9 / 7.)};
  expect_numbers(route_gradient(r, logits, dw), divided, "softmax, normalized");
  r.scores = Scores::softmax_chosen, r.normalized = false;
  expect_numbers(route_gradient(r, logits, dw), divided, "softmax of the chosen");
  // Of sigmoids s: d s = 2 (dw - 1.4) / 1.25, where 1.4 = (0.75 + 2 * 0.5) / 1.25; times s (1 - s).
  r.scores = Scores::sigmoid, r.normalized = true, r.scale = 2;
  const Numbers of_sigmoids = {0, 0.96 * 0.25, -0.64 * 0.1875};
  expect_numbers(route_gradient(r, logits_of({0.25, 0.5, 0.75}), dw), of_sigmoids, "sigmoid");
  expect_numbers(route_gradient(r, logits_of({0.25, 0.5, 0.75}), dw, {0, 0, 0}), of_sigmoids, "corrected");
}

Operands statistics_operands(const Routing& routing, const Numbers& logits,
                             const std::vector<int32_t>& experts, const std::vector<bool>& taken = {},
                             const std::vector<int32_t>& labels = {}) {
  const auto rows = static_cast<int64_t>(logits.size()) / routing.experts;
  const RoutingLayout layout{rows, routing.experts, routing.chosen};
  std::vector<Shape> inputs = {{rows, routing.experts}, {layout.size()}};
  if (!labels.empty()) inputs.push_back({rows});
  Operands operands = operands_of(router_statistics, {.routing = routing}, inputs, {logits});
  set_indices(operands.inputs[1], make_routing(layout, experts, taken));
  if (!labels.empty()) set_indices(operands.inputs[2], labels);
  operands.freeze();
  return operands;
}

// The rows' softmax is 1/4, 3/4 and 1/2, 1/2; in both rows, the logarithm of the sum is ln 4. `taken` is the
// number of choices that experts take. Gradients of rows before these two are 0.
void expect_statistics_of_two_rows(Operands operands, double taken) {
  set(operands.output_gradients[0], {1, 2, 0.5, 7, 7, 7});
  operands.freeze();
  std::vector<Guarded> outputs = run_forward(*make_reference_device(), operands);
  const double b = kLossBefore, l = std::log(4);
  expect_numbers(results_of(operands, outputs)[0].values,
                 {b + 0.75, b + 1.25, b + 2 * l * l, b + 1, b + 1, b + taken}, "statistics");
  // p (g - sum of g p + 2 l 0.5); the sums are 7/4 and 3/2. Numbers of choices have no gradient.
  Numbers gradients(2 * (static_cast<size_t>(taken) - 2), 0.0);
  for (const double g : {(1 - 1.75 + l) / 4, 3 * (2 - 1.75 + l) / 4, (-0.5 + l) / 2, (0.5 + l) / 2})
    gradients.push_back(g);
  expect_numbers(gradients_of(operands, outputs)[0].values, gradients, "logits");
}

TEST(ReferenceExperts, Statistics) {
  expect_statistics_of_two_rows(statistics_operands({.experts = 2, .chosen = 1}, logs({1, 3, 2, 2}), {1, 0}),
                                2);
}

// A row of padding precedes the two rows and does not count. A label that is ignored is not padding.
TEST(ReferenceExperts, StatisticsLeaveOutPadding) {
  expect_statistics_of_two_rows(statistics_operands({.experts = 2, .chosen = 1}, logs({9, 1, 1, 3, 2, 2}),
                                                    {0, 1, 0}, {}, {kPaddingLabel, kIgnoreLabel, 5}),
                                3);
}

TEST(ReferenceExperts, StatisticsTellWhatExpertsTake) {
  Operands operands =
      statistics_operands({.experts = 2, .chosen = 1, .capacity_factor = 0.5, .group_rows = 4},
                          logs({1, 3, 2, 2, 1, 1, 1, 1}), {1, 0, 1, 1}, {true, true, false, false});
  const std::vector<double> values =
      results_of(operands, run_forward(*make_reference_device(), operands))[0].values;
  expect_numbers({values.begin() + 3, values.end()}, {kLossBefore + 1, kLossBefore + 3, kLossBefore + 2},
                 "numbers of choices, and of those taken");
}

Operands loss_operands(const Routing& routing, const Numbers& statistics,
                       const std::vector<int32_t>& labels) {
  Operands operands = operands_of(
      router_loss, {.routing = routing},
      {{1, router_statistics_count(routing.experts)}, {static_cast<int64_t>(labels.size())}}, {statistics});
  set_indices(operands.inputs[1], labels);
  operands.freeze();
  return operands;
}

// Two layers of three rows. Balance: 2 (5/6 * 4/6 + 1/6 * 2/6) = 11/9; squares: 12/6. Two labels count.
TEST(ReferenceExperts, Loss) {
  Routing r{.experts = 2, .chosen = 1, .layers = 2, .balance_loss = 0.5, .z_loss = 0.25};
  Operands operands = loss_operands(r, {4, 2, 12, 5, 1, 6}, {1, kIgnoreLabel, 0});
  std::vector<Guarded> outputs = run_forward(*make_reference_device(), operands);
  const double loss = kLossBefore + 2 * (0.5 * 11 / 9 + 0.25 * 2);
  const Numbers losses = {loss, kLossBefore, loss};
  expect_numbers(results_of(operands, outputs)[0].values, losses, "loss");
  const auto gradients = gradients_of(operands, outputs);
  const double factor = kSeed * 2 * 0.5 * 2 / 36;
  expect_numbers(gradients[0].values, {factor * 5, factor, kSeed * 2 * 0.25 / 6, 0, 0, 0}, "statistics");
  expect_numbers(gradients[1].values, losses, "loss of backward");
}

// The rows of `Loss`, with rows of padding, give the same loss.
TEST(ReferenceExperts, PaddingIsNoRowOfTheLoss) {
  Routing r{.experts = 2, .chosen = 1, .layers = 2, .balance_loss = 0.5, .z_loss = 0.25};
  const auto loss_with = [&](const std::vector<int32_t>& labels) {
    Operands operands = loss_operands(r, {4, 2, 12, 5, 1, 6}, labels);
    std::vector<Guarded> outputs = run_forward(*make_reference_device(), operands);
    Numbers values = results_of(operands, outputs)[0].values;
    const Numbers gradient = gradients_of(operands, outputs)[0].values;
    values.insert(values.end(), gradient.begin(), gradient.end());
    return values;
  };
  EXPECT_EQ(loss_with({1, kIgnoreLabel, 0, kPaddingLabel, kPaddingLabel}), loss_with({1, kIgnoreLabel, 0}));
}

TEST(ReferenceExperts, NoLabelNoLoss) {
  Routing r{.experts = 2, .chosen = 1, .layers = 1, .balance_loss = 1, .z_loss = 1};
  for (const int32_t label : {kIgnoreLabel, kPaddingLabel}) {
    Operands operands = loss_operands(r, {4, 2, 12, 5, 1, 6}, {label, label});
    std::vector<Guarded> outputs = run_forward(*make_reference_device(), operands);
    EXPECT_EQ(results_of(operands, outputs)[0].values, Numbers(3, kLossBefore));
    EXPECT_EQ(gradients_of(operands, outputs)[0].values, Numbers(6, 0.0));
  }
}

// load_balancing_loss_func of transformers 5.23 in plain loops. Over the rows of all layers together, it is E
// times the sum over experts of (choices / rows) * (mean softmax).
double balance_of(const std::vector<Numbers>& layers, size_t experts, size_t chosen) {
  Numbers choices(experts, 0.0), probabilities(experts, 0.0);
  double rows = 0;
  for (const Numbers& logits : layers)
    for (size_t begin = 0; begin < logits.size(); begin += experts, ++rows) {
      double sum = 0;
      for (size_t e = 0; e < experts; ++e) sum += std::exp(logits[begin + e]);
      for (size_t e = 0; e < experts; ++e) {
        probabilities[e] += std::exp(logits[begin + e]) / sum;
        size_t above = 0;
        for (size_t other = 0; other < experts; ++other) above += logits[begin + other] > logits[begin + e];
        if (above < chosen) ++choices[e];
      }
    }
  double loss = 0;
  for (size_t e = 0; e < experts; ++e) loss += choices[e] / rows * probabilities[e] / rows;
  return static_cast<double>(experts) * loss;
}

TEST(ReferenceExperts, TheBalanceLossIsThatOfTransformers) {
  Routing r{.experts = 5, .chosen = 2, .layers = 3, .balance_loss = 0.125};
  std::mt19937 generator(1);
  std::vector<Numbers> layers(3);
  Numbers statistics(12, 0.0);
  for (Numbers& logits : layers) {
    for (int i = 0; i < 4 * 5; ++i) logits.push_back(static_cast<float>(generator() * 0x1p-30 - 2));
    std::vector<int32_t> experts;
    for (const double e : routed(r, logits).experts) experts.push_back(static_cast<int32_t>(e));
    Operands operands = statistics_operands(r, logits, experts);
    const auto found = results_of(operands, run_forward(*make_reference_device(), operands));
    for (size_t i = 0; i < statistics.size(); ++i) statistics[i] += found[0].values[i] - kLossBefore;
  }
  Operands operands = loss_operands(r, statistics, {1, 2, 3, 4});
  const auto found = results_of(operands, run_forward(*make_reference_device(), operands));
  // Each of the twelve sums is rounded to fp32 once a layer.
  EXPECT_NEAR(found[0].values[0] - kLossBefore, 4 * 0.125 * balance_of(layers, 5, 2), 1e-6);
}

// ---- one expert ----

// Three rows: expert 0 has those of the entries 1 and 2, expert 1 of 3 and 5, expert 2 of 0 and 4, expert 3
// none.
const Routing kFour{.experts = 4, .chosen = 2};
const std::vector<int32_t> kChoices = {2, 0, 0, 1, 2, 1};
const Numbers kWeights = {0.5, 0.25, 1, 2, 4, 3};  // by entry
constexpr size_t kMost = 64;                       // rows of an expert's tensor

OpAttributes attributes_of(bool weighted, OpAttributes a = {}) {
  a.routing = kFour;
  a.routing.weighted = weighted;
  return a;
}

// The operands of an expert's op. Tensors begin with the given values. The rest is as conformance tests leave
// it: zeros, and behind the zeros what nothing reads.
Operands expert_operands(OpKind kind, const OpAttributes& a, int64_t expert,
                         const std::vector<Shape>& tensors, const std::vector<Numbers>& values,
                         const Numbers& gradient, const std::vector<Shape>& parameters = {},
                         const std::vector<Numbers>& parameter_values = {},
                         const std::vector<int32_t>& choices = kChoices) {
  const auto rows = static_cast<int64_t>(choices.size()) / a.routing.chosen;
  const RoutingLayout layout{rows, a.routing.experts, a.routing.chosen};
  std::vector<Shape> inputs = {{layout.size()}};
  inputs.insert(inputs.end(), tensors.begin(), tensors.end());
  Operands out({"", kind, a, inputs, parameters}, DType::f32);
  out.routing = {make_routing(layout, choices), expert};
  const auto* begins = out.routing.routing.data() + expert;
  out.routing.rows = begins[1] - begins[0];
  set_indices(out.inputs[0], out.routing.routing);
  const auto fill = [&](Guarded& tensor, const Shape& shape, const Numbers& numbers, bool of_expert) {
    std::memset(tensor.data(), 0, tensor.bytes());
    for (size_t i = 0; i < numbers.size(); ++i)
      write_value(tensor.data(), DType::f32, static_cast<int64_t>(i), numbers[i]);
    if (of_expert) out.settle(tensor, shape);
  };
  for (size_t i = 0; i < values.size(); ++i)
    fill(out.inputs[i + 1], tensors[i], values[i], out.is_of_expert(i + 1));
  for (size_t i = 0; i < parameter_values.size(); ++i) set(out.parameters[i], parameter_values[i]);
  fill(out.output_gradients[0], out.shapes.outputs[0], gradient, kind != combine);
  out.freeze();
  return out;
}

// Checks the first numbers of the output and of the gradients of inputs and parameters. All numbers behind
// them must be zero.
void expect_expert(Operands operands, const Numbers& output, const std::vector<Numbers>& gradients) {
  const auto expect_begin = [](const Result& found, Numbers wanted) {
    wanted.resize(found.values.size());
    expect_numbers(found.values, wanted, found.name);
  };
  std::vector<Guarded> outputs = run_forward(*make_reference_device(), operands);
  expect_begin(results_of(operands, outputs)[0], output);
  const auto found = gradients_of(operands, outputs);
  ASSERT_EQ(found.size(), gradients.size());
  for (size_t i = 0; i < found.size(); ++i) expect_begin(found[i], gradients[i]);
}

TEST(ReferenceExperts, Dispatch) {
  const auto of = [](int64_t expert) {
    return expert_operands(dispatch, attributes_of(false), expert, {{3, 2}}, {{1, 2, 3, 4, 5, 6}},
                           {7, 8, 9, 10});
  };
  expect_expert(of(0), {1, 2, 3, 4}, {{7, 8, 9, 10, 0, 0}});
  expect_expert(of(1), {3, 4, 5, 6}, {{0, 0, 7, 8, 9, 10}});
  expect_expert(of(2), {1, 2, 5, 6}, {{7, 8, 0, 0, 9, 10}});
  expect_expert(of(3), {}, {{}});
}

TEST(ReferenceExperts, Combine) {
  const double b = kLossBefore;  // what the sum is before
  const auto of = [](int64_t expert) {
    return expert_operands(combine, attributes_of(false), expert, {{kMost, 2}}, {{7, 8, 9, 10}},
                           {1, 2, 3, 4, 5, 6});
  };
  expect_expert(of(0), {b + 7, b + 8, b + 9, b + 10, b, b}, {{1, 2, 3, 4}});
  expect_expert(of(2), {b + 7, b + 8, b, b, b + 9, b + 10}, {{1, 2, 5, 6}});
  expect_expert(of(3), {b, b, b, b, b, b}, {{}});
}

// Two rows of 65 choose expert 1, so its tensors have a multiple of 64 rows: those behind the second row are
// zeros up to the 64th, and untouched from there on (Operands and run_forward look).
TEST(ReferenceExperts, RowsBehindTheLastAreZerosUpToATile) {
  std::vector<int32_t> choices(65, 0);
  choices[3] = choices[64] = 1;
  OpAttributes a{.routing = {.experts = 2, .chosen = 1}};
  Numbers x, most, gradient(65, 0.0);
  for (int row = 0; row < 65; ++row) x.push_back(row + 1);
  for (int row = 0; row < 65; ++row)
    if (choices[static_cast<size_t>(row)] == 0) most.push_back(row + 1);
  gradient[3] = 10, gradient[64] = 20;
  expect_expert(expert_operands(dispatch, a, 1, {{65, 1}}, {x}, {10, 20}, {}, {}, choices), {4, 65},
                {gradient});
  expect_expert(expert_operands(dispatch, a, 0, {{65, 1}}, {x}, {}, {}, {}, choices), most, {{}});
}

TEST(ReferenceExperts, ExpertLinear) {  // rows (1, 2) and (3, 4) times (10, 1)
  const auto of = [](const OpAttributes& a, const Shape& weight, std::vector<Numbers> parameters,
                     int64_t expert = 1) {
    std::vector<Shape> tensors = {{kMost, 2}}, shapes = {weight};
    std::vector<Numbers> values = {{1, 2, 3, 4}};
    if (a.routing.weighted) tensors.push_back({3, 2}), values.push_back(kWeights);
    if (parameters.size() > 1) shapes.push_back({1});
    return expert_operands(expert_linear, a, expert, tensors, values, {1, 2}, shapes, parameters);
  };
  const Numbers dx = {10, 1, 20, 2}, d_weight = {7, 10};
  expect_expert(of(attributes_of(false), {2, 1}, {{10, 1}}), {12, 34}, {dx, d_weight});
  expect_expert(of(attributes_of(false, {.weight_out_in = true}), {1, 2}, {{10, 1}}), {12, 34},
                {dx, d_weight});
  expect_expert(of(attributes_of(false), {2, 1}, {{10, 1}, {5}}), {17, 39}, {dx, d_weight, {3}});
  // The bias counts twice in the first row and three times in the second; its entries are 3 and 5.
  expect_expert(of(attributes_of(true), {2, 1}, {{10, 1}, {5}}), {22, 49},
                {dx, {0, 0, 0, 5, 0, 10}, d_weight, {8}});
  expect_expert(of(attributes_of(true, {.scale = 0.5}), {2, 1}, {{10, 1}, {5}}), {16, 32},
                {{5, 0.5, 10, 1}, {0, 0, 0, 5, 0, 10}, {3.5, 5}, {8}});
  expect_expert(of(attributes_of(true), {2, 1}, {{10, 1}, {5}}, 3), {}, {{}, {}, {}, {}});
}

TEST(ReferenceExperts, ExpertLinearInBothLayouts) {  // (1, 2) and (3, 4) times ((1, 2, 3), (4, 5, 6))
  const Numbers y = {9, 12, 15, 19, 26, 33}, dy = {1, 0, 0, 0, 1, 1};
  expect_expert(expert_operands(expert_linear, attributes_of(false), 2, {{kMost, 2}}, {{1, 2, 3, 4}}, dy,
                                {{2, 3}}, {{1, 2, 3, 4, 5, 6}}),
                y, {{1, 4, 5, 11}, {1, 3, 3, 2, 4, 4}});
  expect_expert(expert_operands(expert_linear, attributes_of(false, {.weight_out_in = true}), 2, {{kMost, 2}},
                                {{1, 2, 3, 4}}, dy, {{3, 2}}, {{1, 4, 2, 5, 3, 6}}),
                y, {{1, 4, 5, 11}, {1, 2, 3, 4, 3, 4}});
}

// Rows with gates 0 and 1, whose silu is 0 and 0.7310586, with the derivatives 0.5 and
// 0.7310586 (1 + 0.2689414) = 0.9276705. The weights of expert 1 are 2 and 3.
TEST(ReferenceExperts, ExpertSwiglu) {
  const Numbers gate = {0, 1}, up = {4, 2}, dy = {1, 1};
  const Shape column = {kMost, 1};
  expect_expert(expert_operands(expert_swiglu, attributes_of(false), 1, {column, column}, {gate, up}, dy),
                {0, 1.4621172}, {{2, 1.8553410}, {0, 0.7310586}});
  const Numbers d_weights = {0, 0, 0, 0, 0, 1.4621172};
  expect_expert(expert_operands(expert_swiglu, attributes_of(true), 1, {column, column, {3, 2}},
                                {gate, up, kWeights}, dy),
                {0, 4.3863515}, {{4, 5.5660229}, {0, 2.1931757}, d_weights});
  expect_expert(expert_operands(expert_swiglu, attributes_of(true), 1, {{kMost, 2}, {3, 2}},
                                {{0, 4, 1, 2}, kWeights}, dy),
                {0, 4.3863515}, {{4, 0, 5.5660229, 2.1931757}, d_weights});
  expect_expert(
      expert_operands(expert_swiglu, attributes_of(true), 3, {{kMost, 2}, {3, 2}}, {{}, kWeights}, {}), {},
      {{}, {}});
}

// gelu(1) = 0.8411920; its derivative there is (1 + t) / 2 + (1 - t^2) / 2 * 0.7978846 * 1.134145 =
// 1.0829641, with t = 0.6823839.
TEST(ReferenceExperts, ExpertSwigluWithGelu) {
  expect_expert(expert_operands(expert_swiglu, attributes_of(true, {.gelu_gate = true}), 0,
                                {{kMost, 2}, {3, 2}}, {{0, 4, 1, 2}, kWeights}, {1, 1}),
                {0, 1.6823840}, {{0.5, 0, 2.1659282, 0.8411920}, {0, 0, 1.6823840}});
}

TEST(ReferenceExperts, AddSum) {
  Operands operands = operands_of(add_sum, {}, {{1, 3}, {1, 3}}, {{1, 2, 3}, {10, 0.5, -3}});
  set(operands.output_gradients[0], {4, 5, 6});
  operands.freeze();
  std::vector<Guarded> outputs = run_forward(*make_reference_device(), operands);
  EXPECT_EQ(results_of(operands, outputs)[0].values, (Numbers{11, 2.5, 0}));
  const auto gradients = gradients_of(operands, outputs);
  EXPECT_EQ(gradients[0].values, (Numbers{4, 5, 6}));
  EXPECT_EQ(gradients[1].values, (Numbers{4, 5, 6}));
}

TEST(ReferenceExperts, Repeat) {
  const OpAttributes over{.routing = {.experts = 4, .chosen = 2, .over = {"experts", 2}}};
  Operands operands = operands_of(repeat, over, {{1, 3}}, {{1, 2, -3}});
  set(operands.output_gradients[0], {4, 5, 6, 0.5, 0, -6});
  operands.freeze();
  std::vector<Guarded> outputs = run_forward(*make_reference_device(), operands);
  EXPECT_EQ(results_of(operands, outputs)[0].values, (Numbers{1, 2, -3, 1, 2, -3}));
  EXPECT_EQ(gradients_of(operands, outputs)[0].values, (Numbers{4.5, 5, 0}));
}

// The sum keeps fp32's bits where the addend has sixteen: 2^-9 + 2^-9 + 1 is not 1.
TEST(ReferenceExperts, AddSumRoundsOnce) {
  Operands operands({"", add_sum, {}, {{1, 1}, {1, 1}}, {}}, DType::bf16);
  write_value(operands.inputs[0].data(), DType::bf16, 0, 1);
  write_value(operands.inputs[1].data(), DType::f32, 0, 0x1p-7 - 0x1p-20);
  operands.freeze();
  const auto found = results_of(operands, run_forward(*make_reference_device(), operands));
  EXPECT_EQ(found[0].values, (Numbers{1 + 0x1p-7}));
}

}  // namespace
}  // namespace sluice
