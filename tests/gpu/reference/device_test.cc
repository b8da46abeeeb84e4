// The reference device: its forward by numbers worked out by hand, its conversions over every 16-bit pattern,
// and what ops must do in corners that random cases do not reach. tests/gpu/op_conformance_test.cc judges its
// backward.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/op_numbers.h"

namespace sluice {
namespace {

using enum OpKind;

TEST(ReferenceDevice, Embedding) {
  Operands tokens = operands_of(embedding, {.sequence = 2}, {{4}}, {{}}, {{3, 2}, {2, 2}},
                                {{1, 2, 3, 4, 5, 6}, {0.5, 0.25, -1, -2}});
  set_indices(tokens.inputs[0], {2, 0, 1, 2});
  tokens.freeze();
  expect_outputs(std::move(tokens), {{5.5, 6.25, 0, 0, 3.5, 4.25, 4, 4}});
}

TEST(ReferenceDevice, LayerNorm) {  // mean 2.5, variance 1.25, rstd = 1 / sqrt(1.25 + 0.19) = 1 / 1.2
  expect_outputs(operands_of(layer_norm, {.epsilon = 0.19}, {{1, 4}}, {{1, 2, 3, 4}}, {{4}, {4}},
                             {{1, 2, 1, 1}, {0, 0, 0, 10}}),
                 {{-1.25, -1 / 1.2, 0.5 / 1.2, 11.25}, {2.5}, {1 / 1.2}});
}

TEST(ReferenceDevice, RmsNorm) {  // mean square 12.5, rstd = 1 / sqrt(12.5 + 3.5) = 1 / 4
  expect_outputs(operands_of(rms_norm, {.epsilon = 3.5}, {{1, 2}}, {{3, 4}}, {{2}}, {{1, 2}}),
                 {{0.75, 2}, {0.25}});
}

// Heads of one column, whose mean square is 9; 1 + weight is 3.
TEST(ReferenceDevice, RmsNormOfHeads) {
  expect_outputs(
      operands_of(rms_norm, {.epsilon = 7, .weight_from_one = true}, {{1, 2}}, {{3, 3}}, {{1}}, {{2}}),
      {{2.25, 2.25}, {0.25, 0.25}});
  expect_outputs(
      operands_of(rms_norm, {.epsilon = 3.5}, {{2, 4}}, {{3, 4, 3, 4, 4, 3, -3, 4}}, {{2}}, {{1, 2}}),
      {{0.75, 2, 0.75, 2, 1, 1.5, -0.75, 2}, {0.25, 0.25, 0.25, 0.25}});
}

TEST(ReferenceDevice, LinearInBothLayouts) {  // y = (1*1 + 2*4 + 0.5, 1*2 + 2*5, 1*3 + 2*6)
  expect_outputs(
      operands_of(linear, {}, {{1, 2}}, {{1, 2}}, {{2, 3}, {3}}, {{1, 2, 3, 4, 5, 6}, {0.5, 0, 0}}),
      {{9.5, 12, 15}});
  expect_outputs(
      operands_of(linear, {.weight_out_in = true}, {{1, 2}}, {{1, 2}}, {{3, 2}}, {{1, 4, 2, 5, 3, 6}}),
      {{9, 12, 15}});
}

TEST(ReferenceDevice, ScaledProductsAndRows) {  // 2 (1*1 + 2*4) + 0.5; 3 * (1, 2) + (5, 7)
  expect_outputs(operands_of(linear, {.scale = 2}, {{1, 2}}, {{1, 2}}, {{2, 1}, {1}}, {{1, 4}, {0.5}}),
                 {{18.5}});
  Operands rows = operands_of(embedding, {.sequence = 2, .scale = 3}, {{2}, {2}}, {}, {{2, 2}, {2, 2}},
                              {{8, 9, 1, 2}, {5, 7, 20, 30}});
  set_indices(rows.inputs[0], {1, 0});
  set_indices(rows.inputs[1], {0, 1});  // two documents: both rows are at position 0
  rows.freeze();
  expect_outputs(std::move(rows), {{8, 13, 29, 34}});
}

TEST(ReferenceDevice, Activations) {
  // sqrt(2/pi) * 1.044715 = 0.8335641, tanh 0.6823839; at 2: 0.7978846 * 2.35772 = 1.8811883, tanh
  // 0.9545977.
  expect_outputs(operands_of(gelu, {}, {{1, 4}}, {{1, -1, 0, 2}}), {{0.8411920, -0.1588080, 0, 1.9545977}});
  // 1 / (1 + e^-1) = 0.7310586
  expect_outputs(operands_of(swiglu, {}, {{1, 2}, {1, 2}}, {{1, -1}, {2, 3}}), {{1.4621172, -0.8068242}});
  expect_outputs(operands_of(swiglu, {}, {{1, 4}}, {{1, -1, 2, 3}}), {{1.4621172, -0.8068242}});
  expect_outputs(operands_of(swiglu, {.gelu_gate = true}, {{1, 4}}, {{1, -1, 2, 3}}),
                 {{1.6823839, -0.4764240}});  // 2 * 0.8411920, 3 * -0.1588080
  expect_outputs(operands_of(add, {}, {{1, 2}, {1, 2}}, {{1, -1}, {2, 3}}), {{3, 2}});
}

TEST(ReferenceDevice,
     RopeRotatesHalves) {  // theta 100, size 4: angles t and t / 10; row 0 stays, row 1 is position 1
  const double c = std::cos(1), s = std::sin(1), c10 = std::cos(0.1), s10 = std::sin(0.1);
  const OpAttributes one_head{.sequence = 2, .heads = 1, .head_size = 4, .frequencies = {1, 0.1}};
  expect_outputs(operands_of(rope, one_head, {{2, 4}}, {{1, 2, 3, 4, 1, 2, 3, 4}}),
                 {{1, 2, 3, 4, c - 3 * s, 2 * c10 - 4 * s10, 3 * c + s, 4 * c10 + 2 * s10}});
}

// One pair of columns in each head of three turns and is scaled. Position 1 is the first of a document.
TEST(ReferenceDevice, RopeCopiesWhatDoesNotTurn) {
  const OpAttributes part{.sequence = 3, .heads = 2, .head_size = 3, .frequencies = {0.5}, .scale = 2};
  const double c = 2 * std::cos(0.5), s = 2 * std::sin(0.5);
  Numbers x, y;
  for (int row = 0; row < 3; ++row) x.insert(x.end(), {1, 3, 7, 2, 4, 8, 9});
  for (const auto& [cosine, sine] : {std::pair(2.0, 0.0), {2.0, 0.0}, {c, s}})
    y.insert(y.end(),
             {cosine - 3 * sine, 3 * cosine + sine, 7, 2 * cosine - 4 * sine, 4 * cosine + 2 * sine, 8, 9});
  Operands operands = operands_of(rope, part, {{3, 7}, {3}}, {x});
  set_indices(operands.inputs[1], {0, 1, 1});
  operands.freeze();
  expect_outputs(std::move(operands), {y});
}

TEST(ReferenceDevice, AttentionOfTwoTokens) {  // the second query's scores are 6 and 8
  const OpAttributes one_head{.sequence = 2, .heads = 1, .kv_heads = 1, .head_size = 1};
  const double p = 1 / (1 + std::exp(-2));
  const std::vector<Numbers> wanted = {{10, 10 + 10 * p}, {3, 8 + std::log(1 + std::exp(-2))}};
  expect_outputs(operands_of(attention, one_head, {{2, 1}, {2, 1}, {2, 1}}, {{1, 2}, {3, 4}, {10, 20}}),
                 wanted);
  expect_outputs(operands_of(attention, one_head, {{2, 3}}, {{1, 3, 10, 2, 4, 20}}), wanted);
}

TEST(ReferenceDevice,
     AttentionScalesAndSharesHeads) {  // one token: o is v of key/value head h / 2; scale 1 / sqrt(4)
  const OpAttributes grouped{.sequence = 1, .heads = 4, .kv_heads = 2, .head_size = 4};
  const Numbers q = {1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 3, 0, 0, 0, 0, 4}, k = {1, 2, 3, 4, 5, 6, 7, 8};
  const Numbers v = {10, 11, 12, 13, 20, 21, 22, 23};
  const Numbers o = {10, 11, 12, 13, 10, 11, 12, 13, 20, 21, 22, 23, 20, 21, 22, 23};
  const Numbers lse = {1 * 1 / 2., 2 * 2 / 2., 3 * 7 / 2., 4 * 8 / 2.};
  expect_outputs(operands_of(attention, grouped, {{1, 16}, {1, 8}, {1, 8}}, {q, k, v}), {o, lse});
  Numbers packed = q;
  packed.insert(packed.end(), k.begin(), k.end());
  packed.insert(packed.end(), v.begin(), v.end());
  expect_outputs(operands_of(attention, grouped, {{1, 32}}, {packed}), {o, lse});
}

// Three keys with v = (1, 10, 100) and scores q k, where q is 1.
Operands three_keys(OpAttributes a, const Numbers& k, const std::vector<int32_t>& begins,
                    const Numbers& sinks = {}) {
  a.sequence = 3, a.heads = a.kv_heads = a.head_size = 1;
  std::vector<Shape> inputs(3, Shape{3, 1}), parameters;
  if (!begins.empty()) inputs.push_back({3});
  if (!sinks.empty()) parameters.push_back({1});
  Operands out = operands_of(attention, a, inputs, {{1, 1, 1}, k, {1, 10, 100}}, parameters,
                             std::vector<Numbers>(parameters.size(), sinks));
  if (!begins.empty()) set_indices(out.inputs[3], begins);
  out.freeze();
  return out;
}

TEST(ReferenceDevice, AttentionSeesWhatWindowAndDocumentLeave) {  // equal scores: o is the mean of v
  const double l2 = std::log(2), l3 = std::log(3);
  const OpAttributes two{.window = 2};
  expect_outputs(three_keys({}, {0, 0, 0}, {}), {{1, 5.5, 37}, {0, l2, l3}});
  expect_outputs(three_keys(two, {0, 0, 0}, {}), {{1, 5.5, 55}, {0, l2, l2}});
  expect_outputs(three_keys({.window = 1}, {0, 0, 0}, {}), {{1, 10, 100}, {0, 0, 0}});
  expect_outputs(three_keys({}, {0, 0, 0}, {0, 1, 1}), {{1, 10, 55}, {0, 0, l2}});
  expect_outputs(three_keys(two, {0, 0, 0}, {0, 0, 0}), {{1, 5.5, 55}, {0, l2, l2}});
  expect_outputs(three_keys(two, {0, 0, 0}, {0, 0, 2}), {{1, 5.5, 100}, {0, l2, 0}});
}

TEST(ReferenceDevice, AttentionScalesThenCapsScores) {
  // Scaled by 2, the scores of window 1 are -2, 6 and 2; capped, 4 tanh(-1/2), 4 tanh(3/2), 4 tanh(1/2).
  expect_outputs(three_keys({.window = 1, .scale = 2}, {-1, 3, 1}, {}), {{1, 10, 100}, {-2, 6, 2}});
  expect_outputs(three_keys({.window = 1, .soft_cap = 4, .scale = 2}, {-1, 3, 1}, {}),
                 {{1, 10, 100}, {-1.8484686, 3.6205930, 1.8484686}});
}

// The sink has the score ln 2, whatever scale and cap are: it adds 2 to the sums 1, 2 and 3 of the keys.
TEST(ReferenceDevice, AttentionSinksTakePartInTheSumAlone) {
  const OpAttributes changed{.soft_cap = 1, .scale = 3};
  for (const OpAttributes& a : {OpAttributes{}, changed})
    expect_outputs(three_keys(a, {0, 0, 0}, {}, {std::log(2)}),
                   {{1 / 3., 11 / 4., 111 / 5.}, {std::log(3), std::log(4), std::log(5)}});
}

TEST(ReferenceDevice, LossOfUniformLogits) {  // three rows, one of them ignored; seed 4
  Operands uniform =
      operands_of(linear_cross_entropy, {}, {{3, 1}, {3}}, {{1, 1, 2}}, {{4, 1}}, {{0, 0, 0, 0}});
  set_indices(uniform.inputs[1], {1, kIgnoreLabel, 2});
  uniform.freeze();
  const auto device = make_reference_device();
  std::vector<Guarded> outputs = run_forward(*device, uniform);
  const double loss = kLossBefore + 2 * std::log(4);
  EXPECT_DOUBLE_EQ(results_of(uniform, outputs)[0].values[0], loss);
  const auto gradients =
      run_backward(*device, uniform, outputs, {.addend = Addend::in_place, .from_zero = true});
  EXPECT_EQ(gradients[0].values, (Numbers{0, 0, 0}));  // the weights are zero
  // (p - onehot) * 4 is (1, -3, 1, 1) and (1, 1, -3, 1); times x.
  EXPECT_EQ(gradients[1].values, (Numbers{1 + 2, -3 + 2, 1 - 6, 1 + 2}));
  EXPECT_DOUBLE_EQ(gradients[2].values[0], loss);
}

TEST(ReferenceDevice, LossOfUnequalLogits) {  // p = (1/4, 3/4), label 0
  Operands pair = operands_of(linear_cross_entropy, {}, {{1, 1}, {1}}, {{1}}, {{2, 1}}, {{0, std::log(3)}});
  set_indices(pair.inputs[1], {0});
  pair.freeze();
  const auto device = make_reference_device();
  std::vector<Guarded> outputs = run_forward(*device, pair);
  EXPECT_NEAR(results_of(pair, outputs)[0].values[0], kLossBefore + std::log(4), kNumbersTolerance);
  const auto gradients = run_backward(*device, pair, outputs, {.from_zero = true});
  EXPECT_NEAR(gradients[0].values[0], 0.75 * std::log(3) * kSeed, 4 * kNumbersTolerance);
  EXPECT_NEAR(gradients[1].values[0], -0.75 * kSeed, kNumbersTolerance);
}

TEST(ReferenceDevice, AllLabelsIgnored) {
  Operands ignored = operands_of(linear_cross_entropy, {}, {{2, 3}, {2}}, {}, {{5, 3}});
  set_indices(ignored.inputs[1], {kIgnoreLabel, kIgnoreLabel});
  ignored.freeze();
  const auto device = make_reference_device();
  std::vector<Guarded> outputs = run_forward(*device, ignored);
  EXPECT_EQ(results_of(ignored, outputs)[0].values[0], kLossBefore);
  const auto gradients = run_backward(*device, ignored, outputs, {.from_zero = true});
  EXPECT_EQ(gradients[0].values, Numbers(6, 0.0));
  EXPECT_EQ(gradients[1].values, Numbers(15, 0.0));
  EXPECT_EQ(gradients[2].values[0], kLossBefore);
}

// Every finite value reads back. Between it and the next, values round to the nearer one, and the middle
// rounds to the even pattern.
template <typename T>
void check_rounding(uint16_t last_finite) {
  using reference::narrow, reference::widen;
  for (uint32_t bits = 0; bits < last_finite; ++bits) {
    const T low{static_cast<uint16_t>(bits)}, high{static_cast<uint16_t>(bits + 1)};
    const double a = widen(low), b = widen(high), middle = (a + b) / 2;
    ASSERT_LT(a, b) << bits;
    ASSERT_EQ(narrow<T>(a).bits, low.bits) << bits;
    ASSERT_EQ(narrow<T>(middle).bits, bits % 2 == 0 ? low.bits : high.bits) << bits;
    ASSERT_EQ(narrow<T>(middle + (b - a) / 8).bits, high.bits) << bits;
    ASSERT_EQ(narrow<T>(middle - (b - a) / 8).bits, low.bits) << bits;
    ASSERT_EQ(narrow<T>(-middle).bits, 0x8000 | (bits % 2 == 0 ? low.bits : high.bits)) << bits;
  }
  const double largest = widen(T{last_finite});
  const double half_step = (largest - widen(T{static_cast<uint16_t>(last_finite - 1)})) / 2;
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(widen(narrow<T>(largest + half_step * 0.99)), largest);
  EXPECT_EQ(widen(narrow<T>(largest + half_step)), infinity);
  EXPECT_EQ(widen(narrow<T>(-infinity)), -infinity);
  EXPECT_TRUE(std::isnan(widen(narrow<T>(std::nan("")))));
  EXPECT_EQ(narrow<T>(-0.0).bits, 0x8000);
}

TEST(ReferenceDevice, RoundsToNearestEven) {
  check_rounding<reference::Bf16>(0x7F7F);
  check_rounding<reference::F16>(0x7BFF);
  EXPECT_EQ(reference::widen(reference::F16{0x7BFF}), 65504);
  EXPECT_EQ(reference::widen(reference::F16{0x0001}), 0x1p-24);
  EXPECT_EQ(reference::widen(reference::Bf16{0x3F80}), 1);
  EXPECT_EQ(reference::widen(reference::Bf16{0x0001}), 0x1p-133);
  // Rounding to fp32 first would make this a tie and give 1.
  EXPECT_EQ(reference::widen(reference::narrow<reference::Bf16>(1 + 0x1p-8 + 0x1p-40)), 1 + 0x1p-7);
}

TEST(ReferenceDevice, RoundEmitsBlockSums) {
  std::vector<float> accumulator(kNormBlock + 100, 1 + 0x1p-8f);  // a tie in bf16: rounds to 1
  accumulator[kNormBlock] = 3;
  std::vector<uint16_t> gradient(accumulator.size());
  double sums[3] = {-1, -1, -1};
  const auto device = make_reference_device();
  device->round(accumulator.data(), gradient.data(), DType::bf16, accumulator.size(), sums);
  EXPECT_EQ(gradient[0], 0x3F80);
  EXPECT_EQ(gradient[kNormBlock], 0x4040);
  EXPECT_EQ(sums[0], 65536);
  EXPECT_EQ(sums[1], 99 + 9);
  EXPECT_EQ(sums[2], -1);
  std::vector<float> copy(accumulator.size());
  device->round(accumulator.data(), copy.data(), DType::f32, kNormBlock, sums);
  EXPECT_EQ(copy[0], 1 + 0x1p-8f);
  EXPECT_EQ(copy[kNormBlock], 0);
  EXPECT_EQ(sums[0], 65536 * (1 + 0x1p-7 + 0x1p-16));
  EXPECT_EQ(sums[1], 99 + 9);
}

}  // namespace
}  // namespace sluice
