#include "engine/run/generate/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "engine/base/error.h"

namespace sluice {
namespace {

const std::vector<float> kLogits = {1, 3, 2, 3, -5};

// How often each token is drawn, at so many positions.
std::map<uint32_t, int> counts(const Sampling& sampling, const std::vector<float>& logits, int draws) {
  std::map<uint32_t, int> of;
  for (int i = 0; i < draws; ++i) ++of[drawn_token(sampling, logits, 7, static_cast<uint64_t>(i))];
  return of;
}

TEST(Sampling, AtTemperatureZeroTheLikeliestOfLeastId) {
  EXPECT_EQ(counts({}, kLogits, 10), (std::map<uint32_t, int>{{1, 10}}));
}

// Logits over it are infinite.
TEST(Sampling, ATinyTemperatureLeavesTheLikeliest) {
  for (const float sign : {1.0f, -1.0f}) {
    const std::vector<float> logits = {sign * 4, sign * 2, sign * 3};
    const uint32_t likeliest = sign > 0 ? 0 : 1;
    for (const double top_p : {1.0, 0.5})
      EXPECT_EQ(counts({.temperature = 1e-310, .top_p = top_p}, logits, 10),
                (std::map<uint32_t, int>{{likeliest, 10}}));
  }
}

// Standard deviations of counts are below sqrt(20000) / 2 = 71: five of them.
TEST(Sampling, DrawsAsSoftmaxSays) {
  constexpr int kDraws = 20000;
  for (const double temperature : {0.5, 1.0, 3.0}) {
    double sum = 0;
    for (const float logit : kLogits) sum += std::exp(static_cast<double>(logit) / temperature);
    const auto found = counts({.temperature = temperature}, kLogits, kDraws);
    for (uint32_t id = 0; id < kLogits.size(); ++id) {
      const double wanted = std::exp(static_cast<double>(kLogits[id]) / temperature) / sum * kDraws;
      const auto at = found.find(id);
      EXPECT_NEAR(at == found.end() ? 0 : at->second, wanted, 355) << id << " at " << temperature;
    }
  }
}

TEST(Sampling, KeepsTheLikeliest) {
  const auto drawn = [](const Sampling& sampling) {
    std::set<uint32_t> ids;
    for (const auto& [id, count] : counts(sampling, kLogits, 2000)) ids.insert(id);
    return ids;
  };
  EXPECT_EQ(drawn({.temperature = 5}), (std::set<uint32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(drawn({.temperature = 5, .top_k = 3}), (std::set<uint32_t>{1, 2, 3}));
  EXPECT_EQ(drawn({.temperature = 5, .top_k = 1}), (std::set<uint32_t>{1}));
  EXPECT_EQ(drawn({.temperature = 5, .top_k = 99}), (std::set<uint32_t>{0, 1, 2, 3, 4}));
  // At temperature 1, tokens 1 and 3 have 0.40 each, token 2 has 0.15.
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.3}), (std::set<uint32_t>{1}));
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.7}), (std::set<uint32_t>{1, 3}));
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.9}), (std::set<uint32_t>{1, 2, 3}));
}

// A cap of 1 makes 3 and 1 as 0.995 and 0.762: hardly apart.
TEST(Sampling, CapsLogits) {
  const auto found = counts({.temperature = 1, .soft_cap = 1}, {1, 3}, 20000);
  const double odds = std::exp(std::tanh(1.0) - std::tanh(3.0));
  EXPECT_NEAR(found.at(0), 20000 * odds / (1 + odds), 355);
}

TEST(Sampling, IsAFunctionOfSeedPromptAndPosition) {
  const Sampling one{.temperature = 10, .seed = 1}, other{.temperature = 10, .seed = 2};
  std::vector<std::vector<uint32_t>> rows(4);
  for (uint64_t position = 0; position < 100; ++position) {
    rows[0].push_back(drawn_token(one, kLogits, 0, position));
    rows[1].push_back(drawn_token(one, kLogits, 0, position));
    rows[2].push_back(drawn_token(one, kLogits, 1, position));
    rows[3].push_back(drawn_token(other, kLogits, 0, position));
  }
  EXPECT_EQ(rows[0], rows[1]);
  EXPECT_NE(rows[0], rows[2]);
  EXPECT_NE(rows[0], rows[3]);
  EXPECT_NE(rows[2], rows[3]);
}

TEST(Sampling, RefusesLogitsThatAreNotFinite) {
  for (const float bad : {std::nanf(""), HUGE_VALF}) {
    try {
      drawn_token({}, std::vector<float>{1, bad}, 0, 0);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::numerics);
    }
  }
}

}  // namespace
}  // namespace sluice
