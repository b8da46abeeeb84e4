#include "engine/run/generate/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "engine/base/error.h"
#include "engine/run/generate/stop_texts.h"
#include "models/text/samples/generation_settings.h"
#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

const std::vector<float> kLogits = {1, 3, 2, 3, -5};

// How often each token is drawn at `draws` positions.
std::map<uint32_t, int> counts(const Sampling& sampling, const std::vector<float>& logits, int draws) {
  std::map<uint32_t, int> of;
  for (int i = 0; i < draws; ++i) ++of[drawn_token(sampling, logits, 7, static_cast<uint64_t>(i))];
  return of;
}

TEST(Sampling, AtTemperatureZeroTheLikeliestOfLeastId) {
  EXPECT_EQ(counts({}, kLogits, 10), (std::map<uint32_t, int>{{1, 10}}));
}

// Logits divided by so small a temperature are infinite.
TEST(Sampling, ATinyTemperatureLeavesTheLikeliest) {
  for (const float sign : {1.0f, -1.0f}) {
    const std::vector<float> logits = {sign * 4, sign * 2, sign * 3};
    const uint32_t likeliest = sign > 0 ? 0 : 1;
    for (const double top_p : {1.0, 0.5})
      EXPECT_EQ(counts({.temperature = 1e-310, .top_p = top_p}, logits, 10),
                (std::map<uint32_t, int>{{likeliest, 10}}));
  }
}

// The tolerance is five standard deviations of a count, each below sqrt(20000) / 2 = 71.
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

// At temperature 1, tokens 1 and 3 have probability 0.4036. Token 2 has 0.1485, which is 0.3679 of that, and
// token 0 has 0.0546, which is 0.1353 of it.
TEST(Sampling, KeepsThoseOfALeastProbability) {
  const auto drawn = [](const Sampling& sampling) {
    std::set<uint32_t> ids;
    for (const auto& [id, count] : counts(sampling, kLogits, 2000)) ids.insert(id);
    return ids;
  };
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 0.13}), (std::set<uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 0.14}), (std::set<uint32_t>{1, 2, 3}));
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 0.37}), (std::set<uint32_t>{1, 3}));
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 1}), (std::set<uint32_t>{1, 3}));
  // min_p applies after top-k and top-p, to probabilities at the temperature. At temperature 2, token 2 has
  // 0.6065 of the likeliest token's probability.
  EXPECT_EQ(drawn({.temperature = 1, .top_k = 1, .min_p = 0.1}), (std::set<uint32_t>{1}));
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.7, .min_p = 0.1}), (std::set<uint32_t>{1, 3}));
  EXPECT_EQ(drawn({.temperature = 2, .min_p = 0.6}), (std::set<uint32_t>{1, 2, 3}));
  EXPECT_EQ(drawn({.temperature = 2, .min_p = 0.61}), (std::set<uint32_t>{1, 3}));
}

// A penalty of 2 turns the logit 3 of token 1 into 1.5, and would turn -5 of token 4 into -10.
TEST(Sampling, PenalizesWhatIsThere) {
  const auto likeliest = [](double penalty, const std::vector<uint32_t>& before) {
    return drawn_token({.repetition_penalty = penalty}, kLogits, 0, 0, before);
  };
  EXPECT_EQ(likeliest(2, {}), 1u);
  EXPECT_EQ(likeliest(2, {1}), 3u);
  EXPECT_EQ(likeliest(2, {1, 3}), 2u);
  EXPECT_EQ(likeliest(2, {1, 1, 3, 3, 1}), 2u);  // one penalty, however often a token is there
  EXPECT_EQ(likeliest(1.4, {1, 3}), 1u);         // 3 / 1.4 = 2.14 is above 2
  EXPECT_EQ(likeliest(2, {1, 3, 2, 0, 99}), 1u);
  EXPECT_EQ(likeliest(0.5, {2}), 2u);  // the logit of token 2 becomes 4
  const std::vector<float> logits = {-4, -5};
  EXPECT_EQ(drawn_token({.repetition_penalty = 1.5}, logits, 0, 0, std::vector<uint32_t>{0}), 1u);
  // The penalty applies to capped logits: 3 becomes tanh(3) / 1.25 = 0.796, below tanh(2) = 0.964.
  EXPECT_EQ(
      drawn_token({.repetition_penalty = 1.25, .soft_cap = 1}, kLogits, 0, 0, std::vector<uint32_t>{1, 3}),
      2u);
  // Draws use penalized logits, here 1.5 and 3 for the two tokens.
  int first = 0;
  for (uint64_t i = 0; i < 20000; ++i)
    first += drawn_token({.temperature = 1, .repetition_penalty = 2}, std::vector<float>{3, 3}, 7, i,
                         std::vector<uint32_t>{0}) == 0;
  EXPECT_NEAR(first, 20000 / (1 + std::exp(1.5)), 355);
}

using GenerationSettingsTest = FormatTest;

TEST_F(GenerationSettingsTest, AreThoseOfTheFile) {
  const auto read = [&](const char* json) {
    write_file("generation_config.json", json);
    return read_generation_settings(directory.string());
  };
  EXPECT_FALSE(read_generation_settings(directory.string()).top_k);
  GenerationSettings s =
      read(R"({"do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.05,
      "repetition_penalty": 1.05, "max_new_tokens": 99, "max_length": 100, "stop_strings": ["a", "b"],
      "eos_token_id": [1, 2], "typical_p": 1.0, "num_beams": 1, "suppress_tokens": null, "max_time": null})");
  EXPECT_EQ(s.temperature, 0.7);
  EXPECT_EQ(s.top_p, 0.8);
  EXPECT_EQ(s.top_k, 20);
  EXPECT_EQ(s.min_p, 0.05);
  EXPECT_EQ(s.repetition_penalty, 1.05);
  EXPECT_EQ(s.max_tokens, 99);
  EXPECT_EQ(s.max_length, 100);
  EXPECT_EQ(s.stops, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(s.not_applied.empty());
  // If the config only says do_sample, transformers draws among 50 tokens at temperature 1.
  s = read(R"({"do_sample": true})");
  EXPECT_EQ(s.temperature, 1);
  EXPECT_EQ(s.top_k, 50);
  EXPECT_FALSE(s.top_p);
  s = read(R"({"temperature": 0.6, "top_p": 0.9, "stop_strings": "end"})");  // as Llama 2: it does not draw
  EXPECT_FALSE(s.temperature);
  EXPECT_FALSE(s.top_k);
  EXPECT_EQ(s.top_p, 0.9);
  EXPECT_EQ(s.stops, std::vector<std::string>{"end"});
  s = read(R"({"num_beams": 4, "typical_p": 0.9, "temperature": "hot", "top_p": 0, "top_k": 2.5,
      "bad_words_ids": [[1111111111, 2222222222], [3333333333, 4444444444]], "token_healing": true})");
  EXPECT_EQ(s.not_applied,
            (std::vector<std::string>{"temperature \"hot\"", "top_k 2.5", "top_p 0", "num_beams 4",
                                      "typical_p 0.9", "bad_words_ids", "token_healing true"}));
  EXPECT_FALSE(s.top_p || s.top_k);
  expect_error(ExitCode::malformed_file, {"generation_config.json"}, [&] { read("{"); });
}

TEST(StopTexts, EndWhereTheyAreComplete) {
  StopTexts stops({"\n\n", "User:"});
  EXPECT_FALSE(stops.found("a\n"));
  EXPECT_FALSE(stops.found("b\nUs"));
  EXPECT_FALSE(stops.found("er"));
  EXPECT_TRUE(stops.found(": and more"));
  StopTexts lines({"\n\n"});
  EXPECT_FALSE(lines.found(""));
  EXPECT_FALSE(lines.found("\n"));
  EXPECT_TRUE(lines.found("\nb"));
  StopTexts one({"x"});
  EXPECT_FALSE(one.found("abc"));
  EXPECT_TRUE(one.found("axc"));
  EXPECT_FALSE(StopTexts({}).found("x"));
}

// A cap of 1 turns the logits 3 and 1 into 0.995 and 0.762, which are hardly apart.
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
