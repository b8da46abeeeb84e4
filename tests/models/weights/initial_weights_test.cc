// The properties that initial values promise.
#include "models/weights/initial_weights.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "engine/base/philox.h"

namespace sluice {
namespace {

std::vector<float> values(const Parameter& parameter, uint64_t seed, uint64_t first, uint64_t count) {
  std::vector<float> out(count);
  fill_initial(parameter, seed, first, count, out.data());
  return out;
}

Parameter normal(const std::string& name, Shape shape, double deviation) {
  return {.name = name, .shape = std::move(shape), .standard_deviation = deviation};
}

TEST(InitialWeights, EveryRangeAgreesToTheBit) {
  const Parameter parameter = normal("h.0.attn.c_attn.weight", {7, 149}, 0.02);
  const std::vector<float> whole = values(parameter, 42, 0, 1043);
  for (uint64_t first = 0; first < 1043; first += 1 + first / 7)
    for (const uint64_t count : {1, 2, 3, 4, 5, 63, 64, 65, 300}) {
      if (first + count > 1043) continue;
      const std::vector<float> part = values(parameter, 42, first, count);
      EXPECT_EQ(std::memcmp(part.data(), whole.data() + first, count * sizeof(float)), 0)
          << first << " " << count;
    }
}

TEST(InitialWeights, TheMappingIsTheDocumentedOne) {
  // Elements 4k..4k+3 come from counter (k, xxh64(name)) with the seed as key, here by the library's own
  // functions. Tolerance: twice the 2^-24 (6e-8) by which the one rounding to fp32 may change the largest
  // value.
  const std::string name = "wte.weight";
  const uint64_t seed = 0x1122334455667788, stream = XXH64(name.data(), name.size(), 0);
  const Parameter parameter = normal(name, {1 << 20, 1 << 20}, 0.5);
  for (const uint64_t block : {uint64_t{0}, uint64_t{1}, uint64_t{12345}, (uint64_t{1} << 33) + 7}) {
    const auto words = philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                   static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                                  philox_key(seed));
    const std::vector<float> out = values(parameter, seed, 4 * block, 4);
    for (size_t pair = 0; pair < 4; pair += 2) {
      const double radius = std::sqrt(-2 * std::log((words[pair] + 0.5) / 4294967296.0));
      const double angle = 2 * std::numbers::pi * words[pair + 1] / 4294967296.0;
      EXPECT_NEAR(out[pair], 0.5 * radius * std::cos(angle), 0.5 * radius * 1.2e-7);
      EXPECT_NEAR(out[pair + 1], 0.5 * radius * std::sin(angle), 0.5 * radius * 1.2e-7);
    }
  }
}

TEST(InitialWeights, FirstValuesNeverChange) {
  // Golden values: the initial weights are part of what a seed means.
  const std::vector<float> out = values(normal("wte.weight", {8}, 0.02), 0, 0, 4);
  const std::vector<float> golden = {-0x1.0de2d6p-6f, 0x1.0d4778p-5f, -0x1.47c25ep-6f, 0x1.9c18b2p-8f};
  EXPECT_EQ(out, golden);
}

TEST(InitialWeights, MomentsAreThoseOfANormal) {
  const uint64_t n = 1 << 18;
  double sum = 0, squares = 0, cubes = 0, fourths = 0, neighbours = 0, previous = 0;
  int beyond_two = 0;
  for (const float x : values(normal("w", {1 << 18}, 1.0), 3, 0, n)) {
    sum += x;
    squares += x * x;
    cubes += x * x * x;
    fourths += double{x} * x * x * x;
    neighbours += x * previous;
    previous = x;
    beyond_two += std::abs(x) > 2;
  }
  const double unit =
      1 / std::sqrt(static_cast<double>(n));  // standard error of a mean of unit variance; five allowed
  EXPECT_NEAR(sum / n, 0, 5 * unit);
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2.0) * unit);
  EXPECT_NEAR(cubes / n, 0, 5 * std::sqrt(15.0) * unit);
  EXPECT_NEAR(fourths / n, 3, 5 * std::sqrt(96.0) * unit);
  EXPECT_NEAR(neighbours / n, 0, 5 * unit);
  EXPECT_NEAR(static_cast<double>(beyond_two) / n, 0.0455, 5 * std::sqrt(0.0455 * 0.9545) * unit);
}

TEST(InitialWeights, SeedsAndNamesGiveDifferentStreams) {
  const auto base = values(normal("a", {64}, 1), 1, 0, 64);
  EXPECT_NE(base, values(normal("b", {64}, 1), 1, 0, 64));
  EXPECT_NE(base, values(normal("a", {64}, 1), 2, 0, 64));
  EXPECT_NE(base, values(normal("a", {64}, 1), uint64_t{1} << 32 | 1, 0, 64));
  EXPECT_EQ(base, values(normal("a", {4, 16}, 1), 1, 0, 64));
}

TEST(InitialWeights, ConstantsAndDeviation) {
  Parameter parameter = normal("ln.bias", {5}, 0.02);
  parameter.initializer = Initializer::zeros;
  EXPECT_EQ(values(parameter, 1, 0, 5), std::vector<float>(5, 0.0f));
  parameter.initializer = Initializer::ones;
  EXPECT_EQ(values(parameter, 1, 1, 3), std::vector<float>(3, 1.0f));
  const auto narrow = values(normal("w", {64}, 0.25), 1, 0, 64),
             wide = values(normal("w", {64}, 0.5), 1, 0, 64);
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(2 * narrow[i], wide[i]);
}

}  // namespace
}  // namespace sluice
