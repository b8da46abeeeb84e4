// Frequencies of rotary positions, from every spelling of config.json, against transformers'.
#include "models/families/rope_frequencies.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/file.h"
#include "tests/support/family_support.h"

namespace sluice {
namespace {

nlohmann::json cases() {
  return nlohmann::json::parse(read_text_file("tests/fixtures/rope_frequencies.json", 1 << 20))["cases"];
}

RopeTurns turns_of(const ModelConfig& c, int64_t sequence, bool sliding) {
  const bool own = sliding && c.sliding_rope_theta != 0;
  return rope_turns(own ? c.sliding_rope_theta : c.rope_theta, own ? c.sliding_rope_scaling : c.rope_scaling,
                    {c.head_size, c.context, sequence});
}

void expect_turns(const nlohmann::json& one, const ModelConfig& config, const std::string& where) {
  const RopeTurns turns = turns_of(config, one["sequence"], one["layer_type"] == "sliding_attention");
  const std::vector<double> wanted = one["inverse_frequencies"];
  ASSERT_EQ(turns.frequencies.size(), wanted.size()) << where;
  // transformers computes the frequencies in fp32. An exponent's rounding of 2^-25 becomes ln(theta) times as
  // much, at most 14, of the power.
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_NEAR(turns.frequencies[i], wanted[i], 2e-6 * wanted[i]) << where << ", pair " << i;
  EXPECT_NEAR(turns.scale, one["factor"].get<double>(), 1e-12) << where;
}

TEST(RopeFrequencies, AreThoseOfTransformers) {
  size_t compared = 0;
  for (const nlohmann::json& one : cases()) {
    const std::string name = one["name"];
    const ModelConfig config = config_from_json(one["config"].dump(), name);
    expect_turns(one, config, name);
    // The file that Sluice writes gives the same frequencies.
    expect_turns(one, config_from_json(config_to_json(config, DType::f32), name), name + ", written");
    ++compared;
  }
  EXPECT_GE(compared, 30u);
}

TEST(RopeFrequencies, KeysThatMakeNoSenseAreRefused) {
  const std::string scaling = "\"rope_scaling\": ";
  const auto bad = [&](const std::string& text, const std::string& sentence) {
    const size_t begin = std::string(kLlamaJson).find(scaling),
                 end = std::string(kLlamaJson).find('}', begin);
    std::string file = kLlamaJson;
    expect_bad_file(file.replace(begin, end + 1 - begin, scaling + text), sentence);
  };
  bad("{\"type\": \"linear\"}", "rope_scaling: factor is missing.");
  bad("{\"type\": \"linear\", \"factor\": 0.5}", "make no sense.");
  bad("{\"type\": \"yarn\", \"factor\": 2, \"beta_fast\": 1, \"beta_slow\": 2}", "make no sense.");
  bad("{\"type\": \"longrope\", \"short_factor\": [1], \"long_factor\": [1]}",
      "a list of RoPE factors has 1 numbers, a head 32 pairs.");
  bad("{\"type\": \"longrope\", \"short_factor\": [1, \"2\"], \"long_factor\": [1]}",
      "short_factor has \"2\", not a number.");
  bad("{\"rope_type\": \"yarn\", \"type\": \"linear\"}", "rope_type and type disagree.");
  bad("{\"rope_type\": \"default\", \"partial_rotary_factor\": 0.5}",
      "partial_rotary_factor is 0.5, only 1 is supported.");
  bad("[]", "rope_scaling is a list, not an object.");
}

}  // namespace
}  // namespace sluice
