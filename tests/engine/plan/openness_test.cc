// What the data types allow, on a device that does nothing: branches, shared and frozen groups, layers of two
// segments, other schedules and optimizers, groups with their own ranks, inputs of other names, and rings
// of other lengths.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cpu_optim/optimizer.h"
#include "engine/plan/plan.h"
#include "engine/rates/machine_rates.h"
#include "engine/simulate/simulate.h"
#include "engine/verify/ranks.h"
#include "engine/verify/verify.h"
#include "gpu/device.h"
#include "tests/support/plan_support.h"

namespace sluice::testing {
namespace {

using Kind = GraphBuilder::Kind;

class NullDevice final : public Device {
 public:
  void forward(const OpCall&) override {}
  void backward(const OpCall&) override {}
  uint64_t workspace_bytes(const OpShapes&, Pass) const override { return 0; }
  void round(const Accumulators&, void*, DType, uint64_t, double*) override {}
  void sum(DType, const void*, uint32_t, uint64_t, DType, void*, double*) override {}
  void update(OptimizerKind, UpdateForm, const UpdateRange&, const UpdateScalars&) override {}
  void zero(void*, uint64_t) override {}
};

// Two layers read x, and a third adds their outputs. Two layers use `shared`. `fixed` and the embedding are
// frozen. Layer `pair` has two segments.
Model branches(DType precision = DType::bf16) {
  GraphBuilder b(precision, 1, 4, 16, 20);
  const uint32_t shared = b.group(Kind::dense, "shared"), fixed = b.group(Kind::gated, "fixed", false);
  const uint32_t own = b.group(Kind::attention, "own");
  const uint32_t table = b.embed(false);
  const uint32_t x = b.apply(Kind::dense, "stem", table, shared)[0];
  const uint32_t left = b.apply(Kind::dense, "left", x, shared)[0];
  const uint32_t right = b.apply(Kind::gated, "right", x, fixed)[0];
  const uint32_t sum = b.sum("sum", left, right);
  const uint32_t middle = b.apply(Kind::attention, "pair", sum, own)[0];
  const uint32_t y = b.apply(Kind::gated, "second", middle, fixed)[0];
  b.join_last_layers();
  return b.head(y, false);
}

PlanRequest request_of(const Model& model, const Device& device, const Machine& machine, int64_t slices) {
  PlanRequest r;
  r.machine = machine;
  r.rates = default_machine_rates();
  r.model = [model](int64_t, int64_t) { return model; };
  r.micro_batches = {model.micro_batch};
  r.recompute = Recompute::all;
  r.lower.batch = slices * model.micro_batch;
  r.lower.evaluate = true;
  r.lower.optimizer = layout_of(optimizer_of(OptimizerKind::adamw), DType::bf16);
  r.lower.workspace_bytes = [&device](const OpShapes& s, Pass pass) {
    return device.workspace_bytes(s, pass);
  };
  return r;
}

// "backward pair.1/0 add d.x.0 ...", without the operands that every task of its kind has: weights,
// workspace, scalars.
std::string task_text(const Case& c, const Task& t) {
  constexpr const char* kAccess[] = {"", "=", "+"};
  std::string subject;
  if (t.kind == TaskKind::forward || t.kind == TaskKind::backward) {
    const UseInfo& use = c.lowering.uses[t.subject];
    subject = c.model.layers[use.layer].name + "." + std::to_string(use.position);
  } else if (t.kind != TaskKind::norm && t.kind != TaskKind::set_scalars) {
    subject = c.model.groups[t.subject].name;
  }
  std::string text = fmt::format("{} {}/{}:", task_kind_name(t.kind), subject, t.slice);
  for (const Operand& o : t.operands) {
    const Buffer& b = c.program.buffers[o.buffer];
    if (b.kind == BufferClass::workspace || b.kind == BufferClass::scalars) continue;
    text += fmt::format(" {}{}@{}", b.name, kAccess[static_cast<int>(o.access)], o.version);
  }
  return text;
}

std::vector<std::string> tasks_of(const Case& c, BodyId body) {
  std::vector<std::string> lines;
  for (const Task& t : c.program.bodies[body].tasks) lines.push_back(task_text(c, t));
  return lines;
}

Case lowered(const Model& model, int64_t slices, bool update_waits_for_norm,
             StepSchedule (*schedule)(const Model&, uint32_t) = layer_major) {
  const NullDevice device;
  Case c;
  c.model = model;
  c.options = request_of(model, device, {}, slices).lower;
  c.options.update_waits_for_norm = update_waits_for_norm;
  c.options.schedule = schedule;
  c.options.workspace_bytes = no_workspace;
  lower_case(c, machine_of(Tiers::device_host_nvme));
  return c;
}

// The tasks of one kind, without operands: "backward pair.1/0".
std::vector<std::string> order_of(const Case& c, BodyId body, TaskKind kind) {
  std::vector<std::string> lines;
  for (const Task& t : c.program.bodies[body].tasks) {
    const std::string text = task_text(c, t);
    if (t.kind == kind) lines.push_back(text.substr(text.find(' ') + 1, text.find(':') - text.find(' ') - 1));
  }
  return lines;
}

using Lines = std::vector<std::string>;

// The frozen embedding has no backward. Gradients of x come from both branches, first from the branch that
// comes later in forward order. The shared group's gradient is rounded once, after its last use. Frozen
// groups have neither gradients nor rounding.
TEST(PlanOpenness, TasksOfTheFirstBody) {
  const Case c = lowered(branches(), 1, true);
  EXPECT_EQ(tasks_of(c, *c.lowering.bodies().first),
            (Lines{"forward embedding.0/0: w.table@0 x.embedding.0=@0",
                   "forward stem.0/0: x.embedding.0@1 w.shared@0 x.stem.0=@0",
                   "forward left.0/0: x.stem.0@1 w.shared@0 x.left.0=@0",
                   "forward right.0/0: x.stem.0@1 w.fixed@0 x.right.0=@0",
                   "forward sum.0/0: x.left.0@1 x.right.0@1 x.sum.0=@0",
                   "forward pair.0/0: x.sum.0@1 w.own@0 x.pair.0=@0",
                   "forward pair.1/0: x.pair.0@1 w.fixed@0 x.second.0=@0",
                   "backward head.0/0: x.second.0@1 w.head@0 d.second.0=@0 a.head=@0",
                   "round head/0: a.head@1 g.head=@0",
                   "backward pair.1/0: x.pair.0@1 w.fixed@0 d.second.0@1 d.pair.0=@0",
                   "backward pair.0/0: x.sum.0@1 w.own@0 d.pair.0@1 d.sum.0=@0 a.own=@0",
                   "round own/0: a.own@1 g.own=@0", "backward sum.0/0: d.sum.0@1 d.left.0=@0 d.right.0=@0",
                   "backward right.0/0: x.stem.0@1 w.fixed@0 d.right.0@1 d.stem.0=@0",
                   "backward left.0/0: x.stem.0@1 w.shared@0 d.left.0@1 d.stem.0+@1 a.shared=@0",
                   "backward stem.0/0: x.embedding.0@1 w.shared@0 d.stem.0@2 a.shared+@1",
                   "round shared/0: a.shared@2 g.shared=@0", "norm /0:", "set_scalars /0:"}));
}

// Every trainable group is updated once, directly before the forward that uses it first.
TEST(PlanOpenness, TasksOfTheStepBegin) {
  const Case c = lowered(branches(), 1, true);
  Lines begin = tasks_of(c, *c.lowering.bodies().step);
  EXPECT_EQ(begin.size(), 19u + 3u);
  begin.resize(4);
  EXPECT_EQ(begin, (Lines{"forward embedding.0/0: w.table@0 x.embedding.0=@0",
                          "optimize shared/0: s.shared.0+@0 g.shared@0 w.shared=@0",
                          "forward stem.0/0: x.embedding.0@1 w.shared@1 x.stem.0=@0",
                          "forward left.0/0: x.stem.0@1 w.shared@1 x.left.0=@0"}));
  EXPECT_EQ(order_of(c, *c.lowering.bodies().step, TaskKind::optimize),
            (Lines{"shared/0", "own/0", "head/0"}));
  EXPECT_EQ(order_of(c, *c.lowering.bodies().drain, TaskKind::optimize),
            (Lines{"shared/0", "own/0", "head/0"}));
}

// When updates need not wait for the norm of all gradients, a group is updated right after its gradient is
// rounded, and one body serves all steps.
TEST(PlanOpenness, UpdatesFollowTheirGradient) {
  const Case c = lowered(branches(), 1, false);
  const BodyIds& bodies = c.lowering.bodies();
  EXPECT_EQ(bodies.first, bodies.step);
  EXPECT_FALSE(bodies.drain);
  const std::vector<Task>& tasks = c.program.bodies[*bodies.step].tasks;
  EXPECT_EQ(tasks.front().kind, TaskKind::set_scalars);
  EXPECT_EQ(tasks.back().kind, TaskKind::norm);
  uint32_t rounds = 0;
  for (size_t t = 0; t < tasks.size(); ++t) {
    if (tasks[t].kind != TaskKind::round) continue;
    ++rounds;
    EXPECT_EQ(tasks[t + 1].kind, TaskKind::optimize);
    EXPECT_EQ(tasks[t + 1].subject, tasks[t].subject);
  }
  EXPECT_EQ(rounds, 3u);
}

TEST(PlanOpenness, FrozenGroupsHaveWeightsOnly) {
  const Case c = lowered(branches(), 2, true);
  for (size_t g = 0; g < c.model.groups.size(); ++g) {
    const GroupBuffers& b = c.lowering.groups[g];
    const bool trainable = c.model.groups[g].trainable;
    EXPECT_EQ(b.gradient != kNone, trainable);
    EXPECT_EQ(b.accumulators.empty(), !trainable);
    EXPECT_EQ(b.block_sums != kNone, trainable);
    EXPECT_EQ(b.state.empty(), !trainable);
  }
  for (const Body& body : c.program.bodies)
    for (const Task& t : body.tasks)
      EXPECT_FALSE((t.kind == TaskKind::optimize || t.kind == TaskKind::round) &&
                   !c.model.groups[t.subject].trainable)
          << body.name;
}

TEST(PlanOpenness, Schedules) {
  const Case layers = lowered(branches(), 2, true), slices = lowered(branches(), 2, true, slice_major);
  EXPECT_EQ(
      order_of(layers, *layers.lowering.bodies().first, TaskKind::forward),
      (Lines{"embedding.0/0", "embedding.0/1", "stem.0/0", "stem.0/1", "left.0/0", "left.0/1", "right.0/0",
             "right.0/1", "sum.0/0", "sum.0/1", "pair.0/0", "pair.1/0", "pair.0/1", "pair.1/1"}));
  EXPECT_EQ(order_of(layers, *layers.lowering.bodies().first, TaskKind::backward),
            (Lines{"head.0/0", "head.0/1", "pair.1/0", "pair.0/0", "pair.1/1", "pair.0/1", "sum.0/0",
                   "sum.0/1", "right.0/0", "right.0/1", "left.0/0", "left.0/1", "stem.0/0", "stem.0/1"}));
  EXPECT_EQ(order_of(slices, *slices.lowering.bodies().first, TaskKind::forward),
            (Lines{"embedding.0/0", "stem.0/0", "left.0/0", "right.0/0", "sum.0/0", "pair.0/0", "pair.1/0",
                   "embedding.0/1", "stem.0/1", "left.0/1", "right.0/1", "sum.0/1", "pair.0/1", "pair.1/1"}));
  EXPECT_EQ(order_of(slices, *slices.lowering.bodies().first, TaskKind::backward),
            (Lines{"head.0/0", "pair.1/0", "pair.0/0", "sum.0/0", "right.0/0", "left.0/0", "stem.0/0",
                   "head.0/1", "pair.1/1", "pair.0/1", "sum.0/1", "right.0/1", "left.0/1", "stem.0/1"}));
}

// Plans, verifies and simulates on every machine, with plenty and with the least of every tier.
TEST(PlanOpenness, PlansVerifiesAndSimulates) {
  const NullDevice device;
  for (const Tiers tiers : {Tiers::host, Tiers::host_nvme, Tiers::device_host, Tiers::device_host_nvme}) {
    SCOPED_TRACE(static_cast<int>(tiers));
    PlanRequest request = request_of(branches(), device, machine_of(tiers), 3);
    const auto expect_plan = [&] {
      const auto result = make_plan(request);
      ASSERT_TRUE(std::holds_alternative<Plan>(result));
      const Plan& plan = std::get<Plan>(result);
      EXPECT_TRUE(verify(plan.program).empty());
      const BodyIds& b = plan.lowering.bodies();
      std::vector<BodyId> run{*b.load};
      for (const std::optional<BodyId> begin : {b.first, b.step, b.repair, b.guess})
        if (begin) std::ranges::copy(b.step_from(*begin), std::back_inserter(run));
      run.insert(run.end(), {*b.drain, *b.evaluate, *b.save});
      const SimulationResult result_of_run = simulate(plan.program, plan.rates, run);
      EXPECT_GT(result_of_run.seconds, plan.step_seconds);
      EXPECT_GT(result_of_run.lane_busy[kComputeLane], 0);
      EXPECT_GT(plan.step_seconds, 0);
    };
    expect_plan();
    for (Tier& t : request.machine.tiers) t.capacity = 1;
    const auto nothing = make_plan(request);
    ASSERT_TRUE(std::holds_alternative<Infeasible>(nothing));
    for (size_t t = 0; t < request.machine.tiers.size(); ++t)
      request.machine.tiers[t].capacity = std::get<Infeasible>(nothing).least_together[t];
    expect_plan();
  }
}

// Plans a step, verifies it alone and together with its ranks, and simulates it.
Plan expect_planned(const PlanRequest& request) {
  auto result = make_plan(request);
  EXPECT_TRUE(std::holds_alternative<Plan>(result));
  Plan plan = std::get<Plan>(std::move(result));
  EXPECT_TRUE(verify(plan.program).empty());
  const Program* const roles[] = {&plan.program};
  EXPECT_EQ(verify_ranks(roles).value_or("none"), "none");
  EXPECT_GT(plan.step_seconds, 0);
  return plan;
}

// Two micro-batches go through all layers together, then the next two. Backward takes the pairs in reverse.
StepSchedule in_pairs(const Model& model, uint32_t slices) {
  StepSchedule pairs;
  for (uint32_t first = 0; first < slices; first += 2) {
    StepSchedule pair = layer_major(model, std::min(2u, slices - first));
    for (std::vector<ScheduledUse>* visits : {&pair.forward, &pair.backward})
      for (ScheduledUse& v : *visits) v.slice += first;
    pairs.forward.insert(pairs.forward.end(), pair.forward.begin(), pair.forward.end());
    pairs.backward.insert(pairs.backward.begin(), pair.backward.begin(), pair.backward.end());
  }
  return pairs;
}

TEST(PlanOpenness, AScheduleIsData) {
  const NullDevice device;
  PlanRequest request = request_of(branches(), device, machine_of(Tiers::device_host_nvme), 3);
  request.lower.schedule = in_pairs;
  request.waves = 1;
  const Plan plan = expect_planned(request);
  std::vector<uint32_t> head;  // the last layer's micro-batches in backward
  for (const Task& t : plan.program.bodies[plan.lowering.bodies().usual().front()].tasks)
    if (t.kind == TaskKind::backward && t.subject + 1 == plan.lowering.uses.size()) head.push_back(t.slice);
  EXPECT_EQ(head, (std::vector<uint32_t>{2, 0, 1}));
  request.lower.schedule = [](const Model& model, uint32_t slices) {
    StepSchedule incomplete = layer_major(model, slices);
    incomplete.backward.pop_back();
    return incomplete;
  };
  EXPECT_THROW(make_plan(request), std::invalid_argument);
}

// An optimizer that keeps a plane of bytes beside the master weights, and updates whole tensors: a group is
// one shard, even where shards are small otherwise.
TEST(PlanOpenness, AnOptimizerIsARow) {
  const NullDevice device;
  const auto request_on = [&](uint32_t ranks) {
    Model model = branches();
    model.mesh = Mesh({ranks, 1}, ranks);
    PlanRequest request = request_of(model, device, machine_of(Tiers::device_host_nvme), 2);
    request.lower.shard_elements = kGroupPadding;
    request.lower.optimizer = {{kMasterWeights, {"codes", "", DType::u8}}, true};
    return request;
  };
  PlanRequest request = request_on(1);
  const Plan plan = expect_planned(request);
  for (size_t g = 0; g < plan.model.groups.size(); ++g) {
    const GroupBuffers& group = plan.lowering.groups[g];
    EXPECT_EQ(group.shards, (std::vector<uint64_t>{0, plan.model.groups[g].elements}));
    const uint64_t elements = plan.model.groups[g].elements;
    for (const BufferId state : group.state) {
      EXPECT_EQ(plan.program.buffers[state].bytes(),
                plane_offsets(request.lower.optimizer.planes, elements).back());
      EXPECT_LE(plan.program.buffers[state].bytes(), 5 * elements + 4 * 4096);
    }
  }
  request = request_on(2);
  EXPECT_THROW(make_plan(request), std::invalid_argument);  // stage 3 would cut tensors
  request.lower.zero_stage = 0;
  expect_planned(request);
}

TEST(PlanOpenness, InputsHaveNamesOfTheirOwn) {
  Model model = branches();
  Activation mask{"mask", {4}, DType::u8};
  mask.input = true;
  model.activations.push_back(mask);
  const NullDevice device;
  const Plan plan = expect_planned(request_of(model, device, machine_of(Tiers::device_host), 3));
  const Buffer& b = plan.program.buffers[input_buffer(plan.model, plan.lowering, "mask")];
  EXPECT_EQ(b.name, "mask");
  EXPECT_EQ(b.pieces(), 3u);
  EXPECT_EQ(b.ring, kWaveRing);
  EXPECT_THROW(input_buffer(plan.model, plan.lowering, "image"), std::invalid_argument);
}

// A program whose training ring has five slots is assembled, verified, and read back from its text.
TEST(PlanOpenness, ARingHasItsOwnSlots) {
  Case c = lowered(branches(), 2, true);
  c.program.rings[kTrainRing].slots = 5;
  Arrangement arrangement;
  arrangement.homes.assign(c.program.buffers.size(), 1);
  arrangement.leads.assign(c.program.machine.tiers.size(), 2);
  ASSERT_FALSE(assemble(c.program, arrangement));
  EXPECT_TRUE(verify(c.program).empty());
  const Buffer& scalars = c.program.buffers[c.lowering.scalars];
  EXPECT_EQ(home_bytes(c.program, scalars), 5 * scalars.slot_stride);
  EXPECT_EQ(program_from_text(to_text(c.program)).rings[kTrainRing].slots, 5);
  c.program.rings[kTrainRing].slots = 1;
  EXPECT_FALSE(verify(c.program).empty());
}

TEST(PlanOpenness, EveryActivationMustReachTheLoss) {
  GraphBuilder b(DType::bf16, 1, 4, 16, 20);
  const uint32_t g = b.group(Kind::dense, "g");
  const uint32_t x = b.embed();
  b.apply(Kind::dense, "nowhere", x, g);
  Case c;
  c.model = b.head(x, false);
  const NullDevice device;
  c.options = request_of(c.model, device, {}, 1).lower;
  EXPECT_THROW(lower_case(c, machine_of(Tiers::host)), std::invalid_argument);
  c.options.batch = 0;
  EXPECT_THROW(lower_case(c, machine_of(Tiers::host)), std::invalid_argument);
}

}  // namespace
}  // namespace sluice::testing
