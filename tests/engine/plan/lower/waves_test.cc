// Waves: what the bodies of waves do, what stays between waves, and that a program does not grow with the
// number of waves. That bits stay the same is in bits_test.cc of engine/run.
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

#include "cpu_optim/optimizer.h"
#include "engine/plan/lower/lower.h"
#include "tests/support/plan_support.h"

namespace sluice {
namespace {

using testing::Case;
using testing::Tiers;

constexpr uint32_t kLayers = 2;

Case waves_of(uint32_t micro_batches, uint32_t waves, bool guesses, bool waits_for_norm = true) {
  Case c;
  c.model = build_model(
      config_from_name("gpt2:layers=" + std::to_string(kLayers) + ",width=16,heads=2,vocab=50,context=8"),
      DType::bf16, 1, 8);
  c.options.batch = micro_batches;
  c.options.waves = waves;
  c.options.evaluate = true;
  c.options.update_waits_for_norm = waits_for_norm;
  if (guesses) c.options.updated_in_backward.assign(c.model.groups.size(), true);
  c.options.optimizer = layout_of(optimizer_of(OptimizerKind::adamw), DType::bf16);
  c.options.workspace_bytes = testing::no_workspace;
  testing::lower_case(c, testing::machine_of(Tiers::host));
  return c;
}

using Counts = std::map<TaskKind, uint32_t>;
Counts counts_of(const Case& c, BodyId body) {
  Counts counts;
  for (const Task& t : c.program.bodies[body].tasks) ++counts[t.kind];
  return counts;
}

// GPT-2's groups: two tables, the layers, the last norm. Its segments: embedding, layers, head.
constexpr uint32_t kGroups = 2 + kLayers + 1, kSegments = 2 + kLayers;

TEST(Waves, OnlyTheFirstMakesWeightsAndOnlyTheLastEndsTheStep) {
  const Case c = waves_of(8, 4, true);
  const BodyIds& b = c.lowering.bodies();
  EXPECT_EQ(c.lowering.slices, 2u);
  EXPECT_EQ(c.lowering.micro_batches(), 8u);
  const Counts passes{{TaskKind::forward, 2 * (kSegments - 1)}, {TaskKind::backward, 2 * kSegments}};
  const auto with = [&](Counts more) {
    more.insert(passes.begin(), passes.end());
    return more;
  };
  const Counts end{{TaskKind::round, kGroups}, {TaskKind::norm, 1}, {TaskKind::set_scalars, 1}};
  Counts guessed_end = end;
  guessed_end.insert({{TaskKind::set_guess, 1}, {TaskKind::visit, kGroups}});
  EXPECT_EQ(counts_of(c, *b.first), passes);
  EXPECT_EQ(counts_of(c, *b.step), with({{TaskKind::optimize, kGroups}}));
  EXPECT_EQ(counts_of(c, *b.guess), passes);
  EXPECT_EQ(counts_of(c, *b.repair), with({{TaskKind::repair, kGroups}}));
  EXPECT_EQ(counts_of(c, *b.plain.middle), passes);
  EXPECT_EQ(counts_of(c, *b.guessing.middle), passes);
  EXPECT_EQ(counts_of(c, *b.plain.last), with(end));
  EXPECT_EQ(counts_of(c, *b.guessing.last), with(guessed_end));
  EXPECT_EQ(counts_of(c, *b.evaluate), (Counts{{TaskKind::forward, 2 * kSegments}}));
  EXPECT_EQ(counts_of(c, *b.evaluate_more), counts_of(c, *b.evaluate));
}

TEST(Waves, AStepIsASequenceThatCanFollowItself) {
  const Case c = waves_of(8, 4, true);
  const BodyIds& b = c.lowering.bodies();
  EXPECT_EQ(b.step_from(*b.step),
            (std::vector<BodyId>{*b.step, *b.plain.middle, *b.plain.middle, *b.plain.last}));
  EXPECT_EQ(b.step_from(*b.repair),
            (std::vector<BodyId>{*b.repair, *b.guessing.middle, *b.guessing.middle, *b.guessing.last}));
  EXPECT_EQ(b.usual().front(), *b.guess);
  for (const BodyId begin : {*b.first, *b.step, *b.guess, *b.repair}) {
    const std::vector<BodyId> step = b.step_from(begin);
    for (size_t wave = 1; wave < step.size(); ++wave)
      EXPECT_TRUE(can_follow(c.program.bodies[step[wave - 1]].end, c.program.bodies[step[wave]].start));
    for (size_t wave = 0; wave < step.size(); ++wave) {
      const Body& body = c.program.bodies[step[wave]];
      EXPECT_EQ(body.advance[kTrainRing], wave == 0) << "a step has its scalars once";
      EXPECT_EQ(body.advance[kWaveRing], 1) << "each wave has tokens of its own";
    }
  }
}

TEST(Waves, SumsStayBetweenThemAndNowhereElse) {
  const Case c = waves_of(4, 2, false), alone = waves_of(4, 1, false);
  for (size_t g = 0; g < c.model.groups.size(); ++g) {
    const std::vector<BufferId>& accumulators = c.lowering.groups[g].accumulators;
    EXPECT_EQ(accumulators.size(), c.model.groups[g].name == "wte" ? 2u : 1u)
        << "the head uses the table, too";
    for (const BufferId a : accumulators) {
      const Buffer& b = c.program.buffers[a];
      EXPECT_TRUE(b.permanent);
      for (int s = 0; s < kBodyStates; ++s)
        EXPECT_EQ(b.is_empty_in(BodyState::at(s)), !BodyState::at(s).between_waves);
      EXPECT_FALSE(alone.program.buffers[a].permanent);
    }
  }
  EXPECT_EQ(c.program.rings[kWaveRing].slots, 4) << "the waves of a step beside two that may still run";
}

TEST(Waves, AProgramDoesNotGrowWithThem) {
  const Case three = waves_of(6, 3, true), many = waves_of(64, 32, true);
  ASSERT_EQ(three.program.bodies.size(), many.program.bodies.size());
  for (size_t b = 0; b < many.program.bodies.size(); ++b)
    EXPECT_EQ(three.program.bodies[b].tasks.size(), many.program.bodies[b].tasks.size());
}

TEST(Waves, WithoutClippingTheLastWaveUpdates) {
  const Case c = waves_of(4, 2, false, false);
  const BodyIds& b = c.lowering.bodies();
  EXPECT_EQ(b.first, b.step);
  EXPECT_FALSE(b.drain);
  EXPECT_EQ(counts_of(c, *b.first).count(TaskKind::optimize), 0u);
  EXPECT_EQ(counts_of(c, *b.plain.last)[TaskKind::optimize], kGroups);
  EXPECT_EQ(c.program.bodies[*b.plain.last].end, BodyState::clean);
}

TEST(Waves, TheyDivideTheMicroBatches) {
  EXPECT_THROW(waves_of(4, 3, false), std::invalid_argument);
  EXPECT_THROW(waves_of(4, 0, false), std::invalid_argument);
  EXPECT_THROW(waves_of(4, 8, false), std::invalid_argument);
}

}  // namespace
}  // namespace sluice
