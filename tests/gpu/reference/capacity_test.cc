// Choices that experts do not take, noise, and what stands beside experts, on the reference device: by
// numbers worked out by hand.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/graph/draws.h"
#include "engine/graph/routing.h"
#include "tests/support/op_numbers.h"

namespace sluice {
namespace {

using enum OpKind;

std::vector<int32_t> words_of(const Draws& draws) {
  const auto words = draws.words();
  return {words.begin(), words.end()};
}

struct Taken {
  Numbers weights;
  std::vector<int64_t> begins, entries;
};

// The output of route on the reference device, for the choices that follow from `logits`.
Taken taken(const Routing& routing, const Numbers& logits, const Draws& draws = {}, uint32_t layer = 0) {
  const int64_t rows = static_cast<int64_t>(logits.size()) / routing.experts;
  std::vector<Shape> shapes = {{rows, routing.experts}};
  if (routing.random_second) shapes.push_back({kDrawWords});
  Operands operands = operands_of(route, {.routing = routing}, shapes, {logits});
  if (routing.random_second) {
    set_indices(operands.inputs[1], words_of(draws));
    operands.freeze();
  }
  std::vector<Guarded> outputs = make_outputs(operands);
  const auto inputs = views(operands.inputs), out = views(outputs);
  make_reference_device()->forward(
      {.shapes = &operands.shapes, .inputs = inputs, .outputs = out, .layer = layer});
  const auto found = results_of(operands, outputs);
  const RoutingLayout layout{rows, routing.experts, routing.chosen};
  const Numbers& all = found[1].values;
  return {found[0].values,
          {all.begin(), all.begin() + layout.entries()},
          {all.begin() + layout.entries(), all.begin() + layout.experts_of()}};
}

using Places = std::vector<int64_t>;

TEST(Capacity, IsTheFairShareTimesAFactor) {
  Routing r{.experts = 64, .chosen = 1};
  r.group_rows = 1024;
  EXPECT_EQ(expert_capacity(r), 1024);  // none
  r.capacity_factor = 1.25;
  EXPECT_EQ(expert_capacity(r), 20);
  r.capacity_factor = 1.3, r.chosen = 2;
  EXPECT_EQ(expert_capacity(r), 42);  // 41.6
  r.least_capacity = 50;
  EXPECT_EQ(expert_capacity(r), 50);
  r.least_capacity = 5000;
  EXPECT_EQ(expert_capacity(r), 1024);
  r.least_capacity = 0, r.capacity_factor = 1e300;
  EXPECT_EQ(expert_capacity(r), 1024);
  r.capacity_factor = 1;
  EXPECT_EQ(rows_of_expert_most(r, 4 * 1024), 4 * 32);
  r.capacity_factor = 0;
  EXPECT_EQ(rows_of_expert_most(r, 4 * 1024), 4 * 1024);
}

// Two groups of four rows, of which an expert takes 1 * 4 / 2 * 1 = 2.
TEST(Capacity, OfEachGroupAnExpertTakesTheFirstRows) {
  Routing r{.experts = 2, .chosen = 1};
  r.capacity_factor = 1, r.group_rows = 4;
  const Taken found =
      taken(r, {1, 0, /**/ 1, 0, /**/ 0, 1, /**/ 1, 0, /**/ 0, 1, /**/ 0, 1, /**/ 0, 1, /**/ 1, 0});
  EXPECT_EQ(found.begins, (Places{0, 3, 6}));
  EXPECT_EQ(found.entries, (Places{0, 1, 7, /**/ 2, 4, 5, /**/ -1, -1}));  // rows 3 and 6 are dropped
  for (const double weight : found.weights)
    EXPECT_NEAR(weight, 1 / (1 + std::exp(-1)), 1e-6);  // all have one
}

// Each of three rows has two choices; an expert takes 1 * 2 * 3 / 3 = 2 of them. Row 2 chooses expert 0
// first. So the second choice of row 0, also expert 0, comes too late, although row 0 comes before row 2.
TEST(Capacity, FirstChoicesComeBeforeSecondOnes) {
  Routing r{.experts = 3, .chosen = 2, .normalized = true};
  r.capacity_factor = 1, r.group_rows = 3;
  const Taken found = taken(r, {1, 2, 0, /**/ 2, 1, 0, /**/ 2, 0, 1});
  // Expert 0: first choices of rows 1 and 2 (choices 2 and 4). Expert 1: that of row 0 (0), then row 1's
  // second (3). Expert 2: row 2's second (5). Row 0's second choice of expert 0 (1) is dropped.
  EXPECT_EQ(found.begins, (Places{0, 2, 4, 5}));
  EXPECT_EQ(found.entries, (Places{2, 4, /**/ 0, 3, /**/ 5, -1}));
  for (size_t i = 0; i < 6; ++i)  // weights are divided by their sum as if none were dropped
    EXPECT_NEAR(found.weights[i], i % 2 == 0 ? 1 / (1 + std::exp(-1)) : 1 / (1 + std::exp(1)), 1e-6);
}

// A second choice of weight p is tried if a drawn number in [0, 1) is less than 2 p.
TEST(Capacity, ASecondChoiceIsTriedByChance) {
  Routing r{.experts = 2, .chosen = 2, .normalized = true};
  r.random_second = true, r.group_rows = 512;
  Numbers logits;
  for (int row = 0; row < 512; ++row) logits.insert(logits.end(), {1, 0});
  const double p = 1 / (1 + std::exp(1));
  const Draws draws{.seed = 11, .first_token = 77, .step = 3};
  const Taken found = taken(r, logits, draws, 4);
  std::vector<int64_t> wanted;
  for (uint32_t row = 0; row < 512; ++row) {
    const PhiloxCounter words = philox4x32({77 + row, 0, 3, 0x52000004}, philox_key(11));
    if (static_cast<double>(words[0] >> 8) / (1 << 24) < 2 * p) wanted.push_back(2 * row + 1);
  }
  EXPECT_NEAR(static_cast<double>(wanted.size()), 2 * p * 512, 40);  // four deviations
  EXPECT_EQ(found.begins[1], 512);
  EXPECT_EQ(found.begins[2], 512 + std::ssize(wanted));
  EXPECT_EQ(Places(found.entries.begin() + 512, found.entries.begin() + found.begins[2]), wanted);
  // Another layer or step draws other numbers. If the words of the draws are all zero, nothing is drawn.
  EXPECT_NE(taken(r, logits, draws, 5).entries, found.entries);
  EXPECT_NE(taken(r, logits, {.seed = 11, .first_token = 77, .step = 4}, 4).entries, found.entries);
  EXPECT_EQ(taken(r, logits, {}, 4).begins[2], 1024);
}

// A micro-batch that begins later draws what the later rows of a longer one draw.
TEST(Capacity, DrawsBelongToTokens) {
  const Draws all{.seed = 5, .first_token = 0, .step = 1}, later{.seed = 5, .first_token = 300, .step = 1};
  EXPECT_EQ(draw_second(all, 2, 300), draw_second(later, 2, 0));
  EXPECT_EQ(draw_noise(all, 2, 301, 6), draw_noise(later, 2, 1, 6));
  EXPECT_NE(draw_noise(all, 2, 301, 6), draw_noise(all, 2, 301, 7));
  const Draws far{.seed = 0x123456789, .first_token = 0x300000001, .step = 7};
  EXPECT_EQ(draws_of(far.words().data()).first_token, far.first_token);
  EXPECT_EQ(draws_of(far.words().data()).seed, far.seed);
}

TEST(Capacity, StatisticsCountFirstChoicesAlone) {
  Routing r{.experts = 2, .chosen = 2};
  r.counted = 1;
  const RoutingLayout layout{2, 2, 2};
  Operands operands =
      operands_of(router_statistics, {.routing = r}, {{2, 2}, {layout.size()}}, {{0, 0, 0, 0}, {}});
  const std::vector<int32_t> experts = {1, 0, 1, 0};
  set_indices(operands.inputs[1], make_routing(layout, experts));
  operands.freeze();
  const auto found = results_of(operands, run_forward(*make_reference_device(), operands));
  EXPECT_EQ(found[0].values[3], kLossBefore);
  EXPECT_EQ(found[0].values[4], kLossBefore + 2);
}

TEST(Noise, IsNormal) {
  const Draws draws{.seed = 1, .first_token = 0, .step = 1};
  double sum = 0, squares = 0;
  constexpr int kRows = 5000;
  for (uint64_t row = 0; row < kRows; ++row)
    for (const double x : draw_noise(draws, 0, row, 0)) sum += x, squares += x * x;
  EXPECT_NEAR(sum / (4 * kRows), 0, 4 / std::sqrt(4.0 * kRows));            // four deviations of the mean
  EXPECT_NEAR(squares / (4 * kRows), 1, 4 * std::sqrt(2 / (4.0 * kRows)));  // and of the variance
}

TEST(Noise, IsAddedInUnitsOfSoftplus) {
  Operands operands = operands_of(add_noise, {}, {{1, 2}, {1, 2}, {kDrawWords}}, {{3, -1}, {0, 2}});
  const Draws draws{.seed = 9, .first_token = 40, .step = 2};
  set_indices(operands.inputs[2], words_of(draws));
  set(operands.output_gradients[0], {2, 5});
  operands.freeze();
  const auto normal = draw_noise(draws, kLayer, 0, 0);
  expect_outputs(std::move(operands),
                 {{3 + normal[0] * std::log(2), -1 + normal[1] * std::log1p(std::exp(2))}});
  Operands again = operands_of(add_noise, {}, {{1, 2}, {1, 2}, {kDrawWords}}, {{3, -1}, {0, 2}});
  set_indices(again.inputs[2], words_of({}));
  again.freeze();
  expect_outputs(std::move(again), {{3, -1}});
}

TEST(SharedSum, IsOfTheSoftmaxOfShares) {  // shares 3/4 and 1/4
  Operands operands = operands_of(add_shared_sum, {}, {{1, 2}, {1, 2}, {1, 2}, {1, 2}},
                                  {{1, 2}, {8, 4}, {4, 8}, {std::log(3), 0}});
  set(operands.output_gradients[0], {1, 2});
  operands.freeze();
  std::vector<Guarded> outputs = run_forward(*make_reference_device(), operands);
  const auto y = results_of(operands, outputs)[0].values;
  EXPECT_NEAR(y[0], 1 + 3 + 2, 1e-6);
  EXPECT_NEAR(y[1], 2 + 6 + 1, 1e-6);
  const auto gradients = run_backward(*make_reference_device(), operands, outputs, {.from_zero = true});
  const std::vector<Numbers> wanted = {
      {1, 2}, {0.25, 0.5}, {0.75, 1.5}, {3 / 16. * (-4 + 8), -3 / 16. * (-4 + 8)}};
  for (size_t k = 0; k < 4; ++k)
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(gradients[k].values[i], wanted[k][i], 1e-6) << k << " " << i;
}

}  // namespace
}  // namespace sluice
