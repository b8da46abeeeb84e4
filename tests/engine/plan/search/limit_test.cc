// The lower bound of a step's time: by hand, and below the prediction for any plan.
#include "engine/plan/search/limit.h"

#include <gtest/gtest.h>

#include "cpu_optim/optimizer.h"
#include "engine/simulate/simulate.h"
#include "tests/support/plan_support.h"

namespace sluice::testing {
namespace {

// Nothing takes time unless a test sets its rate.
MachineRates no_rates() {
  MachineRates r;
  r.precision = DType::bf16;
  for (const char* lane : {"compute", "optimizer"}) r.lanes.push_back({.lane = lane});
  for (const auto& [from, to] :
       {std::pair{"host", "nvme"}, {"nvme", "host"}, {"host", "device"}, {"device", "host"}})
    r.links.push_back({from, to});
  return r;
}

Model small_model() {
  return build_model(config_from_name("gpt2:layers=2,width=64,heads=2,vocab=256,context=32"), DType::bf16, 2,
                     32);
}
LowerOptions small_options() {
  LowerOptions o;
  o.batch = 4;
  o.optimizer = layout_of(optimizer_of(OptimizerKind::adamw), DType::bf16);
  o.workspace_bytes = no_workspace;
  return o;
}

// Bytes of permanent buffers; with `staying`, only of buffers that have content between steps.
uint64_t permanent_bytes(const Program& p, bool staying = false) {
  uint64_t bytes = 0;
  for (const Buffer& b : p.buffers)
    if (b.permanent && b.ring == kNoRing && !(staying && b.is_empty_in(BodyState::pending)))
      bytes += b.bytes();
  return bytes;
}

TEST(Limit, FlopsAreThoseOfTasksThatComputeNothingTwice) {
  const Machine machine = testing::machine_of(Tiers::host);
  MachineRates rates = no_rates();
  rates.lanes[0].flops.bf16 = 1;
  LowerOptions options = small_options();  // its layers recompute
  Program p;
  p.machine = machine;
  options.recompute.assign(4, Recompute::none);  // embedding, two layers, head
  const Lowering lowering = lower(small_model(), options, p);
  double flops = 0;
  for (const Task& task : p.bodies[*lowering.bodies().step].tasks) flops += task.flops;
  EXPECT_GT(flops, 0);
  EXPECT_DOUBLE_EQ(least_step_seconds(machine, rates, small_model(), small_options()), flops);
}

// Updates may run in device memory or in host memory: neither lane has to make all of them.
TEST(Limit, UpdatesAreDividedBetweenTheLanesThatMakeThem) {
  const Machine machine = testing::machine_of(Tiers::device_host);
  Program p;
  p.machine = machine;
  LowerOptions options = small_options();
  options.recompute.assign(4, Recompute::none);
  const Lowering lowering = lower(small_model(), options, p);
  double updates = 0, compute = 0, host = 0;  // bytes
  for (const Task& task : p.bodies[*lowering.bodies().step].tasks) {
    const auto bytes = static_cast<double>(task.bytes);
    const bool segment = task.kind == TaskKind::forward || task.kind == TaskKind::backward;
    if (task.kind == TaskKind::optimize)
      updates += bytes;
    else if (segment || task.kind == TaskKind::round)
      compute += bytes;
    else
      host += bytes;
  }
  ASSERT_GT(updates, 0);
  // With this rate of the host's lane, either lane would take the same time if it made all updates. Both
  // lanes end at the same time if compute makes rate / (1 + rate) of them.
  const double rate = (host + updates) / (compute + updates);
  MachineRates rates = no_rates();
  rates.lanes[0].bytes_per_second = 1;
  rates.lanes[1].bytes_per_second = rate;
  const double least = least_step_seconds(machine, rates, small_model(), small_options());
  // The sums of doubles have another order.
  EXPECT_NEAR(least, compute + updates * rate / (1 + rate), 1e-9 * compute);
  EXPECT_LT(least, compute + updates);
}

// The drive moves a byte a second and cannot read and write at once: what the host cannot hold goes both
// ways, but for weights, which the step makes anew.
TEST(Limit, WhatDoesNotFitCrossesOnceEachWay) {
  Machine machine = testing::machine_of(Tiers::host_nvme);
  MachineRates rates = no_rates();
  rates.drives = {{.tier = "nvme", .read = 1, .write = 1, .mixed = 1}};
  Program p;
  p.machine = machine;
  lower(small_model(), small_options(), p);
  const uint64_t staying = permanent_bytes(p, true);
  machine.tiers[0].capacity = staying - 1000;
  EXPECT_DOUBLE_EQ(least_step_seconds(machine, rates, small_model(), small_options()), 2000);
  machine.tiers[0].capacity = staying;
  EXPECT_EQ(least_step_seconds(machine, rates, small_model(), small_options()), 0);
}

// Gradients are made on the device, so they never come up to it.
TEST(Limit, WhatIsMadeAboveDoesNotComeUp) {
  Machine machine = testing::machine_of(Tiers::device_host);
  std::erase_if(machine.units, [](const Unit& u) { return u.kind == TaskKind::optimize && u.tier == 0; });
  MachineRates rates = no_rates();
  for (LinkRates& link : rates.links)
    if (link.from == "host" && link.to == "device") link.bytes_per_second = 1;
  Program p;
  p.machine = machine;
  const Lowering lowering = lower(small_model(), small_options(), p);
  uint64_t weights = 0;
  for (const GroupBuffers& group : lowering.groups) weights += p.buffers[group.weights].bytes();
  machine.tiers[0].capacity = weights;
  EXPECT_EQ(least_step_seconds(machine, rates, small_model(), small_options()), 0);
  machine.tiers[0].capacity = weights / 2;
  const double least = least_step_seconds(machine, rates, small_model(), small_options());
  EXPECT_GT(least, 0);
  EXPECT_LE(least, static_cast<double>(weights)) << "half of the weights, for forward and for backward";
}

TEST(Limit, NoPlanIsPredictedToTakeLess) {
  for (uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE("random_case(" + std::to_string(seed) + ")");
    Case c = random_case(seed);
    ASSERT_FALSE(assemble(c.program, c.arrangement));
    // On a processor, lanes share its cores. A GPU and its host work side by side.
    MachineRates rates = built_in_machine(seed % 2 ? kGpuMachine : kDefaultMachine).value();
    rates.precision = c.model.precision;
    for (const bool shrunk : {false, true}) {
      for (TierId t = 0; shrunk && t < c.program.machine.tiers.size(); ++t) shrink(c, t);
      LowerOptions one_wave = c.options;
      one_wave.waves = 1;
      const double least = least_step_seconds(c.program.machine, rates, c.model, one_wave);
      const double of_waves = least_step_seconds(c.program.machine, rates, c.model, c.options);
      const double moving = least_moving_seconds(c.program.machine, rates, c.model, c.options);
      const BodyIds& bodies = c.lowering.bodies();
      const double step = steady_step_seconds(c.program, rates, bodies.step_from(*bodies.step), 3, 3);
      EXPECT_GT(least, 0);
      EXPECT_LE(least, of_waves * (1 + 1e-9)) << "one wave moves least";
      EXPECT_LE(moving, of_waves);
      EXPECT_LE(of_waves, step * (1 + 1e-9)) << (shrunk ? "least budgets" : "plenty");
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace sluice::testing
