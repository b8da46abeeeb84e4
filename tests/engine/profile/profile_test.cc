// The parts of a profile: the recorder, measured times in an order that the program allows, figures that add
// up, and what lies in the tiers.
#include "engine/profile/profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/pack.h"
#include "tests/support/fault_queue.h"
#include "tests/support/profile_support.h"

namespace sluice {
namespace {

// No instruction begins before all that it waits for has ended. On lanes that do not overlap, each begins
// only when the previous one has ended.
void expect_order(const Program& program, const Timeline& t) {
  const LaneOrders orders = lane_orders(program);
  for (size_t p = 0; p < t.sequence.size(); ++p) {
    const Body& body = program.bodies[t.sequence[p]];
    std::vector<double> until(program.machine.lanes.size(), -1);
    for (uint32_t i = 0; i < body.instructions.size(); ++i) {
      const Instruction& in = body.instructions[i];
      const InstructionTime& time = t.times[p][i];
      if (!std::isfinite(time.begin)) continue;
      EXPECT_LE(time.begin, time.end);
      for (const Wait& w : in.waits)
        EXPECT_LE(t.times[p][orders[t.sequence[p]][w.lane][w.count - 1]].end, time.begin);
      if (!program.machine.lanes[in.lane].overlapping) {
        EXPECT_LE(until[in.lane], time.begin);
      }
      until[in.lane] = time.end;
    }
  }
}

TEST_F(Profiles, EveryInstructionOfEveryStepIsRecorded) {
  for (const ExecutorKind executor : {ExecutorKind::serial, ExecutorKind::threaded}) {
    TestRun run = three_tiers();
    run.executor = executor;
    const TestResult result = train(run);
    const auto& bodies = recorder->bodies();
    ASSERT_EQ(bodies.size(), static_cast<size_t>(kProfiledSteps) + 1);
    for (int64_t k = 0; k <= kProfiledSteps; ++k) {
      const Recorder::Recorded& body = bodies[static_cast<size_t>(k)];
      EXPECT_EQ(body.step, k < kProfiledSteps ? k + 1 : 0);  // the drain is no step
      EXPECT_EQ(body.count, result.plan.program.bodies[body.body].instructions.size());
    }
    const Timeline timeline = measured_timeline(result.plan.program, *recorder);
    expect_order(result.plan.program, timeline);
  }
}

// Each wave of a step is a body of its own, and all of them count for the step.
TEST_F(Profiles, StepsOfSeveralWavesAreRecordedWaveByWave) {
  TestRun run = three_tiers();
  run.options.batch.batch = 8;
  run.options.batch.micro_batch = 2;
  run.options.batch.waves = 4;
  run.options.memory.overlap = Overlap::always;
  run.arenas = {0, 0, 0};
  const auto least = std::get<Infeasible>(plan_of(run)).least_together;
  run.arenas = {least[0] * 5 / 4, least[1] * 5 / 4, kRoomy};
  const TestResult result = train(run);
  const BodyIds& ids = result.plan.lowering.bodies();
  ASSERT_EQ(ids.waves, 4u);
  std::vector<BodyId> issued, recorded;
  for (const StepMetrics& m : result.steps) {
    // The first step has nothing to guess from, the second no guess to rely on.
    EXPECT_EQ(m.order, m.step == 1   ? StepOrder::plain
                       : m.step == 2 ? StepOrder::repaired
                                     : StepOrder::guessed);
    const std::vector<BodyId> step = ids.step_from(m.step == 1   ? *ids.first
                                                   : m.step == 2 ? *ids.repair
                                                                 : *ids.guess);
    issued.insert(issued.end(), step.begin(), step.end());
  }
  issued.push_back(*ids.drain);
  const auto& bodies = recorder->bodies();
  for (size_t k = 0; k < bodies.size(); ++k) {
    recorded.push_back(bodies[k].body);
    EXPECT_EQ(bodies[k].count, result.plan.program.bodies[bodies[k].body].instructions.size());
    EXPECT_EQ(bodies[k].step, k / 4 < result.steps.size() ? static_cast<int64_t>(k / 4) + 1 : 0);
  }
  EXPECT_EQ(recorded, issued);
  expect_order(result.plan.program, measured_timeline(result.plan.program, *recorder));
  const Profile p = make_profile(result.plan, *recorder);
  ASSERT_EQ(p.steps.size(), static_cast<size_t>(kProfiledSteps));
  for (size_t k = 1; k < p.steps.size(); ++k)
    EXPECT_NEAR(p.steps[k].seconds.measured, result.steps[k].seconds, 1e-9);
  EXPECT_NEAR(p.idle.measured + p.lanes[p.compute].busy.measured, p.step_seconds.measured, 1e-9);
}

// Steps take as long as the metrics say. Compute is either busy or idle, so the two must add up to the step.
TEST_F(Profiles, FiguresAddUp) {
  const TestResult result = train(three_tiers());
  const Profile p = make_profile(result.plan, *recorder);
  ASSERT_EQ(p.steps.size(), static_cast<size_t>(kProfiledSteps));
  ASSERT_EQ(p.counted, static_cast<size_t>(kProfiledSteps) - kWarmUpSteps);
  constexpr double kRounding = 1e-9;  // seconds: rounding in sums of some thousand doubles
  for (size_t k = 1; k < p.steps.size(); ++k)
    EXPECT_NEAR(p.steps[k].seconds.measured, result.steps[k].seconds, kRounding);
  EXPECT_NEAR(p.idle.measured + p.lanes[p.compute].busy.measured, p.step_seconds.measured, kRounding);
  EXPECT_NEAR(p.idle.predicted + p.lanes[p.compute].busy.predicted, p.step_seconds.predicted, kRounding);
  double stalled = 0, busy = 0, worked = 0;
  for (const Stall& s : p.stalls) stalled += s.seconds;
  for (const LaneRow& l : p.lanes) busy += l.busy.measured;
  for (const WorkRow& w : p.work) worked += w.seconds.measured;
  EXPECT_NEAR(stalled, p.idle.measured, kRounding);
  EXPECT_NEAR(busy, worked, kRounding);
  // The prediction is near the search's. They differ by the start and end of so short a sequence.
  EXPECT_NEAR(p.step_seconds.predicted, result.plan.step_seconds, 0.1 * result.plan.step_seconds);
}

TEST_F(Profiles, BytesAreThoseOfTheMetrics) {
  const TestResult result = train(three_tiers());
  const Profile p = make_profile(result.plan, *recorder);
  const auto& moved = result.steps.back().moved_bytes;
  uint64_t of_links = 0, of_lanes = 0;
  for (const LaneRow& l : p.lanes) {
    EXPECT_EQ(l.moved_bytes, moved[l.lane].second) << moved[l.lane].first;
    of_lanes += l.moved_bytes;
  }
  for (const LinkRow& l : p.links) {
    of_links += l.bytes;
    EXPECT_NEAR(l.bytes_per_second * l.seconds, static_cast<double>(l.bytes), 1);
    EXPECT_GT(l.described, 0);
  }
  EXPECT_EQ(of_links, of_lanes);
  EXPECT_EQ(p.links.size(), 4u);  // both ways, twice
}

// The granule of addresses in a tier: the largest of its own alignment and the alignments of its links.
uint64_t granule_of(const Machine& machine, size_t tier) {
  uint64_t granule = machine.tiers[tier].alignment;
  for (const Link& link : machine.links)
    if (link.from == tier || link.to == tier) granule = std::max(granule, link.alignment);
  return granule;
}

// The addresses of homes and of every `Stay` reach exactly as high as the plan says.
TEST_F(Profiles, StaysAndHomesReachThePlansPeak) {
  const auto result = plan_of(three_tiers());
  const Program& program = std::get<Plan>(result).program;
  for (const Body& body : program.bodies) {
    std::vector<uint64_t> highest(program.machine.tiers.size(), 0);
    for (const Buffer& b : program.buffers)
      if (b.permanent)
        highest[b.home] =
            std::max(highest[b.home], b.home_offset + (slots_of(program, b) - 1) * b.slot_stride + b.bytes());
    for (const Stay& s : stays_of(program, body))
      highest[s.tier] = std::max(highest[s.tier], s.offset + s.bytes);
    for (size_t t = 0; t < highest.size(); ++t)
      EXPECT_EQ(round_up(highest[t], granule_of(program.machine, t)), body.peak_bytes[t])
          << body.name << ", " << program.machine.tiers[t].name;
  }
}

uint64_t total(const ClassBytes& bytes) {
  uint64_t sum = 0;
  for (const uint64_t b : bytes) sum += b;
  return sum;
}

// Waits keep ranges apart: no tier ever holds more than its arena. At the beginning and at the end, each tier
// holds its permanent buffers.
TEST_F(Profiles, OccupancyStaysInTheArenas) {
  const TestResult result = train(three_tiers());
  const Program& program = result.plan.program;
  const Timeline measured = measured_timeline(program, *recorder),
                 predicted = predicted_timeline(program, result.plan.rates, measured.sequence);
  const std::vector<ClassBytes> permanent = permanent_bytes(program);
  for (const Timeline* t : {&measured, &predicted}) {
    const auto curves = occupancy(program, t->sequence, t->times);
    ASSERT_EQ(curves.size(), program.machine.tiers.size());
    for (size_t tier = 0; tier < curves.size(); ++tier) {
      uint64_t most = 0;
      for (const OccupancyPoint& point : curves[tier]) most = std::max(most, total(point.bytes));
      EXPECT_LE(most, program.arena_bytes[tier]);
      if (!program.machine.tiers[tier].file) {  // in files, small ranges take whole MiB
        EXPECT_GE(most, program.arena_bytes[tier] / 2) << "an arena that is never half full";
      }
      EXPECT_EQ(curves[tier].back().bytes, permanent[tier]);
    }
  }
}

// A device arena of 100 bytes. A copy of 60 bytes is used twice, and fetched again for the second body.
TEST(Occupancy, OfAProgramByHand) {
  Program p;
  p.machine.tiers = {{"device", 100}, {"host", 100}};
  p.machine.lanes = {{"compute"}, {"h2d"}};
  p.machine.links = {{1, 0, 1}};
  p.buffers.push_back({"w", BufferClass::weights, {0, 20, 60}, 1, true});
  Body body;
  Task task{TaskKind::forward};
  task.operands = {{0, 0, 2, Access::read, 0}};
  body.tasks = {task, task};
  body.instructions = {{1, kNoTask, {{0, 0, 2}, {0, 0, 2, Access::write}}, {{1, 0}, {0, 40}}},
                       {0, 0, task.operands, {{0, 40}}},
                       {0, 1, task.operands, {{0, 40}}}};
  p.bodies = {body};
  const std::vector<Stay> stays = stays_of(p, p.bodies[0]);
  ASSERT_EQ(stays.size(), 2u);  // two pieces
  EXPECT_TRUE(stays[0].staged);
  EXPECT_EQ(stays[1].offset, 60u);
  EXPECT_EQ(stays[1].bytes, 40u);
  EXPECT_EQ(stays[1].last, 2u);
  const BodyId sequence[] = {0, 0};
  const std::vector<std::vector<InstructionTime>> times{{{1, 2}, {2, 3}, {3, 4}}, {{5, 6}, {6, 7}, {7, 9}}};
  const auto curves = occupancy(p, sequence, times);
  std::vector<std::pair<double, uint64_t>> device;
  for (const OccupancyPoint& point : curves[0]) device.emplace_back(point.seconds, point.bytes[0]);
  EXPECT_EQ(device, (std::vector<std::pair<double, uint64_t>>{{1, 60}, {4, 0}, {5, 60}, {9, 0}}));
  ASSERT_EQ(curves[1].size(), 1u);
  EXPECT_EQ(curves[1][0].bytes[0], 60u);  // its home
}

// Each of two tasks waits for a copy. Compute is idle from 0 until the first task begins at 2. Before the
// second it is idle only from 4, when the first ends, though the second's copy began at 3. In the second body
// both copies are done before compute is.
TEST(Obstacles, AreWhatOtherLanesDidLast) {
  Program p;
  p.machine.lanes = {{"compute"}, {"h2d"}};
  Body body;
  body.instructions = {{1}, {0, 0, {}, {}, {{1, 1}}}, {1}, {0, 1, {}, {}, {{1, 2}}}};
  p.bodies = {body};
  const BodyId sequence[] = {0, 0};
  const std::vector<std::vector<InstructionTime>> times{{{0, 1.5}, {2, 4}, {3, 6}, {6.5, 9}},
                                                        {{6, 7}, {9, 10}, {7, 8}, {10, 11}}};
  const auto obstacles = obstacles_of({p, sequence, times});
  ASSERT_TRUE(obstacles[0][1] && obstacles[0][3]);
  EXPECT_EQ(obstacles[0][1]->instruction, 0u);
  EXPECT_EQ(obstacles[0][1]->seconds, 2);
  EXPECT_EQ(obstacles[0][3]->position, 0u);
  EXPECT_EQ(obstacles[0][3]->instruction, 2u);
  EXPECT_EQ(obstacles[0][3]->seconds, 2.5);
  for (const uint32_t none : {0u, 2u}) EXPECT_FALSE(obstacles[0][none].has_value());
  for (const auto& in_time : obstacles[1]) EXPECT_FALSE(in_time.has_value());
}

// A drive fails in the middle of a run: what ran until then is recorded, what was only issued is not.
TEST_F(Profiles, ARunThatFailsHalfWayLeavesItsRecords) {
  TestRun run = three_tiers();
  const Plan plan = std::get<Plan>(plan_of(run));
  const Body& step = plan.program.bodies[plan.lowering.bodies().usual().front()];
  const auto reads = static_cast<uint64_t>(
      std::count_if(step.instructions.begin(), step.instructions.end(), [&](const Instruction& in) {
        return in.task == kNoTask && plan.program.machine.tiers[in.places[0].tier].file;
      }));
  ASSERT_GT(reads, 0u);
  const Fault fault{.kind = FaultKind::eio, .at = 3 * reads, .repeat = UINT64_MAX, .writes = false};
  run.wrap_queue = [&](std::unique_ptr<IoQueue> inner) -> std::unique_ptr<IoQueue> {
    return std::make_unique<FaultQueue>(std::move(inner), fault);
  };
  EXPECT_THROW(train(run), Error);
  ASSERT_TRUE(recorder.has_value());
  const Profile p = make_profile(plan, *recorder);
  ASSERT_GE(p.measured.times.size(), 2u);
  EXPECT_LT(p.steps.size(), static_cast<size_t>(kProfiledSteps));
  EXPECT_GE(p.steps.size(), 1u);
  const std::vector<InstructionTime>& last = p.measured.times.back();
  const auto ran = static_cast<size_t>(std::count_if(
      last.begin(), last.end(), [](const InstructionTime& t) { return std::isfinite(t.begin); }));
  EXPECT_LT(ran, last.size());
  expect_order(plan.program, p.measured);
}

}  // namespace
}  // namespace sluice
