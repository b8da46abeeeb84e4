// Ranks whose collectives match are accepted. Ranks whose collectives differ, or that would wait for one
// another, are refused for the stated reason.
#include "engine/verify/ranks.h"

#include <gtest/gtest.h>

#include "engine/run/start/budgets.h"
#include "engine/run/start/devices.h"
#include "engine/run/start/model_source.h"
#include "engine/run/start/plan_request.h"
#include "engine/run/start/planning.h"

namespace sluice {
namespace {

// Two lanes with collectives. The only waits are those that a test writes out.
constexpr const char* kTables = R"(sluice program 1
tier host capacity 4096 alignment 64
lane compute
lane near
lane far
unit forward compute host
unit gather near host
unit gather far host
unit exchange near host
unit travel near host
processes two count 2 stride 1
buffer a gradients home host pieces 64
buffer b gradients home host pieces 128
buffer c gradients home host pieces 128
arena 4096
)";
constexpr const char* kGather = " gather 0/0 among two flops 0 bytes 192 read a@0 write b@0\n";
constexpr const char* kExchange = " exchange 0/0 among two flops 0 bytes 256 read b@0 write c@0\n";
constexpr const char* kForward = " forward 0/0 flops 0 bytes 64 read a@0\n";

struct Line {
  const char* task;
  const char* lane;   // with the instruction's ordinal on it
  const char* waits;  // "after near:1", or nothing
};

Program program_of(const std::vector<Line>& lines) {
  std::string tasks, instructions;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string number = std::to_string(i), task = lines[i].task;
    tasks += number + task;
    instructions += number + " " + lines[i].lane + " run " + number + " at host+0";
    instructions += (task == kForward ? "" : " host+1024") + std::string(" ") + lines[i].waits + "\n";
  }
  return program_from_text(kTables + ("body step clean -> clean peak 4096 after step\ntasks step\n" + tasks) +
                           "instructions step\n" + instructions);
}

std::string fault_of(const Program& a, const Program& b) {
  const Program* const programs[] = {&a, &b};
  return verify_ranks(programs).value_or("none");
}

TEST(VerifyRanks, RanksOfOneProgramMeet) {
  const Program p = program_of(
      {{kGather, "near:1", ""}, {kForward, "compute:1", "after near:1"}, {kExchange, "near:2", ""}});
  EXPECT_EQ(fault_of(p, p), "none");
  const Program* const alone[] = {&p};
  EXPECT_EQ(verify_ranks(alone), std::nullopt);
}

TEST(VerifyRanks, WhatARankDoesAloneMayDiffer) {
  const Program a = program_of({{kGather, "near:1", ""}, {kExchange, "near:2", ""}});
  const Program b = program_of({{kForward, "compute:1", ""},
                                {kGather, "near:1", "after compute:1"},
                                {kForward, "compute:2", "after near:1"},
                                {kExchange, "near:2", "after compute:2"}});
  EXPECT_EQ(fault_of(a, b), "none");
}

TEST(VerifyRanks, AnotherOrderOnALaneIsNamedWithItsFirstInstruction) {
  const Program a = program_of({{kGather, "near:1", ""}, {kGather, "near:2", ""}, {kExchange, "near:3", ""}});
  const Program b = program_of({{kGather, "near:1", ""}, {kExchange, "near:2", ""}, {kGather, "near:3", ""}});
  EXPECT_EQ(fault_of(a, b),
            "body step: program 1 has exchange 0/0 of b among two, 128 bytes for 128 on lane near where "
            "program 0 has gather 0/0 of a among two, 64 bytes for 128");
}

// What a collective gives and takes must have the size for its process group, even where all ranks agree.
TEST(VerifyRanks, BytesThatDoNotFitTheProcessGroupAreRefused) {
  Program p = program_of({{kGather, "near:1", ""}, {kExchange, "near:2", ""}});
  p.processes[0].count = 3;
  EXPECT_EQ(fault_of(p, p), "body step: gather 0/0 of a among two, 64 bytes for 128 is not for 3 ranks");
  p.buffers[1].cuts = {0, 192};
  EXPECT_EQ(fault_of(p, p), "body step: exchange 0/0 of b among two, 192 bytes for 128 is not for 3 ranks");
  p.buffers[2].cuts = {0, 192};
  EXPECT_EQ(fault_of(p, p), "none");
  Program apart = p;
  apart.processes[0].stride = 2;
  EXPECT_EQ(fault_of(p, apart),
            "body step: program 1 has gather 0/0 of a among two, 64 bytes for 192 on lane near where program "
            "0 has gather 0/0 of a among two, 64 bytes for 192");
}

TEST(VerifyRanks, OtherBytesAndOtherCountsAreRefused) {
  const Program a = program_of({{kGather, "near:1", ""}});
  Program b = a;
  b.buffers[1].cuts = {0, 192};  // a gather of three ranks
  EXPECT_EQ(fault_of(a, b),
            "body step: program 1 has gather 0/0 of a among two, 64 bytes for 192 on lane near where program "
            "0 has gather 0/0 of a among two, 64 bytes for 128");
  const Program more = program_of({{kGather, "near:1", ""}, {kGather, "near:2", ""}});
  EXPECT_EQ(fault_of(a, more), "body step: program 1 has 2 collectives on lane near, and program 0 has 1");
  EXPECT_EQ(fault_of(more, a), "body step: program 1 has 1 collectives on lane near, and program 0 has 2");
  Program renamed = a;
  renamed.machine.lanes[1].name = "nearby";
  EXPECT_EQ(fault_of(a, renamed), "body step: program 1 has 0 collectives on lane near, and program 0 has 1");
  renamed.bodies[0].name = "drain";
  EXPECT_EQ(fault_of(a, renamed), "program 1 has the body drain where program 0 has step");
  renamed.bodies.push_back(a.bodies[0]);
  EXPECT_EQ(fault_of(a, renamed), "program 1 has 2 bodies, and program 0 has 1");
}

// For rows that travel, all ranks must have equally many operands of equal sizes.
TEST(VerifyRanks, OtherOperandsOfRowsThatTravelAreRefused) {
  const Program a =
      program_of({{" travel 0/0 among two flops 0 bytes 8 read b@0 write c@0\n", "near:1", ""}});
  EXPECT_EQ(fault_of(a, a), "none");
  Program b = a;
  b.buffers[2].cuts = {0, 64};
  EXPECT_EQ(
      fault_of(a, b),
      "body step: program 1 has travel 0/0 of b among two, 128 bytes for 64 on lane near where program 0 "
      "has travel 0/0 of b among two, 128 bytes for 128");
  Program more = a;
  for (std::vector<Operand>* operands :
       {&more.bodies[0].tasks[0].operands, &more.bodies[0].instructions[0].operands})
    operands->push_back(operands->front());
  more.bodies[0].instructions[0].places.push_back({});
  EXPECT_NE(fault_of(a, more), "none");
}

// Each lane alone has the same order on both ranks. But the first rank begins the all-gather on `far` only
// after the one on `near`, and the second rank the other way round.
TEST(VerifyRanks, OrdersAcrossLanesMayNotContradict) {
  const Program a = program_of({{kGather, "near:1", ""}, {kGather, "far:1", "after near:1"}});
  const Program free = program_of({{kGather, "far:1", ""}, {kGather, "near:1", ""}});
  const Program b = program_of({{kGather, "far:1", ""}, {kGather, "near:1", "after far:1"}});
  EXPECT_EQ(fault_of(a, free), "none");
  EXPECT_EQ(fault_of(b, free), "none");
  EXPECT_EQ(fault_of(a, b),
            "body step: ranks wait for one another: program 0 in instruction 0 (gather 0/0), program 1 in "
            "instruction 0 (gather 0/0)");
}

// The contradiction leads through instructions that are no collectives. A third rank, which has no part in
// it, stands between the two.
TEST(VerifyRanks, CirclesOfSeveralRanksAreFound) {
  const Program a = program_of({{kGather, "near:1", ""},
                                {kForward, "compute:1", "after near:1"},
                                {kGather, "far:1", "after compute:1"}});
  const Program free = program_of({{kGather, "far:1", ""}, {kGather, "near:1", ""}});
  const Program b = program_of({{kGather, "far:1", ""},
                                {kForward, "compute:1", "after far:1"},
                                {kGather, "near:1", "after compute:1"}});
  const Program* const two[] = {&a, &free, &a};
  EXPECT_EQ(verify_ranks(two), std::nullopt);
  const Program* const three[] = {&a, &free, &b};
  const std::string fault = verify_ranks(three).value_or("none");
  EXPECT_NE(fault.find("ranks wait for one another"), std::string::npos) << fault;
}

// An overlapping lane still begins its collectives in order, but each may begin before the one before it is
// done.
TEST(VerifyRanks, LanesThatOverlapStartInOrder) {
  const auto overlapping = [](Program p) {
    p.machine.lanes[1].overlapping = true;
    return p;
  };
  const Program a =
      program_of({{kGather, "near:1", ""}, {kGather, "near:2", "after far:1"}, {kGather, "far:1", ""}});
  EXPECT_EQ(fault_of(overlapping(a), overlapping(a)), "none");
  const Program b =
      program_of({{kGather, "far:1", "after near:1"}, {kGather, "near:1", ""}, {kGather, "near:2", ""}});
  EXPECT_EQ(fault_of(overlapping(a), overlapping(b)), "none");
  const Program c =
      program_of({{kGather, "near:1", ""}, {kGather, "near:2", ""}, {kGather, "far:1", "after near:2"}});
  EXPECT_NE(fault_of(overlapping(a), overlapping(c)), "none");
}

// Programs that the planner makes for several ranks are accepted.
TEST(VerifyRanks, PlansMeet) {
  Options options;
  options.model.model = "gpt2:layers=2,width=64,heads=2,vocab=256,context=32";
  options.ranks.count = 4;
  const ModelConfig config = resolve_model(options.model).config;
  const std::unique_ptr<Device> device = make_reference_device();
  const Budgets budgets = resolve_budgets(options.memory, memory_limits(), false);
  for (const int stage : {0, 2, 3}) {
    options.ranks.zero = stage;
    options.ranks.per_node = stage ? 2 : 4;
    const PlanRequest request =
        plan_request(options, config, budgets, needs_of(*device), {.validates = true});
    const Plan plan = plan_or_throw(request, budgets);
    EXPECT_EQ(fault_of(plan.program, plan.program), "none") << "stage " << stage;
    EXPECT_FALSE(collectives_of(plan.program.bodies[plan.lowering.bodies().usual().front()]).empty());
  }
}

}  // namespace
}  // namespace sluice
