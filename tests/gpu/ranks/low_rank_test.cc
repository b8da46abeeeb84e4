// PowerSGD's arithmetic (compress, project, expand) against its definition in double.
#include "gpu/ranks/low_rank.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "engine/base/simd/convert.h"

namespace sluice {
namespace {

Group group_of(const std::vector<Shape>& shapes) {
  Group group;
  for (const Shape& shape : shapes)
    group.parameters.push_back({"p" + std::to_string(group.parameters.size()), shape});
  lay_out_group(group);
  return group;
}

std::vector<float> random_values(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

TEST(LowRank, OnlyWhatGetsSmallerBecomesFactors) {
  const Group group = group_of({{100, 30}, {30}, {8, 2, 5}, {5, 5}, {64, 64}});
  const LowRankLayout layout = low_rank_layout(group, 4);
  ASSERT_EQ(layout.matrices.size(), 3u);  // 4 x (5 + 5) factors are more than 25 elements
  EXPECT_EQ(layout.matrices[0].rows, 100u);
  EXPECT_EQ(layout.matrices[0].columns, 30u);
  EXPECT_EQ(layout.matrices[1].rows, 8u);
  EXPECT_EQ(layout.matrices[1].columns, 10u);
  EXPECT_EQ(layout.matrices[2].offset, group.parameters[4].offset);
  ASSERT_EQ(layout.plain.size(), 2u);
  EXPECT_EQ(layout.left, 4 * (100 + 8 + 64) + 30 + 25u);
  EXPECT_EQ(layout.right, 4 * (30 + 10 + 64u));
  EXPECT_EQ(low_rank_layout(group_of({{3, 1000}}), 64).matrices.size(), 0u);  // 3 x (3 + 1000) > 3 x 1000
}

struct Factors {
  LowRankLayout layout;
  std::vector<float> error, left, right;
};

// Compresses one rank's gradient, with no compression error from a step before.
Factors compressed(const Group& group, uint32_t rank, const std::vector<float>& gradient, Workers& workers) {
  Factors f;
  f.layout = low_rank_layout(group, rank);
  f.error.assign(group.elements, 0);
  f.left.assign(f.layout.left, 0);
  f.right = random_values(f.layout.right, 9);
  compress_gradient(f.layout, DType::f32, gradient.data(), f.error.data(), f.right.data(), f.left.data(),
                    workers);
  project_error(f.layout, f.left.data(), f.error.data(), f.right.data(), workers);
  return f;
}

TEST(LowRank, FactorsAreTheProjectionOfTheGradient) {
  Workers workers(2);
  const Group group = group_of({{70, 613}, {37}, {129, 40}});
  const std::vector<float> gradient = random_values(group.elements, 1);
  const Factors f = compressed(group, 5, gradient, workers);
  for (const LowRankMatrix& m : f.layout.matrices) {
    const float* p = f.left.data() + m.left;
    for (uint32_t a = 0; a < m.rank; ++a)
      for (uint32_t b = 0; b < m.rank; ++b) {
        double dot = 0;
        for (uint64_t i = 0; i < m.rows; ++i)
          dot += static_cast<double>(p[i * m.rank + a]) * p[i * m.rank + b];
        EXPECT_NEAR(dot, a == b, 1e-6) << a << " " << b;  // fp32 values of order 1/sqrt(rows)
      }
    for (uint64_t j = 0; j < m.columns; ++j)
      for (uint32_t k = 0; k < m.rank; ++k) {
        double wanted = 0;
        for (uint64_t i = 0; i < m.rows; ++i)
          wanted += static_cast<double>(p[i * m.rank + k]) * gradient[m.offset + i * m.columns + j];
        // Sums of some hundred products of order 1/10 in fp32.
        ASSERT_NEAR(f.right[m.right + k * m.columns + j], wanted, 1e-5);
      }
  }
  std::vector<float> expanded(group.elements);
  expand_gradient(f.layout, f.left.data(), f.right.data(), 0, group.elements, DType::f32, expanded.data(),
                  nullptr, workers);
  for (const LowRankMatrix& m : f.layout.matrices)
    for (uint64_t e = m.offset; e < m.offset + m.elements(); ++e)
      ASSERT_NEAR(expanded[e] + f.error[e], gradient[e], 1e-5) << "what is left out is kept";
  for (const PlainRange& r : f.layout.plain)
    for (uint64_t e = r.offset; e < r.offset + r.elements; ++e) {
      ASSERT_EQ(expanded[e], gradient[e]);
      ASSERT_EQ(f.error[e], 0);
    }
}

// A gradient whose rank is at most the rank asked for is exact, whatever right factors it begins with.
TEST(LowRank, AGradientOfLowRankLosesNothing) {
  Workers workers(1);
  const Group group = group_of({{200, 300}});
  const std::vector<float> p = random_values(200 * 3, 2), q = random_values(300 * 3, 3);
  std::vector<float> gradient(group.elements);
  for (size_t i = 0; i < 200; ++i)
    for (size_t j = 0; j < 300; ++j)
      for (size_t k = 0; k < 3; ++k) gradient[i * 300 + j] += p[i * 3 + k] * q[j * 3 + k];
  const Factors f = compressed(group, 4, gradient, workers);
  for (const float left_out : f.error) ASSERT_NEAR(left_out, 0, 2e-5);  // of values of order 2
}

// A zero gradient leaves columns that still have a direction, so that later gradients are not lost.
TEST(LowRank, AZeroGradientDoesNotEndTheFactors) {
  Workers workers(1);
  const Group group = group_of({{40, 50}});
  Factors f = compressed(group, 2, std::vector<float>(group.elements), workers);
  const std::vector<float> gradient = random_values(group.elements, 4);
  for (int step = 0; step < 2; ++step) {  // right factors begin at zero: the second step sees the gradient
    compress_gradient(f.layout, DType::f32, gradient.data(), f.error.data(), f.right.data(), f.left.data(),
                      workers);
    project_error(f.layout, f.left.data(), f.error.data(), f.right.data(), workers);
  }
  double squares = 0;
  for (const float v : f.right) squares += static_cast<double>(v) * v;
  EXPECT_GT(squares, 100);
}

TEST(LowRank, RangesThreadsAndPrecisionsGiveTheSameValues) {
  Workers one(1), three(3);
  const Group group = group_of({{300, 517}, {77}});
  const std::vector<float> gradient = random_values(group.elements, 5);
  const Factors a = compressed(group, 4, gradient, one), b = compressed(group, 4, gradient, three);
  EXPECT_EQ(a.left, b.left);
  EXPECT_EQ(a.right, b.right);
  EXPECT_EQ(a.error, b.error);
  for (const DType precision : {DType::f32, DType::bf16}) {
    const uint64_t width = dtype_bytes(precision);
    std::vector<std::byte> whole(group.elements * width), parts(whole.size());
    std::vector<double> sums(group.elements / kNormBlock + 1);
    expand_gradient(a.layout, a.left.data(), a.right.data(), 0, group.elements, precision, whole.data(),
                    sums.data(), one);
    for (uint64_t at = 0; at < group.elements; at += 10'001) {
      const uint64_t count = std::min<uint64_t>(10'001, group.elements - at);
      expand_gradient(a.layout, a.left.data(), a.right.data(), at, count, precision,
                      parts.data() + at * width, nullptr, three);
    }
    EXPECT_EQ(whole, parts);
    std::vector<float> values(group.elements);
    widen(precision, whole.data(), values.data(), group.elements);
    double squares = 0, total = 0;
    for (const float v : values) squares += static_cast<double>(v) * v;
    for (const double s : sums) total += s;
    EXPECT_NEAR(total, squares, 1e-12 * squares);  // double, other order
  }
}

}  // namespace
}  // namespace sluice
