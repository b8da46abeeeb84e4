// Sums over ranks: every target against a plain recursion, to the bit.
#include "gpu/ranks/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <ostream>
#include <random>
#include <vector>

#include "engine/base/simd/convert.h"
#include "tests/support/simd_test_support.h"

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

// Bits to compare; all NaNs count as one.
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

struct Conversion {
  DType from, to;
};
std::ostream& operator<<(std::ostream& out, const Conversion& c) {
  return out << dtype_name(c.from) << " to " << dtype_name(c.to);
}
constexpr Conversion kConversions[] = {
    {DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::f16, DType::f16}, {DType::bf16, DType::f32},
    {DType::f16, DType::f32}, {DType::f32, DType::bf16},  {DType::f32, DType::f16}};

struct Sums {
  std::vector<float> values;  // what was written
  std::vector<double> squares;
  bool operator==(const Sums&) const = default;
};

// T(first, ranks) of reduce.h for value i.
float plain_tree(const std::vector<float>& parts, uint64_t elements, uint64_t i, uint64_t first,
                 uint64_t ranks) {
  if (ranks == 1) return parts[first * elements + i];
  uint64_t left = 1;
  while (2 * left < ranks) left *= 2;
  return plain_tree(parts, elements, i, first, left) +
         plain_tree(parts, elements, i, first + left, ranks - left);
}

// The contract, value by value: fp32 sums by the tree, one rounding, then 32 interleaved sums for each block.
Sums plain_sums(const std::vector<float>& parts, uint32_t ranks, DType to) {
  const uint64_t elements = parts.size() / ranks;
  std::vector<float> sums(elements);
  for (uint64_t i = 0; i < elements; ++i) sums[i] = plain_tree(parts, elements, i, 0, ranks);
  Sums out{widened(to, rounded(to, sums)), {}};
  for (uint64_t begin = 0; begin < elements; begin += kNormBlock) {
    double squares[32] = {};
    for (uint64_t i = begin; i < std::min(begin + kNormBlock, elements); ++i)
      squares[(i - begin) % 32] += static_cast<double>(out.values[i]) * static_cast<double>(out.values[i]);
    out.squares.push_back(0);
    for (const double s : squares) out.squares.back() += s;
  }
  return out;
}

// Sums written `shift` bytes after the beginning of a cache line: aligned ones may bypass the caches.
std::vector<std::byte> written_sums(Conversion c, const std::vector<std::byte>& parts, uint32_t ranks,
                                    size_t shift, double* block_sums, int threads) {
  const uint64_t elements = parts.size() / dtype_bytes(c.from) / ranks, bytes = elements * dtype_bytes(c.to);
  constexpr size_t kLine = 64, kGuard = 64;
  std::vector<std::byte> room(kLine + kGuard + shift + bytes + kGuard, std::byte{0xA5});
  const size_t to_line = kLine - reinterpret_cast<uintptr_t>(room.data()) % kLine;
  const auto begin = static_cast<int64_t>(to_line + kGuard + shift),
             end = begin + static_cast<int64_t>(bytes);
  Workers workers(threads);
  sum_ranks(c.from, parts.data(), ranks, elements, c.to, room.data() + begin, block_sums, workers);
  EXPECT_EQ(std::count(room.begin(), room.begin() + begin, std::byte{0xA5}), begin);
  EXPECT_EQ(std::count(room.begin() + end, room.end(), std::byte{0xA5}), room.end() - room.begin() - end);
  return {room.begin() + begin, room.begin() + end};
}

Sums found_sums(Conversion c, const std::vector<std::byte>& parts, uint32_t ranks, int threads = 1) {
  const uint64_t elements = parts.size() / dtype_bytes(c.from) / ranks;
  Sums sums{{}, std::vector<double>((elements + kNormBlock - 1) / kNormBlock, -1)};
  const auto values = written_sums(c, parts, ranks, 0, sums.squares.data(), threads);
  EXPECT_EQ(written_sums(c, parts, ranks, dtype_bytes(c.to), nullptr, threads), values)
      << "unaligned, without squares";
  sums.values = widened(c.to, values);
  return sums;
}

// In two levels: `block` ranks at a time are added to partial sums in fp32. The sum of these has the
// precision of the parts.
Sums two_level_sums(DType precision, const std::vector<std::byte>& parts, uint32_t ranks, uint32_t block) {
  const uint64_t part = parts.size() / ranks, elements = part / dtype_bytes(precision);
  const uint32_t blocks = (ranks + block - 1) / block;
  std::vector<std::byte> partial(blocks * elements * sizeof(float));
  Workers workers(1);
  for (uint32_t b = 0; b < blocks; ++b)
    sum_ranks(precision, parts.data() + b * block * part, std::min(block, ranks - b * block), elements,
              DType::f32, partial.data() + b * elements * sizeof(float), nullptr, workers);
  return found_sums({DType::f32, precision}, partial, blocks);
}

// The gradients of `ranks` ranks. Most are ordinary, of many sizes, so that the order of additions shows.
// About every second element is special: subnormal sums, sums that overflow in the working precision or in
// fp32, infinities, NaN, both zeros.
std::vector<float> gradients(uint32_t ranks, uint64_t elements, uint64_t seed) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float special[] = {0.0f,       -0.0f,         1e-40f,    -3e-39f, 0x1p-133f,  6e-8f,
                           0x1p-25f,   65504.0f,      -65000.0f, 3e38f,   3.4e38f,    kInfinity,
                           -kInfinity, std::nanf(""), 0x1p24f,   1.0f,    1 + 0x1p-8f};
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(ranks * elements);
  for (float& v : values)
    v = random() % (2 * ranks) ? std::ldexp(normal(random), -static_cast<int>(random() % 20))
                               : special[random() % std::size(special)];
  return values;
}

constexpr uint32_t kRanks[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 80};

TEST(SumRanks, IsThePlainTreeOnEveryTarget) {
  for (const Conversion c : kConversions)
    for (const uint32_t ranks : kRanks)
      for (const uint64_t elements :
           {1ull, 3ull, 7ull, 8ull, 9ull, 31ull, 33ull, 2047ull, 2051ull, 5001ull}) {
        SCOPED_TRACE(::testing::Message() << c << ", " << ranks << " x " << elements);
        const auto parts = rounded(c.from, gradients(ranks, elements, ranks + elements));
        const Sums wanted = plain_sums(widened(c.from, parts), ranks, c.to);
        on_every_target([&] {
          const Sums found = found_sums(c, parts, ranks);
          ASSERT_EQ(bits_of(found.values), bits_of(wanted.values));
          ASSERT_EQ(bits_of(found.squares), bits_of(wanted.squares));
        });
      }
}

// Since two levels give the same bits, the ranks of a node can add their parts before they send.
TEST(SumRanks, TwoLevelsGiveTheBitsOfOne) {
  constexpr uint64_t kElements = 4099;
  for (const DType precision : {DType::f32, DType::bf16, DType::f16})
    for (const uint32_t ranks : kRanks) {
      const auto parts = rounded(precision, gradients(ranks, kElements, ranks));
      const Sums wanted = found_sums({precision, precision}, parts, ranks);
      for (const uint32_t block : {2u, 4u, 8u}) {
        SCOPED_TRACE(::testing::Message() << dtype_name(precision) << ", " << ranks << " by " << block);
        const Sums found = two_level_sums(precision, parts, ranks, block);
        EXPECT_EQ(bits_of(found.values), bits_of(wanted.values));
        EXPECT_EQ(bits_of(found.squares), bits_of(wanted.squares));
      }
    }
}

// Added one after the other in the order of ranks, 2^24 + 1 + 1 + 1 would stay 2^24 in fp32.
TEST(SumRanks, FollowsTheTree) {
  std::vector<float> values{0x1p24f, 1, 1, 1};
  const auto parts = rounded(DType::f32, values);
  EXPECT_EQ(found_sums({DType::f32, DType::f32}, parts, 4).values, std::vector{0x1p24f + 2});
}

TEST(SumRanks, NaNAndInfinityPassThrough) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Conversion c : kConversions)
    for (const uint32_t ranks : kRanks)
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        SCOPED_TRACE(::testing::Message() << c << ", rank " << rank << " of " << ranks);
        std::vector<float> values(3 * ranks, 1.0f);
        values[3 * rank] = kInfinity;
        values[3 * rank + 1] = std::nanf("");
        values[2] = kInfinity;
        values[3 * rank + 2] = rank == 0 ? kInfinity : -kInfinity;
        const Sums found = found_sums(c, rounded(c.from, values), ranks);
        EXPECT_EQ(found.values[0], kInfinity);
        EXPECT_TRUE(std::isnan(found.values[1]));
        EXPECT_EQ(std::isnan(found.values[2]), rank != 0);
        EXPECT_TRUE(std::isnan(found.squares[0]));
      }
}

TEST(SumRanks, BlocksAreSummedApartAndByAnyNumberOfThreads) {
  constexpr uint64_t kElements = 2 * kNormBlock + 12'345;
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  for (const Conversion c : kConversions)
    for (const uint32_t ranks : {1u, 2u, 5u, 9u}) {
      SCOPED_TRACE(::testing::Message() << c << ", " << ranks);
      std::vector<float> values(ranks * kElements);
      for (float& v : values) v = normal(random);
      const auto parts = rounded(c.from, values);
      const Sums wanted = plain_sums(widened(c.from, parts), ranks, c.to);
      for (const int threads : {1, 2}) EXPECT_EQ(found_sums(c, parts, ranks, threads), wanted);
    }
}

}  // namespace
}  // namespace sluice
