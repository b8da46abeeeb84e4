#include "models/weights/initial_weights.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numbers>

#include "engine/base/error.h"
#include "engine/base/philox.h"

namespace sluice {

namespace {

constexpr uint64_t kLanes = 4;  // elements of one Philox counter
using Lanes = std::array<double, kLanes>;

// The library's logarithm, sine and cosine differ in the last bit between processors (with and without fused
// multiply-add). So they are computed here by additions, multiplications, divisions and square roots.

// -ln((word + 0.5) / 2^32), relative error below 1e-14. With m in [sqrt(1/2), sqrt(2)) and s = (m-1)/(m+1),
// ln m = 2 (s + s^3/3 + s^5/5 + ...); s^2 <= 0.0295, so the first term left out is 0.0295^9 / 19 = 9e-16 of
// the sum.
double negative_log_of_uniform(uint32_t word) {
  constexpr std::array<double, 9> kInverseOdd = {1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9,
                                                 1.0 / 7,  1.0 / 5,  1.0 / 3,  1.0};
  constexpr int kMantissaBits = 52, kWordBits = 32;
  constexpr auto kSqrtHalf = std::bit_cast<int64_t>(std::numbers::sqrt2 / 2);
  const auto bits = std::bit_cast<int64_t>(static_cast<double>(word) + 0.5);  // exact: 33 bits
  const int64_t exponent = (bits - kSqrtHalf) >> kMantissaBits;               // rounds down
  const auto m = std::bit_cast<double>(bits - exponent * (int64_t{1} << kMantissaBits));
  const double s = (m - 1) / (m + 1), z = s * s;
  double sum = 0;
  for (const double inverse : kInverseOdd) sum = sum * z + inverse;
  return -(static_cast<double>(exponent - kWordBits) * std::numbers::ln2 + 2 * s * sum);
}

struct Direction {
  double cosine, sine;
};

// The angle 2 pi word / 2^32. Taylor series after reduction to [-pi/4, pi/4]; the first terms left out are
// below 1e-16.
Direction direction_of(uint32_t word) {
  const uint32_t quadrant = (word + (1u << 29)) >> 30;  // nearest quarter turn, modulo four by wrapping
  const auto rest = static_cast<int32_t>(word - (quadrant << 30));
  const double phi = rest * (2 * std::numbers::pi / 4294967296.0), z = -(phi * phi);
  // 1/15!, 1/13!, ..., 1/1! and 1/16!, 1/14!, ..., 1/0!.
  constexpr std::array<double, 8> kSine = {
      1.0 / 1307674368000, 1.0 / 6227020800, 1.0 / 39916800, 1.0 / 362880,
      1.0 / 5040,          1.0 / 120,        1.0 / 6,        1.0};
  constexpr std::array<double, 9> kCosine = {1.0 / 20922789888000,
                                             1.0 / 87178291200,
                                             1.0 / 479001600,
                                             1.0 / 3628800,
                                             1.0 / 40320,
                                             1.0 / 720,
                                             1.0 / 24,
                                             1.0 / 2,
                                             1.0};
  double sine = 0, cosine = 0;
  for (const double inverse : kSine) sine = sine * z + inverse;
  for (const double inverse : kCosine) cosine = cosine * z + inverse;
  sine *= phi;
  // Odd quadrants swap sine and cosine. Quadrants 1 and 2 negate the cosine, 2 and 3 the sine. There are no
  // branches, since no processor could predict them here.
  const std::array<uint64_t, 2> values = {std::bit_cast<uint64_t>(cosine), std::bit_cast<uint64_t>(sine)};
  const uint64_t odd = quadrant & 1, cosine_sign = (uint64_t{quadrant} + 1) >> 1 & 1,
                 sine_sign = quadrant >> 1;
  return {std::bit_cast<double>(values[odd] ^ cosine_sign << 63),
          std::bit_cast<double>(values[1 - odd] ^ sine_sign << 63)};
}

// Four independent standard normal values from the four words of a counter.
Lanes normal_lanes(const PhiloxCounter& words) {
  Lanes lanes;
  for (size_t pair = 0; pair < kLanes; pair += 2) {
    const double radius = std::sqrt(2 * negative_log_of_uniform(words[pair]));
    const Direction direction = direction_of(words[pair + 1]);
    lanes[pair] = radius * direction.cosine;
    lanes[pair + 1] = radius * direction.sine;
  }
  return lanes;
}

// Four independent values between -sqrt(3) and sqrt(3): of deviation 1.
Lanes uniform_lanes(const PhiloxCounter& words) {
  Lanes lanes;
  for (size_t i = 0; i < kLanes; ++i)
    lanes[i] = std::numbers::sqrt3 * ((static_cast<double>(words[i]) + 0.5) / 2147483648.0 - 1);
  return lanes;
}

// `lanes_of` makes a counter's four values, of deviation 1.
void fill_drawn(const Parameter& parameter, Lanes (*lanes_of)(const PhiloxCounter&), uint64_t seed,
                uint64_t first, uint64_t count, float* out) {
  const uint64_t stream = XXH64(parameter.name.data(), parameter.name.size(), 0);
  const PhiloxKey key = philox_key(seed);
  while (count > 0) {
    const uint64_t counter = first / kLanes, lane = first % kLanes;
    const Lanes lanes =
        lanes_of(philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                             static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                            key));
    const uint64_t n = std::min(count, kLanes - lane);
    for (uint64_t i = 0; i < n; ++i)
      out[i] = static_cast<float>(parameter.standard_deviation * lanes[lane + i]);
    first += n;
    count -= n;
    out += n;
  }
}

}  // namespace

void fill_initial(const Parameter& parameter, uint64_t seed, uint64_t first, uint64_t count, float* out) {
  const auto elements = static_cast<uint64_t>(element_count(parameter.shape));
  CHECK(first <= elements && count <= elements - first, "range outside of " + parameter.name);
  switch (parameter.initializer) {
    case Initializer::normal:
      return fill_drawn(parameter, normal_lanes, seed, first, count, out);
    case Initializer::uniform:
      return fill_drawn(parameter, uniform_lanes, seed, first, count, out);
    case Initializer::zeros:
      std::fill_n(out, count, 0.0f);
      return;
    case Initializer::ones:
      std::fill_n(out, count, 1.0f);
      return;
  }
}

}  // namespace sluice
