// The conformance suite: every device must compute every op as the reference device does. One source of a
// test program includes this and defines `devices_to_judge`, `judged` and `skip_reason`.
//
// Tolerances. The magnitudes of data are about one. `largest` is the largest magnitude in the tensor that the
// reference device (the oracle) computes.
// - fp32 results: 1e-5 * largest + 1e-6. Sums of up to 1000 products in fp32 err by about sqrt(1000) * 2^-24
//   = 2e-6 of their terms' size; the rest is for exp, tanh and cancellation.
// - 16-bit results: in addition one step of the type, since an error in fp32 can tip a rounding: 2^-7 (bf16)
//   or 2^-10 (fp16) of the value; 2^-24 for values below fp16's normal range.
// - attention and the loss, 16-bit: in addition 2^-7 or 2^-10 of `largest`. A device may round probabilities
//   and logit gradients to the working precision before it multiplies them, and an error in fp32 can tip the
//   rounding of such a gradient.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>

#include "engine/base/simd/convert.h"
#include "tests/support/op_runs.h"
#include "tests/support/right_labels.h"

namespace sluice {
namespace {

struct DeviceEntry {
  const char* name;
  std::function<std::unique_ptr<Device>(int threads)> make;
};

std::vector<DeviceEntry> devices_to_judge();
bool judged(const OpCase& c);  // whether this case judges the devices of this test program
std::string skip_reason();     // empty: the devices are there

// The devices to judge and the reference device (the oracle), which ignores the number of threads. So a test
// that compares each of these devices with the oracle also compares the oracle with itself.
std::vector<DeviceEntry> devices() {
  std::vector<DeviceEntry> out = devices_to_judge();
  out.insert(out.begin(), {"reference", [](int) { return make_reference_device(); }});
  return out;
}

std::vector<DType> precisions(const OpCase& c) {
  if (c.large && c.kind == OpKind::linear_cross_entropy) return {DType::f32};
  return {DType::f32, DType::bf16, DType::f16};
}

class DeviceConformance : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = skip_reason(); !reason.empty()) GTEST_SKIP() << reason;
  }
};
class OpConformance : public DeviceConformance, public ::testing::WithParamInterface<OpCase> {};
class SmallOpConformance : public OpConformance {};  // without the large cases

double step_of(DType type) { return type == DType::bf16 ? 0x1p-7 : type == DType::f16 ? 0x1p-10 : 0; }

// See the head of this file. `rounded` is the precision in which a device may round intermediate matrices.
double tolerance(DType type, DType rounded, double oracle, double largest) {
  const double subnormal = type == DType::f16 ? 0x1p-24 : 0;
  return (1e-5 + step_of(rounded)) * largest + 1e-6 + step_of(type) * std::fabs(oracle) + subnormal;
}

double largest_magnitude(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

void expect_close(const std::vector<Result>& found, const std::vector<Result>& oracle, DType rounded) {
  ASSERT_EQ(found.size(), oracle.size());
  for (size_t k = 0; k < found.size(); ++k) {
    ASSERT_EQ(found[k].values.size(), oracle[k].values.size());
    const double largest = largest_magnitude(oracle[k].values);
    size_t wrong = 0;
    for (size_t i = 0; i < found[k].values.size(); ++i) {
      const double a = found[k].values[i], b = oracle[k].values[i];
      ASSERT_TRUE(std::isfinite(b)) << "the oracle's " << found[k].name << " at " << i;
      const double allowed = tolerance(found[k].type, rounded, b, largest);
      if (std::fabs(a - b) <= allowed) continue;
      if (wrong++ == 0)
        ADD_FAILURE() << found[k].name << " at " << i << ": " << a << ", the oracle says " << b << " +- "
                      << allowed;
    }
    EXPECT_EQ(wrong, 0u) << "elements of " << found[k].name << ", of " << found[k].values.size();
  }
}

void expect_equal(const std::vector<Result>& found, const std::vector<Result>& wanted) {
  for (const Result& result : found) {
    const auto other =
        std::find_if(wanted.begin(), wanted.end(), [&](const Result& r) { return r.name == result.name; });
    ASSERT_NE(other, wanted.end());
    EXPECT_TRUE(result.values == other->values) << result.name << " differs in its bits";
  }
}

// Precision in which a device may round matrices between an op's products.
DType rounded_inside(const OpCase& c, DType precision) {
  return rounds_between_products(c.kind) ? precision : DType::f32;
}

// Devices must also compute the same bits with two or three threads as with one.
TEST_P(OpConformance, DevicesAgreeWithReference) {
  const auto oracle = make_reference_device();
  const BackwardOptions overwriting{.overwrite = true}, adding{.addend = Addend::in_place};
  for (const DType precision : precisions(GetParam())) {
    Operands operands(GetParam(), precision);
    const DType rounded = rounded_inside(GetParam(), precision);
    std::vector<Guarded> saved = run_forward(*oracle, operands);
    const auto forward = results_of(operands, saved);
    const auto overwritten = run_backward(*oracle, operands, saved, overwriting);
    const auto added = run_backward(*oracle, operands, saved, adding);
    for (const DeviceEntry& entry : devices_to_judge()) {
      SCOPED_TRACE(std::string(entry.name) + ", " + dtype_name(precision));
      const auto single = entry.make(1);
      const auto its_forward = results_of(operands, run_forward(*single, operands));
      const auto its_added = run_backward(*single, operands, saved, adding);
      expect_close(its_forward, forward, rounded);
      expect_close(its_added, added, rounded);
      for (const int threads : {2, 3}) {
        const auto device = entry.make(threads);
        expect_equal(results_of(operands, run_forward(*device, operands)), its_forward);
        expect_equal(run_backward(*device, operands, saved, adding), its_added);
      }
      expect_close(run_backward(*entry.make(2), operands, saved, overwriting), overwritten, rounded);
    }
  }
}

// Asks for the same gradients in several ways after one forward, on every device and in every precision.
TEST_P(SmallOpConformance, WaysToAskForGradientsDoNotChangeBits) {
  const OpCase& c = GetParam();
  for (const DeviceEntry& entry : devices())
    for (const DType precision : precisions(c)) {
      SCOPED_TRACE(std::string(entry.name) + ", " + dtype_name(precision));
      const auto device = entry.make(1);
      Operands operands(c, precision);
      std::vector<Guarded> saved = run_forward(*device, operands);
      const auto expect_same = [&](const char* what, const BackwardOptions& one,
                                   const std::vector<BackwardOptions>& others) {
        SCOPED_TRACE(what);
        const auto wanted = run_backward(*device, operands, saved, one);
        for (const BackwardOptions& other : others)
          expect_equal(run_backward(*device, operands, saved, other), wanted);
      };
      expect_same("accumulating on zero is overwriting", {.from_zero = true, .overwrite = true},
                  {{.addend = Addend::in_place, .from_zero = true}});
      expect_same("an addend may lie elsewhere", {.addend = Addend::in_place},
                  {{.addend = Addend::elsewhere}});
      std::vector<BackwardOptions> without{{.without_inputs = ~0u, .without_parameters = ~0u}};
      for (uint32_t i = 0; i < c.inputs.size(); ++i) without.push_back({.without_inputs = 1u << i});
      for (uint32_t i = 0; i < c.parameters.size(); ++i) without.push_back({.without_parameters = 1u << i});
      expect_same("unwanted gradients change nothing else", {}, without);
    }
}

bool has_nan(const std::vector<Result>& results) {
  for (const Result& result : results)
    for (const double value : result.values)
      if (std::isnan(value)) return true;
  return false;
}

// A step that diverged or overflowed shows in its loss and norm, so no op may turn a NaN into a number.
TEST_P(SmallOpConformance, NotANumberIsNeverHidden) {
  const OpCase& c = GetParam();
  if (c.crowd == OpCase::Crowd::none) GTEST_SKIP() << "the expert has no row that could be one";
  const double nan = std::nan("");
  for (const DeviceEntry& entry : devices())
    for (const DType precision : precisions(c)) {
      SCOPED_TRACE(std::string(entry.name) + ", " + dtype_name(precision));
      const auto device = entry.make(1);
      for (size_t i = 0; i < c.inputs.size(); ++i) {
        Operands operands(c, precision);
        if (operands.is_index(i)) continue;
        write_value(operands.inputs[i].data(), input_type(operands.shapes, i), 0, nan);
        operands.freeze();
        std::vector<Guarded> outputs = run_forward(*device, operands);
        EXPECT_TRUE(has_nan({results_of(operands, outputs).front()})) << "forward, input " << i;
        if (c.kind == OpKind::linear_cross_entropy) {
          EXPECT_TRUE(std::isnan(run_backward(*device, operands, outputs).back().values[0])) << "loss";
        }
      }
      for (size_t i = 0; i < c.parameters.size() && !op_rule(c.kind).looks_up_rows; ++i) {
        Operands operands(c, precision);
        write_value(operands.parameters[i].data(), precision, 0, nan);
        operands.freeze();
        EXPECT_TRUE(has_nan({results_of(operands, run_forward(*device, operands)).front()}))
            << "forward, parameter " << i;
      }
      Operands operands(c, precision);
      if (operands.output_gradients.empty()) continue;
      write_value(operands.output_gradients[0].data(), operands.output_types[0], 0, nan);
      operands.freeze();
      std::vector<Guarded> outputs = run_forward(*device, operands);
      EXPECT_TRUE(has_nan(run_backward(*device, operands, outputs))) << "backward";
    }
}

TEST_F(DeviceConformance, LabelsWithTheLargestLogitAreCounted) {
  for (const DeviceEntry& entry : devices())
    for (const DType precision : {DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(std::string(entry.name) + ", " + dtype_name(precision));
      expect_right_labels_counted(*entry.make(2), precision);
    }
}

// A soft cap must not turn an infinite score into a number.
TEST_F(DeviceConformance, InfiniteScoresAreNotCapped) {
  std::vector<OpCase> capped = op_cases();
  std::erase_if(capped, [](const OpCase& c) { return c.large || c.attributes.soft_cap == 0; });
  ASSERT_FALSE(capped.empty());
  for (const DeviceEntry& entry : devices())
    for (const OpCase& c : capped)
      for (const DType precision : precisions(c)) {
        SCOPED_TRACE(c.name + ", " + entry.name + ", " + dtype_name(precision));
        const auto device = entry.make(1);
        Operands operands(c, precision);
        write_value(operands.inputs[0].data(), precision, 0, HUGE_VAL);  // of the first query
        operands.freeze();
        std::vector<Guarded> outputs = run_forward(*device, operands);
        EXPECT_TRUE(std::isnan(results_of(operands, outputs)[0].values[0])) << "forward";
        EXPECT_TRUE(has_nan({run_backward(*device, operands, outputs)[0]})) << "backward";
      }
}

class ForwardConformance : public OpConformance {};

TEST_P(ForwardConformance, DevicesAgreeWithReference) {
  const OpCase& c = GetParam();
  const auto oracle = make_reference_device();
  for (const DType precision : precisions(c)) {
    const auto wanted = forward_results(*oracle, c, precision);
    for (const DeviceEntry& entry : devices_to_judge()) {
      SCOPED_TRACE(std::string(entry.name) + ", " + dtype_name(precision));
      const auto found = forward_results(*entry.make(1), c, precision);
      expect_close(found, wanted, rounded_inside(c, precision));
      for (const int threads : {2, 3})
        expect_equal(forward_results(*entry.make(threads), c, precision), found);
    }
  }
}

// Rows of the cache that are not filled yet may contain anything.
TEST_P(ForwardConformance, WhatIsNotCachedYetIsNotRead) {
  const OpCase& c = GetParam();
  if (c.kind != OpKind::cached_attention) return;
  const auto forget = [&](DType precision) {
    return [&c, precision](Operands& operands) {
      const int64_t columns = c.inputs[0][2], rows = c.attributes.sequence - c.idle;
      for (int64_t s = 0; s < c.inputs[0][0]; ++s) {
        const int64_t before = c.before[static_cast<size_t>(s) % c.before.size()];
        for (int64_t i = rows > 0 ? before * columns : 0; i < c.attributes.context * columns; ++i)
          write_value(operands.inputs[0].data(), precision, s * c.attributes.context * columns + i,
                      std::nan(""));
      }
    };
  };
  for (const DeviceEntry& entry : devices())
    for (const DType precision : precisions(c)) {
      SCOPED_TRACE(std::string(entry.name) + ", " + dtype_name(precision));
      const auto device = entry.make(2);
      const auto wanted = forward_results(*device, c, precision).front();
      EXPECT_EQ(forward_results(*device, c, precision, forget(precision)).front().values, wanted.values);
    }
}

TEST_P(ForwardConformance, NotANumberIsNeverHidden) {
  const OpCase& c = GetParam();
  if (c.idle == c.attributes.sequence && c.idle > 0) return;  // nothing is read
  for (const DeviceEntry& entry : devices())
    for (const DType precision : precisions(c))
      for (size_t i = 0; i < c.inputs.size(); ++i) {
        if (c.inputs[i].size() != 2) continue;
        SCOPED_TRACE(std::string(entry.name) + ", " + dtype_name(precision) + ", input " + std::to_string(i));
        const auto device = entry.make(1);
        const auto results = forward_results(*device, c, precision, [&](Operands& operands) {
          for (int64_t k = 0; k < element_count(c.inputs[i]); k += c.inputs[i][1])
            write_value(operands.inputs[i].data(), precision, k, std::nan(""));
        });
        EXPECT_TRUE(has_nan({results.front()}));
      }
}

// The accumulators of the first `count` kinds of uses, from `sums`.
Accumulators accumulators_of(const std::vector<std::vector<float>>& sums, uint32_t count) {
  Accumulators accumulators;
  for (; accumulators.count < count; ++accumulators.count)
    accumulators.of[accumulators.count] = sums[accumulators.count].data();
  return accumulators;
}

// Values of many magnitudes, from below fp16's smallest to 2^9.
std::vector<float> accumulator_of(uint64_t elements, uint32_t seed = 0) {
  std::mt19937 generator(static_cast<uint32_t>(elements) + seed);
  std::vector<float> out(elements);
  for (float& value : out)
    value = static_cast<float>((generator() * 0x1p-31 - 1) * std::exp2(generator() % 40 - 30.0));
  return out;
}

TEST_F(DeviceConformance, RoundAgreesWithReference) {
  const auto oracle = make_reference_device();
  for (const DeviceEntry& entry : devices())
    for (const DType precision : {DType::f32, DType::bf16, DType::f16})
      for (const uint64_t elements :
           {1ul, 15ul, 17ul, 18ul, 20ul, 65535ul, 65536ul, 65537ul, 65538ul, 3 * 65536ul + 100}) {
        SCOPED_TRACE(std::string(entry.name) + ", " + dtype_name(precision) + ", " +
                     std::to_string(elements));
        const uint32_t count = elements % 2 ? 1 : elements % 3 ? kAccumulatorsMax : 2;
        std::vector<std::vector<float>> kept;
        for (uint32_t a = 0; a < count; ++a) kept.push_back(accumulator_of(elements, a));
        const Accumulators sums_of_uses = accumulators_of(kept, count);
        const uint64_t blocks = (elements + kNormBlock - 1) / kNormBlock;
        Guarded wanted(elements * dtype_bytes(precision), kPoison),
            wanted_sums(blocks * sizeof(double), kPoison);
        oracle->round(sums_of_uses, wanted.data(), precision, elements,
                      static_cast<double*>(wanted_sums.data()));
        for (const int threads : {1, 2}) {
          Guarded found(elements * dtype_bytes(precision), kPoison), sums(blocks * sizeof(double), kPoison);
          entry.make(threads)->round(sums_of_uses, found.data(), precision, elements,
                                     static_cast<double*>(sums.data()));
          EXPECT_TRUE(found.bands_intact() && sums.bands_intact());
          EXPECT_EQ(std::memcmp(found.data(), wanted.data(), wanted.bytes()), 0) << "rounded values differ";
          for (uint64_t b = 0; b < blocks; ++b) {  // devices may add the 65536 squares in another order
            const double sum = static_cast<double*>(wanted_sums.data())[b];
            EXPECT_NEAR(static_cast<double*>(sums.data())[b], sum, 1e-12 * sum) << "block " << b;
          }
        }
      }
}

TEST_F(DeviceConformance, RoundShowsOverflow) {
  for (const DeviceEntry& entry : devices()) {
    const auto device = entry.make(1);
    std::vector<float> accumulator(100, 1);
    std::vector<uint16_t> gradient(accumulator.size());
    double sum = 0;
    accumulator[70] = 65520;  // half a step above fp16's largest number
    device->round(accumulator.data(), gradient.data(), DType::f16, accumulator.size(), &sum);
    EXPECT_EQ(gradient[70], 0x7C00) << entry.name;
    EXPECT_TRUE(std::isinf(sum)) << entry.name;
    accumulator[70] = std::nanf("");
    for (const DType precision : {DType::f16, DType::bf16}) {
      device->round(accumulator.data(), gradient.data(), precision, accumulator.size(), &sum);
      EXPECT_TRUE(std::isnan(sum)) << entry.name << ", " << dtype_name(precision);
    }
  }
}

constexpr std::pair<DType, DType> kSumConversions[] = {
    {DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::f16, DType::f16}, {DType::bf16, DType::f32},
    {DType::f16, DType::f32}, {DType::f32, DType::bf16},  {DType::f32, DType::f16}};
// Numbers of ranks and of elements. The elements make one or several blocks, whole or partial. The ranks make
// trees of depth zero to seven.
constexpr std::pair<uint32_t, uint64_t> kSumSizes[] = {
    {1, 1},    {1, 15},    {1, 4104},  {1, 65536}, {1, 2 * 65536 + 4096 + 24},
    {2, 1},    {2, 15},    {2, 4104},  {2, 65536}, {2, 2 * 65536 + 4096 + 24},
    {5, 1},    {5, 15},    {5, 4104},  {5, 65536}, {5, 2 * 65536 + 4096 + 24},
    {3, 4104}, {4, 4104},  {6, 4104},  {7, 4104},  {8, 4104},
    {9, 4104}, {15, 4104}, {16, 4104}, {17, 4099}, {80, 4099}};

// Devices give the oracle's bits for any number of ranks, also if the ranks' parts are not aligned to each
// other.
TEST_F(DeviceConformance, SumOverRanksGivesTheSameBits) {
  const auto oracle = make_reference_device();
  for (const DeviceEntry& entry : devices())
    for (const auto& [from, to] : kSumConversions)
      for (const auto& [ranks, elements] : kSumSizes) {
        SCOPED_TRACE(std::string(entry.name) + ", " + dtype_name(from) + " to " + dtype_name(to) + ", " +
                     std::to_string(ranks) + " of " + std::to_string(elements));
        const uint64_t bytes = elements * dtype_bytes(to);
        const uint64_t blocks = (elements + kNormBlock - 1) / kNormBlock;
        std::vector<std::byte> parts(ranks * elements * dtype_bytes(from));
        round_to(from, accumulator_of(ranks * elements).data(), parts.data(), ranks * elements);
        Guarded wanted(bytes, kPoison), wanted_sums(blocks * sizeof(double), kPoison);
        oracle->sum(from, parts.data(), ranks, elements, to, wanted.data(),
                    static_cast<double*>(wanted_sums.data()));
        for (const int threads : {1, 2}) {
          Guarded found(bytes, kPoison), sums(blocks * sizeof(double), kPoison);
          entry.make(threads)->sum(from, parts.data(), ranks, elements, to, found.data(),
                                   static_cast<double*>(sums.data()));
          EXPECT_TRUE(found.bands_intact() && sums.bands_intact());
          EXPECT_EQ(std::memcmp(found.data(), wanted.data(), bytes), 0) << "sums differ";
          EXPECT_EQ(std::memcmp(sums.data(), wanted_sums.data(), sums.bytes()), 0) << "squares differ";
          Guarded alone(bytes, kPoison);
          entry.make(threads)->sum(from, parts.data(), ranks, elements, to, alone.data(), nullptr);
          EXPECT_TRUE(alone.bands_intact());
          EXPECT_EQ(std::memcmp(alone.data(), wanted.data(), bytes), 0) << "without squares";
        }
      }
}

// An update by an optimizer, taken or skipped, on a device's copy of the state.
struct UpdatedState {
  UpdatedState(OptimizerKind kind, uint64_t elements, DType precision) : master(accumulator_of(elements)) {
    std::vector<float> squares = master;
    for (float& value : squares) value *= value;
    for (const StatePlane& plane : optimizer_of(kind).planes) {
      planes.emplace_back(plane.bytes(elements));
      if (plane.type == DType::f32)  // moments of even order are squares
        std::memcpy(planes.back().data(), planes.size() % 2 == 0 ? squares.data() : master.data(),
                    planes.back().size());
    }
    gradient.resize(elements * dtype_bytes(precision));
    weights.resize(precision == DType::f32 ? 0 : gradient.size());
    round_to(precision, master.data(), gradient.data(), elements);
    std::vector<float> reversed(master.rbegin(), master.rend());
    next.resize(gradient.size());
    round_to(precision, reversed.data(), next.data(), elements);
  }
  void update(Device& device, OptimizerKind kind, UpdateForm form, DType precision, double decay,
              bool skipped) {
    StepScalars::Update step{};
    step.constants = optimizer_of(kind).prepare({}, {3, 1e-2, 0.5, 1});
    step.skip = skipped;
    const StepScalars::Guess guess{optimizer_of(kind).prepare({}, {4, 2e-2, 1, 1})};
    void* rounded = weights.empty() ? nullptr : weights.data();
    UpdateRange range{master.data(), {}, gradient.data(), rounded, precision, master.size(), decay};
    if (decay > 0) range.learning_rate_factor = 0.3;
    for (size_t p = 0; p < planes.size(); ++p) range.planes[p] = planes[p].data();
    if (form == UpdateForm::visit) range.next_gradient = next.data();
    device.update(kind, form, range, {&step, form == UpdateForm::visit ? &guess : nullptr});
  }
  bool operator==(const UpdatedState&) const = default;

  std::vector<float> master;
  std::vector<std::vector<std::byte>> planes;
  std::vector<std::byte> gradient, weights, next;
};

std::vector<std::pair<UpdateForm, bool>> forms_of(DType precision) {
  std::vector<std::pair<UpdateForm, bool>> all;
  for (const UpdateForm form : {UpdateForm::optimize, UpdateForm::repair, UpdateForm::visit})
    for (const bool skipped : {false, true})
      if (form == UpdateForm::optimize || precision != DType::f32) all.emplace_back(form, skipped);
  return all;
}

TEST_F(DeviceConformance, UpdatesGiveTheSameBits) {
  const auto oracle = make_reference_device();
  for (int k = 0; k < kOptimizerKinds; ++k)
    for (const DeviceEntry& entry : devices())
      for (const DType precision : {DType::f32, DType::bf16, DType::f16})
        for (const uint64_t elements : {1ul, 17ul, 100003ul})
          for (const double decay : {0.0, 0.07})
            for (const auto& [form, skipped] : forms_of(precision)) {
              const auto kind = static_cast<OptimizerKind>(k);
              SCOPED_TRACE(std::string(optimizer_of(kind).name) + " on " + entry.name + ", " +
                           dtype_name(precision) + ", " + std::to_string(elements) +
                           (decay > 0 ? ", decay and a factor" : "") + (skipped ? ", skipped" : "") +
                           ", form " + std::to_string(static_cast<int>(form)));
              const UpdatedState start(kind, elements, precision);
              UpdatedState wanted = start, found = start;
              wanted.update(*oracle, kind, form, precision, decay, skipped);
              found.update(*entry.make(2), kind, form, precision, decay, skipped);
              EXPECT_TRUE(found == wanted);
              EXPECT_EQ(wanted.master == start.master, skipped || form == UpdateForm::repair);
              EXPECT_EQ(wanted.gradient == start.gradient, form != UpdateForm::visit || elements == 1);
            }
}

TEST_F(DeviceConformance, ZeroTouchesItsRangeOnly) {
  for (const DeviceEntry& entry : devices())
    for (const uint64_t bytes : {0ul, 1ul, 63ul, 4097ul, 3000001ul}) {
      SCOPED_TRACE(std::string(entry.name) + ", " + std::to_string(bytes));
      const auto device = entry.make(2);
      Guarded to(bytes, kPoison);
      device->zero(to.data(), bytes);
      const auto* begin = static_cast<const uint8_t*>(to.data());
      EXPECT_TRUE(std::all_of(begin, begin + bytes, [](uint8_t byte) { return byte == 0; }));
      EXPECT_TRUE(to.bands_intact());
    }
}

std::vector<OpCase> judged_cases() {
  std::vector<OpCase> out = op_cases();
  std::erase_if(out, [](const OpCase& c) { return !judged(c); });
  return out;
}

std::vector<OpCase> judged_forward_cases() {
  std::vector<OpCase> out = forward_cases();
  std::erase_if(out, [](const OpCase& c) { return !judged(c); });
  return out;
}

std::vector<OpCase> small_cases() {
  std::vector<OpCase> out = judged_cases();
  std::erase_if(out, [](const OpCase& c) { return c.large; });
  return out;
}

std::string name_of(const ::testing::TestParamInfo<OpCase>& test) { return test.param.name; }

INSTANTIATE_TEST_SUITE_P(Ops, OpConformance, ::testing::ValuesIn(judged_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Ops, ForwardConformance, ::testing::ValuesIn(judged_forward_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Ops, SmallOpConformance, ::testing::ValuesIn(small_cases()), name_of);

}  // namespace
}  // namespace sluice
