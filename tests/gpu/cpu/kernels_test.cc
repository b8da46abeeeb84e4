// The cpu device's kernels on every vector target, at saturation, and far into a sequence. Op conformance
// runs them on the best target only, and on values of ordinary size.
#include "gpu/cpu/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/base/simd/convert.h"
#include "gpu/cpu/rows.h"
#include "tests/support/op_runs.h"
#include "tests/support/simd_test_support.h"

namespace sluice {
namespace {

// Tolerances as in tests/support/op_conformance.h: 1e-5 of the largest value; for a 16-bit type one step of
// the type (2^-7 or 2^-10 of the value, 2^-24 below fp16's normal numbers); and, for ops that may round
// matrices between their products, one such step of the largest value.
double step_of(DType type) { return type == DType::bf16 ? 0x1p-7 : type == DType::f16 ? 0x1p-10 : 0; }

void expect_close(const std::vector<Result>& found, const std::vector<Result>& oracle, DType rounded_inside) {
  ASSERT_EQ(found.size(), oracle.size());
  for (size_t k = 0; k < found.size(); ++k) {
    double largest = 0;
    for (const double value : oracle[k].values) largest = std::max(largest, std::fabs(value));
    const double base = (1e-5 + step_of(rounded_inside)) * largest + 1e-6 + 0x1p-24;
    for (size_t i = 0; i < found[k].values.size(); ++i)
      ASSERT_NEAR(found[k].values[i], oracle[k].values[i],
                  base + step_of(found[k].type) * std::fabs(oracle[k].values[i]))
          << found[k].name << " at " << i;
  }
}

class CpuKernels : public ::testing::TestWithParam<OpCase> {};

TEST_P(CpuKernels, EveryTargetAgreesWithReference) {
  const OpCase& c = GetParam();
  const auto oracle = make_reference_device(), device = make_cpu_device(2);
  for (const DType precision : {DType::f32, DType::bf16, DType::f16}) {
    SCOPED_TRACE(dtype_name(precision));
    const DType inside = rounds_between_products(c.kind) ? precision : DType::f32;
    Operands operands(c, precision);
    std::vector<Guarded> saved = run_forward(*oracle, operands);
    const auto forward = results_of(operands, saved);
    const auto backward = run_backward(*oracle, operands, saved, {.addend = Addend::in_place});
    on_every_target([&] {
      expect_close(results_of(operands, run_forward(*device, operands)), forward, inside);
      expect_close(run_backward(*device, operands, saved, {.addend = Addend::in_place}), backward, inside);
    });
  }
}

TEST(CpuKernelsForward, EveryTargetAgreesWithReference) {
  const auto oracle = make_reference_device(), device = make_cpu_device(2);
  for (const OpCase& c : forward_cases())
    for (const DType precision : {DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(c.name + ", " + dtype_name(precision));
      const auto wanted = forward_results(*oracle, c, precision);
      on_every_target([&] { expect_close(forward_results(*device, c, precision), wanted, DType::f32); });
    }
}

std::vector<OpCase> small_cases() {
  std::vector<OpCase> cases = op_cases();
  std::erase_if(cases, [](const OpCase& c) {
    int64_t largest = 0;
    for (const auto* shapes : {&c.inputs, &c.parameters})
      for (const Shape& shape : *shapes) largest = std::max(largest, element_count(shape));
    return c.large || largest > 30000;
  });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Ops, CpuKernels, ::testing::ValuesIn(small_cases()),
                         [](const auto& test) { return test.param.name; });

using Floats = std::vector<float>;

// Runs the op or, if `slope`, the gradient of its first input. dy and swiglu's second input are ones.
Floats activation(OpKind kind, Floats x, bool slope) {
  const Shape shape{1, static_cast<int64_t>(x.size())};
  const uint32_t count = op_rule(kind).inputs.most;
  Floats ones(x.size(), 1), out(x.size());
  const OpShapes shapes{kind, {}, DType::f32, std::vector<Shape>(count, shape), {shape}, {}};
  const TensorView inputs[] = {{x.data()}, {ones.data()}}, result[] = {{out.data()}, {}},
                   gradient[] = {{ones.data()}};
  OpCall call{.shapes = &shapes, .inputs = std::span(inputs, count), .outputs = std::span(result, 1)};
  call.output_gradients = gradient;
  call.input_gradients = std::span(result, count);
  const auto device = make_cpu_device(1);
  if (slope)
    device->backward(call);
  else
    device->forward(call);
  return out;
}

// Far from zero the exponentials overflow or vanish. Results must be the limits, never NaN.
TEST(CpuKernelLimits, GeluAndSiluSaturate) {
  const Floats x = {-1e30f, -1e19f, -1000, -104, -89, -20, 0, 20, 89, 104, 1000, 1e19f, 1e30f};
  const Floats near(x.begin() + 2, x.begin() + 11);  // the slope needs x^2, which is finite there
  on_every_target([&] {
    for (const Floats& y : {activation(OpKind::gelu, x, false), activation(OpKind::swiglu, x, false)})
      for (size_t i = 0; i < x.size(); ++i) {
        if (x[i] > 0) {
          EXPECT_FLOAT_EQ(y[i], x[i]);
        } else {
          EXPECT_NEAR(y[i], 0, 5e-8) << x[i];  // silu(-20) = -4.1e-8
        }
      }
    for (const Floats& slope : {activation(OpKind::gelu, near, true), activation(OpKind::swiglu, near, true)})
      for (size_t i = 0; i < near.size(); ++i)  // silu'(20) = 1 + 3.9e-8
        EXPECT_NEAR(slope[i], near[i] > 0 ? 1 : near[i] < 0 ? 0 : 0.5, 1e-6) << near[i];
  });
}

// Far from zero the cap is reached. A score that is no number, or beyond fp32, must show in what comes after.
TEST(CpuKernelLimits, SoftCapSaturatesAndKeepsWhatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Floats x = {-1e30f, -1000, -5, -0.1f, 0, 0.1f, 5, 1000, 1e30f, kInfinity, -kInfinity, std::nanf("")};
  on_every_target([&] {
    Floats capped = x, slopes(x.size(), -1), alone = x;
    const auto count = static_cast<int64_t>(x.size());
    cpu::soft_cap_row(capped.data(), 2, slopes.data(), count);
    cpu::soft_cap_row(alone.data(), 2, nullptr, count);
    Floats again(x.size());
    cpu::soft_cap_slopes(capped.data(), 2, again.data(), count);
    for (size_t i = 0; i < x.size(); ++i) {
      if (!std::isfinite(x[i])) {
        EXPECT_TRUE(std::isnan(capped[i]) && std::isnan(slopes[i]) && std::isnan(alone[i])) << x[i];
        continue;
      }
      const double tanh = std::tanh(static_cast<double>(x[i]) / 2);
      EXPECT_NEAR(capped[i], 2 * tanh, 3e-7) << x[i];  // a few roundings of numbers of at most 2
      EXPECT_NEAR(slopes[i], 1 - tanh * tanh, 3e-7) << x[i];
      EXPECT_NEAR(again[i], 1 - tanh * tanh, 5e-7) << x[i];
      EXPECT_EQ(alone[i], capped[i]);
    }
  });
}

// Angles of thousands of radians: an angle formed in fp32 would be off by 1e-4.
TEST(CpuKernelLimits, RopeIsExactAtLatePositions) {
  const OpCase c{"rope",
                 OpKind::rope,
                 {.sequence = 8192, .heads = 1, .head_size = 8, .frequencies = frequencies(4)},
                 {{8192, 8}},
                 {}};
  Operands operands(c, DType::f32);
  const auto device = make_cpu_device(2);
  const std::vector<Guarded> outputs = run_forward(*device, operands);
  const auto* x = static_cast<const float*>(operands.inputs[0].data());
  const auto* y = static_cast<const float*>(outputs[0].data());
  for (int64_t t = 0; t < 8192; ++t)
    for (int i = 0; i < 4; ++i) {
      const double angle = static_cast<double>(t) * std::pow(10000.0, -2.0 * i / 8);
      const double a = x[t * 8 + i], b = x[t * 8 + i + 4];
      // Numbers of at most one: two products, rounded by 2^-25 each, and their sum, which is below 1.5, by
      // 2^-24; and the roundings of cos and sin.
      ASSERT_NEAR(y[t * 8 + i], a * std::cos(angle) - b * std::sin(angle), 3e-7) << t << " " << i;
      ASSERT_NEAR(y[t * 8 + i + 4], b * std::cos(angle) + a * std::sin(angle), 3e-7) << t << " " << i;
    }
}

// The block sums decide the clip factor, so they too must agree to the bit on every target.
TEST(CpuKernelLimits, RoundedBlocksAndTheirSumsAreTheSameBitsOnEveryTarget) {
  for (const DType precision : {DType::f32, DType::bf16, DType::f16})
    for (const uint64_t elements : {1ull, 15ull, 17ull, 1000ull, 65536ull + 33}) {
      SCOPED_TRACE(::testing::Message() << dtype_name(precision) << " " << elements);
      const Guarded values = random_tensor({static_cast<int64_t>(elements)}, DType::f32, 3, 1, 0);
      const auto* from = static_cast<const float*>(values.data());
      const size_t blocks = (elements + kNormBlock - 1) / kNormBlock;
      std::vector<double> expected(blocks);
      std::vector<std::byte> rounded(elements * dtype_bytes(precision));
      round_to(precision, from, rounded.data(), elements);
      const std::vector<double> wide = read_values(rounded.data(), precision, static_cast<int64_t>(elements));
      for (size_t block = 0; block < blocks; ++block) {
        double sums[16] = {};
        const size_t begin = block * kNormBlock, end = std::min<size_t>(elements, begin + kNormBlock);
        for (size_t i = begin; i < end; ++i) sums[i % 16] += wide[i] * wide[i];
        for (const double sum : sums) expected[block] += sum;
      }
      Workers workers(2);
      on_every_target([&] {
        std::vector<std::byte> found(rounded.size());
        std::vector<double> sums(blocks, -1);
        cpu::round_gradient(from, found.data(), precision, elements, sums.data(), workers);
        EXPECT_EQ(found, rounded);
        EXPECT_EQ(sums, expected);
      });
    }
}

}  // namespace
}  // namespace sluice
