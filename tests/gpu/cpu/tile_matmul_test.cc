// Products of tiles of rows against plain loops, and that a row's bits depend on nothing but the row, its
// place in its tile and B. Tolerance: see matmul_test.cc.
#include "gpu/cpu/tile_matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "gpu/cpu/matmul.h"
#include "gpu/cpu/pack_bf16.h"
#include "tests/support/cpu_test_support.h"

namespace sluice {
namespace {

using namespace testing_support;

constexpr int64_t kHeight = 32;

struct TileMode {
  const char* name;
  DType precision;
  cpu::Support support;
};
std::vector<TileMode> tile_modes() {
  const cpu::Support native = cpu::native_support(), plain{};
  return {{"fp32", DType::f32, native},
          {"bf16", DType::bf16, native},
          {"fp16", DType::f16, native},
          {"fp32 OpenBLAS", DType::f32, plain},
          {"bf16 widened", DType::bf16, plain}};
}

// Sizes with one column or few, with panels as pack_bf16 makes them, and with several chunks of k.
struct TileSize {
  int64_t n, k;
};
constexpr TileSize kSizes[] = {{1, 1}, {17, 40}, {64, 64}, {320, 96}, {300, 129}, {70, 2500}};

// The product of the first `tiles` tiles of A with B.
std::vector<float> multiply(const TileMode& mode, const cpu::TiledProduct& p, const Tensor& a,
                            const Tensor& b, int64_t tiles, int threads) {
  cpu::TileMultiplier multiplier(threads, mode.support);
  Workers workers(threads);
  Workspace workspace(multiplier.prepare(p));
  std::vector<float> c(static_cast<size_t>(tiles * kHeight * p.n), std::nanf(""));
  multiplier.run({p, a.data(), b.data(), tiles, workspace.data()}, workers,
                 [&](int64_t row, int64_t column, const float* sums, int64_t n) {
                   std::memcpy(c.data() + row * p.n + column, sums, static_cast<size_t>(n) * sizeof(float));
                 });
  EXPECT_TRUE(workspace.guarded()) << mode.name;
  return c;
}

TEST(TiledProduct, MatchesPlainLoopsAndBitsDependOnTheRowAlone) {
  constexpr int64_t kTiles = 6;
  for (const TileMode& mode : tile_modes())
    for (const TileSize& size : kSizes)
      for (const bool transposed : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << mode.name << ", " << size.n << " x " << size.k << ", " << transposed);
        const int64_t stride = (transposed ? size.k : size.n) + 3;
        const cpu::TiledProduct p{kHeight, size.n, size.k, transposed, stride, mode.precision};
        const Tensor a = Tensor::random(mode.precision, kTiles * kHeight * size.k, 1);
        const Tensor b = Tensor::random(mode.precision, (transposed ? size.n : size.k) * stride, 2);
        const std::vector<float> c = multiply(mode, p, a, b, kTiles, 1), x = a.values(), y = b.values();
        for (int64_t row = 0; row < kTiles * kHeight; row += 5)
          for (int64_t column = 0; column < size.n; ++column) {
            double sum = 0, magnitude = 0;
            for (int64_t k = 0; k < size.k; ++k) {
              const int64_t at = transposed ? column * stride + k : k * stride + column;
              const double term = static_cast<double>(x[static_cast<size_t>(row * size.k + k)]) *
                                  static_cast<double>(y[static_cast<size_t>(at)]);
              sum += term, magnitude += std::fabs(term);
            }
            ASSERT_NEAR(c[static_cast<size_t>(row * size.n + column)], sum, 4e-6 * magnitude) << row;
          }
        EXPECT_EQ(multiply(mode, p, a, b, kTiles, 3), c) << "threads";
        const std::vector<float> fewer = multiply(mode, p, a, b, 1, 2);
        EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), c.begin())) << "fewer tiles";
        EXPECT_TRUE(multiply(mode, p, a, b, 0, 2).empty());
      }
}

TEST(TiledProduct, PairsOfRowsLieSideBySide) {
  constexpr int64_t kRows = 96, kColumns = 128;
  for (const bool transposed : {false, true}) {
    const int64_t stride = (transposed ? kRows : kColumns) + 8;
    std::vector<uint16_t> b(static_cast<size_t>((transposed ? kColumns : kRows) * stride));
    for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<uint16_t>(i);
    std::vector<uint16_t> packed(kRows * kColumns);
    cpu::pack_bf16(b.data(), transposed, stride, kRows, kColumns, packed.data());
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t c = 0; c < kColumns; ++c) {
        const int64_t block = c / 64 * (kRows / 32) + r / 32;
        const int64_t at = block * 2048 + r % 32 / 2 * 128 + c % 64 * 2 + r % 2;
        ASSERT_EQ(packed[static_cast<size_t>(at)],
                  b[static_cast<size_t>(transposed ? c * stride + r : r * stride + c)])
            << r << ", " << c;
      }
  }
}

// Chunks of k are added to what is there, or to nothing.
TEST(Product, ChunksOfRowsAreAddedInOrder) {
  constexpr int64_t kM = 70, kN = 100, kChunk = 64;
  for (const TileMode& mode : tile_modes())
    for (const int64_t k : {32, 64, 96, 224})
      for (const bool accumulate : {false, true})
        for (const bool scaled : {false, true}) {
          SCOPED_TRACE(::testing::Message()
                       << mode.name << ", " << k << ", " << accumulate << ", " << scaled);
          Product p{kM,         kN,         k,     true,  false, kM, kN, kN, mode.precision,
                    DType::f32, accumulate, false, scaled};
          const Tensor a = Tensor::random(mode.precision, k * kM, 1),
                       b = Tensor::random(mode.precision, k * kN, 2);
          const Tensor before = Tensor::random(DType::f32, kM * kN, 3);
          std::vector<Product> prepared(2, p);
          prepared[0].k = 32, prepared[1].k = kChunk;
          const auto run = [&](int threads) {
            cpu::Multiplier multiplier(threads, mode.support);
            Workers workers(threads);
            Workspace workspace(multiplier.prepare(prepared));
            Tensor c = before;
            multiplier.run_chunks({.product = p,
                                   .a = a.data(),
                                   .b = b.data(),
                                   .c = c.data(),
                                   .addend = accumulate ? c.data() : nullptr,
                                   .factor = 0.5f},
                                  kChunk, workspace.data(), workers);
            EXPECT_TRUE(workspace.guarded());
            return c;
          };
          const Tensor c = run(1);
          const std::vector<float> got = c.values(), x = a.values(), y = b.values(), first = before.values();
          for (int64_t i = 0; i < kM; ++i)
            for (int64_t j = 0; j < kN; ++j) {
              double sum = 0, magnitude = 0;
              for (int64_t r = 0; r < k; ++r) {
                const double term = static_cast<double>(x[static_cast<size_t>(r * kM + i)]) *
                                    static_cast<double>(y[static_cast<size_t>(r * kN + j)]);
                sum += term, magnitude += std::fabs(term);
              }
              const auto at = static_cast<size_t>(i * kN + j);
              const double wanted =
                  (scaled ? 0.5 : 1) * sum + (accumulate ? static_cast<double>(first[at]) : 0);
              ASSERT_NEAR(got[at], wanted, 4e-6 * (magnitude + 1)) << i << ", " << j;
            }
          EXPECT_TRUE(run(3) == c) << "threads";
        }
}

}  // namespace
}  // namespace sluice
