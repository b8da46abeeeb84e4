// Random numbers of routers: functions of (seed, step, layer, token) alone, so that they do not depend on how
// a step is cut, where it runs, or whether the run was resumed.
//
// The input `draws` of a model says where a micro-batch stands: kDrawWords words of 32 bits, which the
// trainer fills with each micro-batch. A token's number is its place in the step's batch, over all ranks: for
// row r, the first token's number plus r. Where all words are zero, as in validation, nothing is random. Pure
// functions, any thread.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "engine/base/philox.h"

namespace sluice {

enum DrawWord : uint8_t { kDrawSeedLow, kDrawSeedHigh, kDrawStep, kDrawTokenLow, kDrawTokenHigh, kDrawWords };

// `step` is the number of a step of the run, from 1.
struct Draws {
  uint64_t seed = 0, first_token = 0;
  uint32_t step = 0;

  std::array<int32_t, kDrawWords> words() const {
    const auto low = [](uint64_t word) { return static_cast<int32_t>(static_cast<uint32_t>(word)); };
    return {low(seed), low(seed >> 32), low(step), low(first_token), low(first_token >> 32)};
  }
};
inline Draws draws_of(const int32_t* words) {
  const auto word = [&](DrawWord w) { return static_cast<uint64_t>(static_cast<uint32_t>(words[w])); };
  return {word(kDrawSeedHigh) << 32 | word(kDrawSeedLow), word(kDrawTokenHigh) << 32 | word(kDrawTokenLow),
          static_cast<uint32_t>(words[kDrawStep])};
}

// The first 64 bits of a counter are the token's number (lower 48) and the block of numbers (upper 16). The
// next word is the step. The last word is the layer and one of these constants, which says what is drawn.
constexpr uint32_t kDrawSecond = 0x52000000, kDrawNoise = 0x4E000000;

// Uniform in [0, 1): a multiple of 2^-24, exact in fp32.
constexpr float uniform_of(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

inline PhiloxCounter draw_words(const Draws& draws, uint32_t what, uint64_t row, uint32_t block) {
  const uint64_t token = draws.first_token + row;
  const PhiloxCounter counter{static_cast<uint32_t>(token), static_cast<uint32_t>(token >> 32) | block << 16,
                              draws.step, what};
  return philox4x32(counter, philox_key(draws.seed));
}

// The number with which the second choice of a row is compared (Routing::random_second).
inline float draw_second(const Draws& draws, uint32_t layer, uint64_t row) {
  return uniform_of(draw_words(draws, kDrawSecond | layer, row, 0)[0]);
}

// For add_noise: the normal numbers of experts 4 * block to 4 * block + 3 (Box and Muller 1958). The uniform
// number under the logarithm is an odd multiple of 2^-24, hence neither 0 nor 1, and exact in fp32.
inline std::array<double, 4> draw_noise(const Draws& draws, uint32_t layer, uint64_t row, uint32_t block) {
  const PhiloxCounter words = draw_words(draws, kDrawNoise | layer, row, block);
  std::array<double, 4> normal{};
  for (size_t i = 0; i < 4; i += 2) {
    const double radius = std::sqrt(-2 * std::log((2 * (words[i] >> 9) + 1) * 0x1p-24));
    const double angle = 2 * std::numbers::pi * static_cast<double>(uniform_of(words[i + 1]));
    normal[i] = radius * std::cos(angle), normal[i + 1] = radius * std::sin(angle);
  }
  return normal;
}

}  // namespace sluice
