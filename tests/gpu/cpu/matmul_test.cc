// Products of the cpu device against plain loops.
//
// Tolerance. An fp32 sum of k products errs by about sqrt(k) 2^-24 of the sum S of their magnitudes: 2e-6 S
// at k = 1000, and 4e-6 S leaves a factor of two. A result in bf16 or fp16 is in addition rounded once: half
// of 2^-7 or 2^-10.
#include "gpu/cpu/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/support/cpu_test_support.h"

namespace sluice {
namespace {

using namespace testing_support;

struct Size {
  int64_t m, n, k;
};

struct Mode {
  const char* name;
  DType precision, result;
  bool bias, accumulate;
  cpu::Support support;
};

std::vector<Mode> modes() {
  const cpu::Support native = cpu::native_support(), plain{};
  return {
      {"fp32", DType::f32, DType::f32, false, false, native},
      {"fp32 with bias", DType::f32, DType::f32, true, false, native},
      {"fp32 added", DType::f32, DType::f32, false, true, native},
      {"fp32 OpenBLAS", DType::f32, DType::f32, true, true, plain},
      {"bf16", DType::bf16, DType::bf16, true, false, native},
      {"bf16 added", DType::bf16, DType::bf16, false, true, native},
      {"bf16 to fp32", DType::bf16, DType::f32, false, false, native},
      {"bf16 added to fp32", DType::bf16, DType::f32, false, true, native},
      {"bf16 widened", DType::bf16, DType::bf16, true, false, plain},
      {"fp16", DType::f16, DType::f16, true, false, native},
      {"fp16 added to fp32", DType::f16, DType::f32, false, true, native},
  };
}

class ProductCase {
 public:
  ProductCase(const Mode& mode, Size size, bool transpose_a, bool transpose_b)
      : mode_(mode),
        size_(size),
        stride_a_((transpose_a ? size.m : size.k) + 3),
        stride_b_((transpose_b ? size.k : size.n) + 1),
        stride_c_(size.n + 5),
        product_{size.m,    size.n,    size.k,         transpose_a, transpose_b,     stride_a_,
                 stride_b_, stride_c_, mode.precision, mode.result, mode.accumulate, mode.bias},
        a_(Tensor::random(mode.precision, (transpose_a ? size.k : size.m) * stride_a_, 1)),
        b_(Tensor::random(mode.precision, (transpose_b ? size.n : size.k) * stride_b_, 2)),
        bias_(Tensor::random(mode.precision, size.n, 3)),
        before_(Tensor::random(mode.result, size.m * stride_c_, 4)) {}

  Tensor run(int threads) const {
    Tensor c = before_;
    run(threads, c.data(), c);
    return c;
  }

  // C begins as zeros, and the addend lies in another tensor.
  Tensor run_apart() const {
    Tensor c(mode_.result, size_.m * stride_c_);
    run(1, before_.data(), c);
    return c;
  }
  // Whether two results have the same values in the columns of C. What lies between rows does not count.
  bool same_columns(const Tensor& one, const Tensor& other) const {
    const std::vector<float> a = one.values(), b = other.values();
    for (int64_t i = 0; i < size_.m; ++i) {
      const auto row = a.begin() + i * stride_c_;
      if (!std::equal(row, row + size_.n, b.begin() + i * stride_c_)) return false;
    }
    return true;
  }

  // A, B and C begin `offset` bytes after the beginning of a page.
  Tensor run_at(size_t offset) const {
    constexpr size_t kPage = 4096;
    std::vector<std::byte> copies[3];
    void* placed[3];
    const Tensor* from[] = {&a_, &b_, &before_};
    for (int i = 0; i < 3; ++i) {
      copies[i].resize(from[i]->bytes() + 2 * kPage);
      const auto address = reinterpret_cast<uintptr_t>(copies[i].data());
      placed[i] = copies[i].data() + (kPage - address % kPage) + offset;
      std::memcpy(placed[i], from[i]->data(), from[i]->bytes());
    }
    cpu::Multiplier multiplier(1, mode_.support);
    Workers workers(1);
    Workspace workspace(multiplier.prepare({&product_, 1}));
    multiplier.run({product_, placed[0], placed[1], placed[2], placed[2], bias()}, workspace.data(), workers);
    Tensor c = before_;
    std::memcpy(c.data(), placed[2], c.bytes());
    return c;
  }

  void check(const Tensor& c) const {
    const std::vector<float> a = a_.values(), b = b_.values(), bias = bias_.values(),
                             before = before_.values();
    const std::vector<float> got = c.values();
    for (int64_t i = 0; i < size_.m; ++i)
      for (int64_t j = 0; j < stride_c_; ++j) {
        const auto at = static_cast<size_t>(i * stride_c_ + j);
        if (j >= size_.n) {
          ASSERT_EQ(got[at], before[at]) << "a column outside of C was written";
          continue;
        }
        double sum = 0, magnitude = 0;
        const auto add = [&](double x) { sum += x, magnitude += std::fabs(x); };
        for (int64_t k = 0; k < size_.k; ++k)
          add(static_cast<double>(a[index(product_.transpose_a, stride_a_, i, k)]) *
              b[index(product_.transpose_b, stride_b_, k, j)]);
        if (mode_.bias) add(bias[static_cast<size_t>(j)]);
        if (mode_.accumulate) add(before[at]);
        ASSERT_NEAR(got[at], sum, 4e-6 * magnitude + rounding(mode_.result) * std::fabs(sum))
            << mode_.name << " " << size_.m << "x" << size_.n << "x" << size_.k << " at " << i << ", " << j;
      }
  }

 private:
  void run(int threads, const void* addend, Tensor& c) const {
    cpu::Multiplier multiplier(threads, mode_.support);
    Workers workers(threads);
    Workspace workspace(multiplier.prepare({&product_, 1}));
    multiplier.run({product_, a_.data(), b_.data(), c.data(), addend, bias()}, workspace.data(), workers);
    EXPECT_TRUE(workspace.guarded());
    EXPECT_TRUE(c.guarded());
  }
  const void* bias() const { return mode_.bias ? bias_.data() : nullptr; }
  static size_t index(bool transposed, int64_t stride, int64_t row, int64_t column) {
    return static_cast<size_t>(transposed ? column * stride + row : row * stride + column);
  }
  Mode mode_;
  Size size_;
  int64_t stride_a_, stride_b_, stride_c_;
  Product product_;
  Tensor a_, b_, bias_, before_;
};

TEST(Product, MatchesPlainLoopsForEveryTransposeAndType) {
  // One element; below a vector; one tile with ragged edges; several tiles; several widened panels.
  const Size sizes[] = {{1, 1, 1},     {3, 5, 7},     {17, 101, 33}, {70, 6, 40},
                        {300, 410, 9}, {5, 21, 2100}, {2, 900, 3}};
  for (const Mode& mode : modes())
    for (const Size& size : sizes)
      for (const bool transpose_a : {false, true})
        for (const bool transpose_b : {false, true}) {
          const ProductCase product(mode, size, transpose_a, transpose_b);
          product.check(product.run(1));
          ASSERT_FALSE(::testing::Test::HasFatalFailure()) << mode.name;
        }
}

TEST(Product, BitsDoNotDependOnThreads) {
  for (const Mode& mode : modes()) {
    const ProductCase product(mode, {530, 801, 70}, true, false);
    const Tensor one = product.run(1);
    for (const int threads : {2, 3})
      EXPECT_EQ(product.run(threads), one) << mode.name << ", " << threads << " threads";
  }
}

TEST(Product, AnAddendMayLieElsewhere) {
  for (const Mode& mode : modes())
    for (const Size& size : {Size{3, 5, 7}, Size{300, 410, 9}, Size{5, 21, 2100}}) {
      const ProductCase product(mode, size, true, false);
      EXPECT_TRUE(product.same_columns(product.run(1), product.run_apart())) << mode.name;
    }
}

// Under another budget, an arena places the same tensor elsewhere: page offsets and cache-line offsets must
// not matter.
TEST(Product, BitsDoNotDependOnAddresses) {
  for (const Mode& mode : modes()) {
    const ProductCase product(mode, {300, 401, 70}, false, true);
    const Tensor aligned = product.run_at(0);
    for (const size_t offset : {64, 4, 4096 - 192})
      EXPECT_EQ(product.run_at(offset), aligned) << mode.name << ", offset " << offset;
  }
}

// Only a call says whether it adds to C, so the workspace must suffice for either.
TEST(Product, WorkspaceDoesNotDependOnAccumulate) {
  cpu::Multiplier multiplier(1, cpu::native_support());
  for (const int64_t size : {1, 7, 33, 300}) {
    Product product{size, size, size, true, false, size, size, size, DType::bf16, DType::f32};
    const uint64_t bytes = multiplier.prepare({&product, 1});
    product.accumulate = true;
    EXPECT_EQ(multiplier.prepare({&product, 1}), bytes) << size;
  }
}

// A product must not lose an infinite input: inf - inf is NaN.
TEST(Product, CarriesNonFiniteValues) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    cpu::Multiplier multiplier(1, cpu::native_support());
    Workers workers(1);
    const Product product{2, 2, 4, false, false, 4, 2, 2, type, type};
    Workspace workspace(multiplier.prepare({&product, 1}));
    Tensor a = Tensor::filled(type, 8, 1), b = Tensor::filled(type, 8, 1), c(type, 4);
    a.set(0, std::numeric_limits<float>::infinity());
    a.set(4, std::numeric_limits<float>::quiet_NaN());
    multiplier.run({product, a.data(), b.data(), c.data()}, workspace.data(), workers);
    EXPECT_EQ(c.values()[0], std::numeric_limits<float>::infinity());
    EXPECT_TRUE(std::isnan(c.values()[3]));
  }
}

}  // namespace
}  // namespace sluice
