// A router that sends nearly all tokens to one expert is told of once, and so are experts without tokens.
#include "tools/train/router_watch.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr int64_t kTokens = 100;  // of a step

StepMetrics step_of(std::vector<LayerTokens> layers) {
  StepMetrics m;
  m.expert_tokens = std::move(layers);
  return m;
}

// Adds a step `steps` times. Returns what the watch says.
std::vector<std::string> told(RouterWatch& watch, const StepMetrics& step, int steps) {
  std::vector<std::string> all;
  for (int i = 0; i < steps; ++i)
    if (const auto sentences = watch.add(step)) all.push_back(*sentences);
  return all;
}

// A token uses 2 of 4 experts: 50 % would be even, so the threshold is 75 %.
TEST(RouterWatch, AnUnevenRouterIsToldOnce) {
  RouterWatch watch({.tokens = kTokens});
  const StepMetrics at_threshold = step_of({{0, {50, 50, 50, 50}}, {3, {75, 45, 40, 40}}});
  EXPECT_TRUE(told(watch, at_threshold, 50).empty());
  const StepMetrics beyond = step_of({{0, {50, 50, 50, 50}}, {3, {40, 45, 80, 35}}});
  EXPECT_TRUE(told(watch, beyond, 9).empty());
  EXPECT_EQ(
      told(watch, beyond, 50),
      std::vector<std::string>{
          "The router of layer 3 sends 80 % of the tokens to expert 2; 50.0 % would be even. Memory is "
          "planned for that, but while one expert computes for long, the next ones wait, and most learn "
          "little. The routers' loss does not count here: a new run with --router-loss spreads tokens."});
}

TEST(RouterWatch, WithACapacityChoicesAreDropped) {
  RouterWatch watch({.tokens = kTokens, .router_loss = 0.01, .capacity = 1.25});
  const auto even = told(watch, step_of({{3, {50, 50, 50, 50}, 30}}), 10);
  EXPECT_TRUE(even.empty());
  const auto sentences = told(watch, step_of({{3, {40, 45, 80, 35}, 18}}), 10);
  ASSERT_EQ(sentences.size(), 1u);
  EXPECT_TRUE(sentences[0].ends_with(
      "An expert takes 1.25 times its even share: no expert took 9 % of this layer's choices. "
      "A new run with --router-loss above 0.01 spreads tokens."))
      << sentences[0];
}

TEST(RouterWatch, FrozenRoutersHaveNoRemedy) {
  RouterWatch watch({.tokens = kTokens, .router_loss = 0.01, .frozen = true});
  const auto sentences = told(watch, step_of({{3, {40, 45, 80, 35}}}), 10);
  ASSERT_EQ(sentences.size(), 1u);
  EXPECT_TRUE(sentences[0].ends_with(" Routers are frozen in this run, so it cannot change that."))
      << sentences[0];
}

TEST(RouterWatch, TheWorstLayerIsNamedAndTheOthersCounted) {
  RouterWatch watch({.tokens = kTokens});
  const auto sentences =
      told(watch, step_of({{1, {80, 40, 40, 40}}, {2, {30, 20, 95, 55}}, {3, {35, 35, 85, 45}}}), 10);
  ASSERT_EQ(sentences.size(), 1u);
  EXPECT_TRUE(sentences[0].starts_with(
      "The router of layer 2 sends 95 % of the tokens to expert 2; 50.0 % would be even. So does "
      "the router of 2 of the other layers. "))
      << sentences[0];
}

// Where a token uses all experts, all share alike.
TEST(RouterWatch, AllExpertsOfATokenAreEven) {
  RouterWatch watch({.tokens = kTokens});
  EXPECT_TRUE(told(watch, step_of({{0, {100, 100}}}), 200).empty());
}

TEST(RouterWatch, ExpertsWithoutTokensAreToldOnce) {
  RouterWatch watch({.tokens = kTokens, .router_loss = 0.5});
  const StepMetrics step = step_of({{0, {70, 70, 60, 0}}, {1, {50, 50, 50, 50}}});
  EXPECT_TRUE(told(watch, step, 99).empty());
  EXPECT_TRUE(told(watch, step_of({{0, {70, 70, 59, 1}}, {1, {50, 50, 50, 50}}}), 1).empty());
  EXPECT_TRUE(told(watch, step, 99).empty());
  EXPECT_EQ(
      told(watch, step, 200),
      std::vector<std::string>{
          "1 of 8 experts, in 1 of 2 layers, had no token in the last 100 steps: they only decay. A new "
          "run with --router-loss above 0.5 spreads tokens; expert_tokens in the metrics file tells which "
          "they are."});
}

TEST(RouterWatch, ModelsWithoutExpertsHaveNothingToTell) {
  RouterWatch watch({.tokens = kTokens});
  EXPECT_TRUE(told(watch, step_of({}), 200).empty());
}

}  // namespace
}  // namespace sluice
