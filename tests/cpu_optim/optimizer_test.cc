// AdamW: every vector target against an independent scalar implementation, to the bit.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cpu_optim/adamw.h"
#include "tests/support/simd_reference.h"
#include "tests/support/simd_test_support.h"

namespace sluice {
namespace {

// ---- reference: the numerics contract, one operation at a time ----

struct State {
  std::vector<float> master, m, v;
  std::vector<uint16_t> gradient16, weights16;  // not used in fp32
  std::vector<float> gradient32;
};

void reference_step(State& s, DType precision, const AdamWConstants& c, bool decay) {
  for (size_t i = 0; i < s.master.size(); ++i) {
    const Format& format = precision == DType::bf16 ? kBf16 : kF16;
    const float raw = precision == DType::f32 ? s.gradient32[i] : reference_widen(format, s.gradient16[i]);
    const float g = raw * c.s;
    const float k1g = c.k1 * g, k2g = c.k2 * g, k2gg = k2g * g;
    s.m[i] = std::fma(c.b1, s.m[i], k1g);
    s.v[i] = std::fma(c.b2, s.v[i], k2gg);
    const float decayed = s.master[i] * (decay ? c.d : 1.0f);
    const float root = std::sqrt(s.v[i]);
    const float quotient = s.m[i] / std::fma(root, c.r, c.eps);
    s.master[i] = std::fma(-c.a, quotient, decayed);
    if (precision != DType::f32) s.weights16[i] = reference_round(format, s.master[i]);
  }
}

// ---- comparison ----

State random_state(size_t elements, DType precision, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  State s;
  for (size_t i = 0; i < elements; ++i) {
    // Magnitudes from about 2^-90 to 1 (second moments from 2^-140): every rounding occurs, and numbers that
    // are subnormal in fp16 or, as moments, in fp32.
    const float scale = std::ldexp(1.0f, -static_cast<int>(random() % 90));
    s.master.push_back(normal(random) * scale);
    s.m.push_back(normal(random) * scale * std::ldexp(1.0f, -40));
    s.v.push_back(std::fabs(normal(random)) * scale * std::ldexp(1.0f, -50));
    s.gradient32.push_back(normal(random) * scale);
    s.gradient16.push_back(reference_round(precision == DType::bf16 ? kBf16 : kF16, s.gradient32.back()));
    s.weights16.push_back(0);
  }
  return s;
}

AdamWConstants adamw_constants(const OptimizerSettings& settings, const UpdateStep& step) {
  return prepare_adamw(settings, step).as<AdamWConstants>();
}

// The state that a form of update must leave. A visit is two steps; the second has the gradients `next`.
State after(const State& start, UpdateForm form, DType precision, const AdamWConstants& c,
            const AdamWConstants& guessed, const std::vector<uint16_t>& next, bool decay) {
  State s = start;
  reference_step(s, precision, c, decay);
  if (form == UpdateForm::optimize) return s;
  State expected = form == UpdateForm::repair ? start : s;
  if (form == UpdateForm::visit) {
    s.gradient16 = expected.gradient16 = next;
    reference_step(s, precision, guessed, decay);
  }
  expected.weights16 = s.weights16;
  return expected;
}

// One step from `start` by apply_adamw with streams `offset` elements off alignment. Compares every element
// with `expected`.
void check_step(const State& start, const State& expected, DType precision, const AdamWConstants& c,
                bool decay, size_t offset, Workers& workers) {
  const size_t n = start.master.size();
  Stream<float> master(start.master, 4 * offset), m(start.m, 4 * (offset + 1)), v(start.v, 4 * (offset + 3));
  Stream<uint16_t> gradient16(start.gradient16, 2 * (offset + 5)), weights16(start.weights16, 2 * offset);
  Stream<float> gradient32(start.gradient32, 4 * (offset + 2));
  const bool wide = precision == DType::f32;
  void* const gradient = wide ? static_cast<void*>(gradient32.data()) : gradient16.data();
  const UpdateRange range{master.data(),
                          {m.data(), v.data()},
                          gradient,
                          wide ? nullptr : weights16.data(),
                          precision,
                          n,
                          decay ? OptimizerSettings{}.weight_decay : 0};
  apply_adamw(range, UpdateConstants::of(c), workers);
  const Format& format = precision == DType::bf16 ? kBf16 : kF16;
  for (size_t i = 0; i < n; ++i) {
    ASSERT_TRUE(same(master[i], expected.master[i])) << i << " " << master[i] << " " << expected.master[i];
    ASSERT_TRUE(same(m[i], expected.m[i])) << i << " " << m[i] << " " << expected.m[i];
    ASSERT_TRUE(same(v[i], expected.v[i])) << i << " " << v[i] << " " << expected.v[i];
    if (wide) continue;
    ASSERT_TRUE(same16(format, weights16[i], expected.weights16[i])) << i << " " << expected.master[i];
  }
  EXPECT_TRUE(master.guards_hold() && m.guards_hold() && v.guards_hold());
  EXPECT_TRUE(gradient16.guards_hold() && gradient32.guards_hold() && weights16.guards_hold());
}

constexpr DType kPrecisions[] = {DType::bf16, DType::f16, DType::f32};

// ---- AdamW ----

TEST(AdamW, EveryTargetIsBuiltAndChosen) {
  // Otherwise the comparisons below cover less than they seem to.
  std::set<size_t> chosen;
  on_every_target([&] { chosen.insert(hwy::GetChosenTarget().GetIndex()); });
  EXPECT_EQ(chosen.size(), hwy::SupportedAndGeneratedTargets().size());
  int vector_targets = 0, scalar = 0;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets())
    ++(target == HWY_SCALAR ? scalar : vector_targets);
  EXPECT_EQ(scalar, HWY_STATIC_TARGET == HWY_SCALAR ? 1 : 0);
  EXPECT_GE(vector_targets, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 1 : 0);
}

TEST(AdamW, EveryLengthAndAlignmentToTheBit) {
  Workers workers(1);
  const AdamWConstants c = adamw_constants({}, {7, 3e-4, 0.37, 1.0});
  for (const DType precision : kPrecisions) {
    SCOPED_TRACE(dtype_name(precision));
    for (size_t n = 0; n <= 3 * 16 + 1; ++n) {  // 16 lanes: the widest vector
      const State start = random_state(n, precision, static_cast<uint32_t>(n));
      State expected = start;
      reference_step(expected, precision, c, true);
      on_every_target([&] {
        for (const size_t offset : {0, 1, 7})
          check_step(start, expected, precision, c, true, offset, workers);
      });
    }
  }
}

TEST(AdamW, StepsDecayAndScaleToTheBit) {
  Workers workers(1);
  for (const DType precision : kPrecisions)
    for (const int64_t t : {int64_t{1}, int64_t{1000000}})
      for (const bool decay : {false, true})
        for (const double loss_scale : {1.0, 65536.0}) {
          SCOPED_TRACE(::testing::Message() << dtype_name(precision) << " t " << t << " decay " << decay);
          const AdamWConstants c = adamw_constants({0.9, 0.999, 1e-8, 0.1}, {t, 1e-3, 1.0, loss_scale});
          const State start = random_state(1000, precision, static_cast<uint32_t>(t));
          State expected = start;
          reference_step(expected, precision, c, decay);
          on_every_target([&] { check_step(start, expected, precision, c, decay, 0, workers); });
        }
}

TEST(AdamW, SpecialValuesToTheBit) {
  using Limits = std::numeric_limits<float>;
  const float values[] = {0.0f,
                          -0.0f,
                          1.0f,
                          Limits::denorm_min(),
                          -Limits::denorm_min(),
                          Limits::min(),
                          1e-41f,
                          -3e-39f,
                          Limits::max(),
                          -Limits::max(),
                          Limits::infinity(),
                          -Limits::infinity(),
                          Limits::quiet_NaN()};
  Workers workers(1);
  const AdamWConstants c = adamw_constants({}, {3, 3e-4, 1.0, 1.0});
  for (const DType precision : kPrecisions) {
    SCOPED_TRACE(dtype_name(precision));
    State start;
    for (const float master : values)
      for (const float moment : values)
        for (const float gradient : values) {
          start.master.push_back(master);
          start.m.push_back(moment);
          start.v.push_back(std::fabs(moment));
          start.gradient32.push_back(gradient);
          start.gradient16.push_back(reference_round(precision == DType::bf16 ? kBf16 : kF16, gradient));
          start.weights16.push_back(0);
        }
    State expected = start;
    reference_step(expected, precision, c, true);
    on_every_target([&] { check_step(start, expected, precision, c, true, 1, workers); });
  }
}

TEST(AdamW, RepairsAndVisitsMakeTheWeightsOfLaterUpdates) {
  const AdamWConstants c = adamw_constants({}, {7, 3e-4, 0.37, 1.0}),
                       guessed = adamw_constants({}, {8, 2e-4, 1.0, 1.0});
  for (const DType precision : {DType::bf16, DType::f16})
    for (const bool decay : {false, true})
      for (const size_t n : {size_t{0}, size_t{1}, size_t{33}, size_t{65536 + 3}}) {
        const State start = random_state(n, precision, static_cast<uint32_t>(n));
        const std::vector<uint16_t> next = random_state(n, precision, 77).gradient16;
        for (const UpdateForm form : {UpdateForm::optimize, UpdateForm::repair, UpdateForm::visit}) {
          SCOPED_TRACE(::testing::Message()
                       << dtype_name(precision) << " " << n << " form " << static_cast<int>(form));
          const State expected = after(start, form, precision, c, guessed, next, decay);
          on_every_target([&] {
            for (const int threads : {1, 2})
              for (const size_t offset : {0, 1}) {
                Workers workers(threads);
                Stream<float> master(start.master, 0), m(start.m, 4 * offset), v(start.v, 4 * offset);
                Stream<uint16_t> gradient(start.gradient16, 2 * offset), weights(start.weights16, 2 * offset),
                    following(next, 2 * offset);
                apply_adamw({master.data(),
                             {m.data(), v.data()},
                             gradient.data(),
                             weights.data(),
                             precision,
                             n,
                             decay ? OptimizerSettings{}.weight_decay : 0,
                             following.data()},
                            UpdateConstants::of(c), workers, form, UpdateConstants::of(guessed));
                size_t wrong = 0;
                for (size_t i = 0; i < n; ++i)
                  wrong += !same(master[i], expected.master[i]) || !same(m[i], expected.m[i]) ||
                           !same(v[i], expected.v[i]) || gradient[i] != expected.gradient16[i] ||
                           weights[i] != expected.weights16[i];
                EXPECT_EQ(wrong, 0u);
                EXPECT_TRUE(gradient.guards_hold() && weights.guards_hold() && following.guards_hold());
              }
          });
        }
      }
}

TEST(AdamW, ThreadsDoNotChangeBits) {
  const size_t n = 3 * 65536 + 17;  // several tasks and a tail
  const AdamWConstants c = adamw_constants({}, {2, 3e-4, 1.0, 1.0});
  const State start = random_state(n, DType::bf16, 5);
  State expected = start;
  reference_step(expected, DType::bf16, c, true);
  for (const int threads : {1, 2, 3}) {
    Workers workers(threads);
    check_step(start, expected, DType::bf16, c, true, 0, workers);
  }
}

// Against textbook AdamW in double, over 50 steps. Per step, fp32 rounds the weight twice (decay and update),
// each time by at most 2^-24 = 6e-8, since weights stay below 2. The update is at most about lr = 1e-2 and
// off by a few 1e-7 of itself. Together 50 * (2 * 6e-8 + 1e-2 * 5e-7) < 7e-6.
TEST(AdamW, FollowsDoublePrecision) {
  const OptimizerSettings options{0.9, 0.95, 1e-8, 0.1};
  const size_t n = 257;
  const double lr = 1e-2;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> w(n), m(n, 0), v(n, 0), g(n);
  for (float& x : w) x = 0.5f * normal(random);
  std::vector<double> wd(w.begin(), w.end()), md(n, 0), vd(n, 0);
  Workers workers(2);
  for (int t = 1; t <= 50; ++t) {
    for (float& x : g) x = normal(random);
    const double clip = 0.5;
    apply_adamw({w.data(), {m.data(), v.data()}, g.data(), nullptr, DType::f32, n, options.weight_decay},
                prepare_adamw(options, {t, lr, clip, 1.0}), workers);
    for (size_t i = 0; i < n; ++i) {
      const double gd = g[i] * clip;
      wd[i] *= 1 - lr * options.weight_decay;
      md[i] = options.beta1 * md[i] + (1 - options.beta1) * gd;
      vd[i] = options.beta2 * vd[i] + (1 - options.beta2) * gd * gd;
      const double mh = md[i] / (1 - std::pow(options.beta1, t)),
                   vh = vd[i] / (1 - std::pow(options.beta2, t));
      wd[i] -= lr * mh / (std::sqrt(vh) + options.epsilon);
    }
  }
  for (size_t i = 0; i < n; ++i) ASSERT_NEAR(w[i], wd[i], 7e-6) << i;
}

// A quarter of the learning rate is exact, so the constants are those of a step with that rate.
TEST(AdamW, ARangeMayHaveItsOwnRateAndDecay) {
  const size_t n = 1000;
  Workers workers(2);
  const auto updated = [&](const UpdateConstants& constants, double weight_decay, double factor) {
    State s = random_state(n, DType::f32, 11);
    apply_adamw({.master = s.master.data(),
                 .planes = {s.m.data(), s.v.data()},
                 .gradient = s.gradient32.data(),
                 .weights = nullptr,
                 .precision = DType::f32,
                 .elements = n,
                 .weight_decay = weight_decay,
                 .learning_rate_factor = factor},
                constants, workers);
    return s.master;
  };
  const UpdateConstants step = prepare_adamw({}, {7, 3e-3, 0.37, 1.0});
  const std::vector<float> own = updated(step, 0.3, 0.25);
  EXPECT_EQ(own, updated(prepare_adamw({}, {7, 3e-3 / 4, 0.37, 1.0}), 0.3, 1));
  EXPECT_NE(own, updated(step, 0.3, 1));
  EXPECT_NE(own, updated(step, 0.1, 0.25));
}

// A frozen parameter in a group that is trained has zero gradient, rate and decay. It must not move in any
// form.
TEST(AdamW, WithoutGradientRateAndDecayNothingMoves) {
  const size_t n = 1000;
  Workers workers(2);
  const UpdateConstants c = prepare_adamw({}, {7, 3e-3, 0.37, 1.0});
  for (const UpdateForm form : {UpdateForm::optimize, UpdateForm::repair, UpdateForm::visit}) {
    const State start = random_state(n, DType::bf16, 12);
    State s = start;
    s.master[0] = -0.0f;
    const std::vector<float> master = s.master, zeros(n, 0);
    s.m = s.v = zeros;
    s.gradient16.assign(n, 0);
    const std::vector<uint16_t> next(n, 0);
    apply_adamw({.master = s.master.data(),
                 .planes = {s.m.data(), s.v.data()},
                 .gradient = s.gradient16.data(),
                 .weights = s.weights16.data(),
                 .precision = DType::bf16,
                 .elements = n,
                 .weight_decay = 0,
                 .next_gradient = next.data(),
                 .learning_rate_factor = 0},
                c, workers, form, c);
    EXPECT_EQ(std::memcmp(s.master.data(), master.data(), n * sizeof(float)), 0);
    EXPECT_EQ(s.m, zeros);
    EXPECT_EQ(s.v, zeros);
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(s.weights16[i], reference_round(kBf16, master[i]));
  }
}

TEST(AdamW, ConstantsAreRoundedOnceFromDouble) {
  const AdamWConstants c = adamw_constants({0.9, 0.999, 1e-8, 0.1}, {2, 1e-3, 0.25, 1024.0});
  EXPECT_EQ(c.b1, 0.9f);
  EXPECT_EQ(c.k1, static_cast<float>(1 - 0.9));
  EXPECT_EQ(c.k2, static_cast<float>(1 - 0.999));  // 1.0f - 0.999f is another number
  EXPECT_NE(c.k2, 1.0f - 0.999f);
  EXPECT_FLOAT_EQ(c.a, static_cast<float>(1e-3 / 0.19));
  EXPECT_FLOAT_EQ(c.r, static_cast<float>(1 / std::sqrt(1 - 0.999 * 0.999)));
  EXPECT_EQ(c.eps, 1e-8f);
  EXPECT_EQ(c.d, static_cast<float>(1 - 1e-4));
  EXPECT_EQ(c.s, 0x1p-12f);
  const AdamWConstants late = adamw_constants({0.9, 0.999, 1e-8, 0.1}, {1000000, 1e-3, 1.0, 1.0});
  EXPECT_EQ(late.a, 1e-3f);  // both powers are too small to count
  EXPECT_EQ(late.r, 1.0f);
}

// A skipped update leaves the state. Its weights are the rounded masters; a visit guesses the next update.
TEST(AdamW, SkippedUpdatesLeaveTheState) {
  Workers workers(2);
  const size_t n = 65536 + 3;
  StepScalars::Update skipped{};
  skipped.skip = 1;
  StepScalars::Guess guess{prepare_adamw({}, {3, 3e-4, 1.0, 1.0})};
  for (const DType precision : {DType::bf16, DType::f16})
    for (const UpdateForm form : {UpdateForm::optimize, UpdateForm::repair, UpdateForm::visit}) {
      const State start = random_state(n, precision, 9);
      State s = start, expected = start;
      std::vector<uint16_t> next = random_state(n, precision, 10).gradient16;
      const UpdateRange range{s.master.data(),
                              {s.m.data(), s.v.data()},
                              s.gradient16.data(),
                              s.weights16.data(),
                              precision,
                              n,
                              OptimizerSettings{}.weight_decay,
                              next.data()};
      update_range(optimizer_of(OptimizerKind::adamw), form, range, {&skipped, &guess}, workers);
      EXPECT_EQ(s.master, start.master);
      EXPECT_EQ(s.m, start.m);
      EXPECT_EQ(s.v, start.v);
      EXPECT_EQ(s.gradient16, form == UpdateForm::visit ? next : start.gradient16);
      expected.gradient16 = next;
      if (form == UpdateForm::visit)
        reference_step(expected, precision, guess.constants.as<AdamWConstants>(), true);
      for (size_t i = 0; i < n; ++i)
        ASSERT_EQ(s.weights16[i],
                  reference_round(precision == DType::bf16 ? kBf16 : kF16, expected.master[i]))
            << i;
    }
}

TEST(Optimizers, InFp32TheWeightsAreTheMasterWeights) {
  const auto names = [](DType precision) {
    std::vector<std::string> of_planes;
    for (const StatePlane& plane : layout_of(optimizer_of(OptimizerKind::adamw), precision).planes)
      of_planes.emplace_back(plane.name);
    return of_planes;
  };
  EXPECT_EQ(names(DType::bf16), (std::vector<std::string>{"master", "exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(names(DType::f32), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
}

TEST(Optimizers, PartsOfPlanesBeginWhereTheirElementsDo) {
  const StatePlane planes[] = {{"codes", "", DType::u8}, {"halves", "", DType::bf16}};
  std::array<float, 8> master{};
  std::array<std::byte, 8> codes{};
  std::array<uint16_t, 8> halves{}, gradient{}, weights{};
  const UpdateRange range{.master = master.data(),
                          .planes = {codes.data(), halves.data()},
                          .gradient = gradient.data(),
                          .weights = weights.data(),
                          .precision = DType::bf16,
                          .elements = 8,
                          .weight_decay = 0};
  const UpdateRange part = part_of(range, planes, 3, 4);
  EXPECT_EQ(part.master, master.data() + 3);
  EXPECT_EQ(part.planes[0], codes.data() + 3);
  EXPECT_EQ(part.planes[1], halves.data() + 3);
  EXPECT_EQ(part.gradient, gradient.data() + 3);
  EXPECT_EQ(part.elements, 4u);
}

}  // namespace
}  // namespace sluice
