// Sums over ranks: every target against a plain loop, to the bit.
#include "cpu_optim/reduce.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "cpu_optim/optimizer.h"
#include "tests/simd_test_support.h"

namespace sluice {
namespace {

std::vector<float> widened(DType precision, const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / dtype_bytes(precision));
  widen(precision, bytes.data(), values.data(), values.size());
  return values;
}

std::vector<std::byte> rounded(DType precision, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * dtype_bytes(precision));
  round_to(precision, values.data(), bytes.data(), values.size());
  return bytes;
}

// All NaNs are one.
std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float v : values) bits.push_back(std::isnan(v) ? 0x7FC00000u : std::bit_cast<uint32_t>(v));
  return bits;
}
std::vector<uint64_t> bits_of(const std::vector<double>& values) {
  std::vector<uint64_t> bits;
  for (const double v : values) bits.push_back(std::isnan(v) ? ~0ull : std::bit_cast<uint64_t>(v));
  return bits;
}

struct Sums {
  std::vector<float> values;  // what was written
  std::vector<double> squares;
};

// The contract, value by value: fp32 in order of rank, one rounding, then eight interleaved sums a block.
Sums plain_sums(DType precision, const std::vector<float>& parts, uint32_t ranks) {
  const uint64_t elements = parts.size() / ranks;
  std::vector<float> sums(parts.begin(), parts.begin() + static_cast<int64_t>(elements));
  for (uint32_t r = 1; r < ranks; ++r)
    for (uint64_t i = 0; i < elements; ++i) sums[i] += parts[r * elements + i];
  Sums out{widened(precision, rounded(precision, sums)), {}};
  for (uint64_t begin = 0; begin < elements; begin += kNormBlock) {
    double squares[8] = {};
    for (uint64_t i = begin; i < std::min(begin + kNormBlock, elements); ++i)
      squares[(i - begin) % 8] += static_cast<double>(out.values[i]) * static_cast<double>(out.values[i]);
    out.squares.push_back(0);
    for (const double s : squares) out.squares.back() += s;
  }
  return out;
}

Sums found_sums(DType precision, const std::vector<std::byte>& parts, uint32_t ranks, int threads) {
  const uint64_t elements = parts.size() / dtype_bytes(precision) / ranks;
  constexpr size_t kGuard = 64;
  std::vector<std::byte> to(elements * dtype_bytes(precision) + kGuard, std::byte{0xA5});
  Sums sums{{}, std::vector<double>((elements + kNormBlock - 1) / kNormBlock, -1)};
  Workers workers(threads);
  sum_ranks(precision, parts.data(), ranks, elements, to.data(), sums.squares.data(), workers);
  for (size_t i = to.size() - kGuard; i < to.size(); ++i) EXPECT_EQ(to[i], std::byte{0xA5});
  to.resize(to.size() - kGuard);
  sums.values = widened(precision, to);
  return sums;
}

// Ordinary gradients, and of those that are not: subnormal sums, sums that overflow in the working precision
// or in fp32, infinities, NaN, both zeros, and terms whose order shows.
std::vector<float> gradients(uint64_t count, uint64_t seed) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float special[] = {0.0f,       -0.0f,         1e-40f,    -3e-39f, 0x1p-133f,  6e-8f,
                           0x1p-25f,   65504.0f,      -65000.0f, 3e38f,   3.4e38f,    kInfinity,
                           -kInfinity, std::nanf(""), 0x1p24f,   1.0f,    1 + 0x1p-8f};
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 0.01f);
  std::vector<float> values(count);
  for (float& v : values) v = random() % 4 ? normal(random) : special[random() % std::size(special)];
  return values;
}

TEST(SumRanks, IsThePlainLoopOnEveryTarget) {
  for (const DType precision : {DType::f32, DType::bf16, DType::f16})
    for (uint32_t ranks = 1; ranks <= 9; ++ranks)
      for (const uint64_t elements :
           {1ull, 3ull, 7ull, 8ull, 9ull, 31ull, 33ull, 2047ull, 2051ull, 5001ull}) {
        SCOPED_TRACE(testing::Message() << dtype_name(precision) << " " << ranks << " x " << elements);
        const auto parts = rounded(precision, gradients(ranks * elements, ranks + elements));
        const Sums wanted = plain_sums(precision, widened(precision, parts), ranks);
        on_every_target([&] {
          const Sums found = found_sums(precision, parts, ranks, 1);
          ASSERT_EQ(bits_of(found.values), bits_of(wanted.values));
          ASSERT_EQ(bits_of(found.squares), bits_of(wanted.squares));
        });
      }
}

TEST(SumRanks, BlocksAreSummedApartAndByAnyNumberOfThreads) {
  constexpr uint64_t kElements = 2 * kNormBlock + 12'345;
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  for (const DType precision : {DType::f32, DType::bf16, DType::f16})
    for (const uint32_t ranks : {1u, 2u, 5u}) {
      std::vector<float> values(ranks * kElements);
      for (float& v : values) v = normal(random);
      const auto parts = rounded(precision, values);
      const Sums wanted = plain_sums(precision, widened(precision, parts), ranks);
      for (const int threads : {1, 2}) {
        const Sums found = found_sums(precision, parts, ranks, threads);
        EXPECT_EQ(found.values, wanted.values);
        EXPECT_EQ(found.squares, wanted.squares);
      }
    }
}

}  // namespace
}  // namespace sluice
