// Rounding and widening: every vector target against exact arithmetic, to the bit.
#include "engine/base/simd/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/simd_reference.h"
#include "tests/support/simd_test_support.h"

namespace sluice {
namespace {

// Magnitudes from about 2^-90 to 1: every rounding occurs, and so do numbers that are subnormal or zero in
// fp16.
std::vector<float> random_values(size_t elements, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values;
  for (size_t i = 0; i < elements; ++i)
    values.push_back(normal(random) * std::ldexp(1.0f, -static_cast<int>(random() % 90)));
  return values;
}

TEST(Convert, EverySixteenBitValueWidens) {
  std::vector<uint16_t> in(65536);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint16_t>(i);
  for (const DType precision : {DType::bf16, DType::f16}) {
    const Format& format = precision == DType::bf16 ? kBf16 : kF16;
    on_every_target([&] {
      std::vector<float> out(in.size());
      widen(precision, in.data(), out.data(), in.size());
      for (size_t i = 0; i < in.size(); ++i) ASSERT_TRUE(same(out[i], reference_widen(format, in[i]))) << i;
    });
  }
}

// Every representable value, every tie between neighbours, and both fp32 neighbours of each.
TEST(Convert, RoundsToNearestEven) {
  for (const DType precision : {DType::bf16, DType::f16}) {
    const Format& format = precision == DType::bf16 ? kBf16 : kF16;
    std::vector<float> in = {std::numeric_limits<float>::quiet_NaN(),
                             -std::numeric_limits<float>::quiet_NaN(),
                             std::bit_cast<float>(0x7F800001u),
                             std::bit_cast<float>(0xFFFFFFFFu),  // other NaNs
                             1e-45f,
                             3.4028235e38f,
                             65519.996f,
                             65520.0f,
                             1e30f};
    for (uint32_t code = 0; code < format.infinity; ++code) {
      const float value = reference_widen(format, static_cast<uint16_t>(code));
      const double next = code + 1 < format.infinity
                              ? reference_widen(format, static_cast<uint16_t>(code + 1))
                              : std::ldexp(2.0, format.exponent_max);
      const auto tie = static_cast<float>((value + next) / 2);
      for (const float x : {value, tie})
        for (const float y : {x, std::nextafter(x, 0.0f), std::nextafter(x, 1e38f)}) {
          in.push_back(y);
          in.push_back(-y);
        }
    }
    on_every_target([&] {
      std::vector<uint16_t> out(in.size());
      round_to(precision, in.data(), out.data(), in.size());
      for (size_t i = 0; i < in.size(); ++i)
        ASSERT_TRUE(same16(format, out[i], reference_round(format, in[i])))
            << in[i] << ": " << out[i] << " is not " << reference_round(format, in[i]);
    });
  }
}

TEST(Convert, EveryLengthAndAlignment) {
  for (const DType precision : {DType::bf16, DType::f16, DType::f32})
    for (size_t n = 0; n <= 3 * 16 + 1; ++n) {
      const std::vector<float> values = random_values(n, static_cast<uint32_t>(n));
      const std::vector<uint16_t> zeros(n);
      on_every_target([&] {
        for (const size_t offset : {0, 1, 3}) {
          Stream<float> from(values, 4 * offset), back(values, 4 * (offset + 1));
          Stream<uint16_t> to(zeros, 2 * offset);
          if (precision == DType::f32) {
            round_to(precision, from.data(), back.data(), n);
            widen(precision, back.data(), from.data(), n);
          } else {
            round_to(precision, from.data(), to.data(), n);
            widen(precision, to.data(), back.data(), n);
          }
          const Format& format = precision == DType::bf16 ? kBf16 : kF16;
          for (size_t i = 0; i < n; ++i) {
            const float rounded = reference_widen(format, reference_round(format, values[i]));
            ASSERT_EQ(back[i], precision == DType::f32 ? values[i] : rounded) << i;
          }
          EXPECT_TRUE(from.guards_hold() && back.guards_hold() && to.guards_hold());
        }
      });
    }
}

}  // namespace
}  // namespace sluice
