// The simulator on a machine that does one flop and moves one byte a second, with times worked out by hand,
// and on random programs.
#include "engine/simulate/simulate.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "engine/base/error.h"
#include "tests/support/random_program.h"
#include "tests/support/unit_machine.h"

namespace sluice {
namespace {

using testing::lane;
using testing::program;
using testing::tasks;
using testing::unit_rates;

SimulationResult run(const Program& p, const MachineRates& r, const std::vector<BodyId>& sequence = {0}) {
  return simulate(p, r, sequence, true);
}
void expect_time(const SimulationResult& r, size_t position, size_t instruction, double begin, double end) {
  EXPECT_DOUBLE_EQ(r.times[position][instruction].begin, begin)
      << "instruction " << instruction << " of " << position;
  EXPECT_DOUBLE_EQ(r.times[position][instruction].end, end)
      << "instruction " << instruction << " of " << position;
}

TEST(Simulate, LanesAndWaits) {
  // In seconds: lane down copies in 0-2, a waits for it and runs in 2-5 and in 5-6, b runs beside it in 0-4,
  // and up waits for both and copies in 6-10.
  const Program p = program(tasks({{3, 0}, {1, 0}, {0, 4}}),
                            "0 down:1 copy x2@0 host+0 -> device+0\n"
                            "1 a:1 run 0 after down:1\n"
                            "2 a:2 run 1\n"
                            "3 b:1 run 2\n"
                            "4 up:1 copy x4@0 device+0 -> host+0 after a:2 after b:1\n");
  const SimulationResult r = run(p, unit_rates());
  expect_time(r, 0, 0, 0, 2);
  expect_time(r, 0, 1, 2, 5);
  expect_time(r, 0, 2, 5, 6);
  expect_time(r, 0, 3, 0, 4);
  expect_time(r, 0, 4, 6, 10);
  EXPECT_DOUBLE_EQ(r.seconds, 10);
  EXPECT_DOUBLE_EQ(r.lane_busy[lane(p, "a")], 4);
  EXPECT_DOUBLE_EQ(r.lane_busy[lane(p, "b")], 4);
  EXPECT_DOUBLE_EQ(r.lane_busy[lane(p, "down")], 2);
  EXPECT_DOUBLE_EQ(r.lane_busy[lane(p, "up")], 4);
  EXPECT_DOUBLE_EQ(r.lane_busy[lane(p, "c")], 0);
  EXPECT_TRUE(simulate(p, unit_rates(), std::vector<BodyId>{0}).times.empty());
}

TEST(Simulate, DurationIsTheLargestLimitPlusOverhead) {
  const Program p = program(tasks({{6, 4}}), "0 a:1 run 0\n");
  MachineRates r = unit_rates();
  EXPECT_DOUBLE_EQ(run(p, r).seconds, 6);
  r.lanes[0].bytes_per_second = 0.5;
  EXPECT_DOUBLE_EQ(run(p, r).seconds, 8);
  r.lanes[0].overhead_seconds = 3;
  EXPECT_DOUBLE_EQ(run(p, r).seconds, 11);
  r.pools = {{"memory", 2}};
  r.lanes[0].sharing.per_byte = {{0, 5}};  // 4 bytes take 20 of a pool of 2 a second: 10 s
  EXPECT_DOUBLE_EQ(run(p, r).seconds, 13);
}

TEST(Simulate, RatesMayBeThoseOfATier) {
  const Program p =
      program("0 forward 0/0 flops 0 bytes 4 read x4@0\n1 forward 0/0 flops 0 bytes 4 read x4@0\n",
              "0 a:1 run 0 at host+0\n1 a:2 run 1 at device+0\n");
  MachineRates r = unit_rates();
  EXPECT_DOUBLE_EQ(run(p, r).seconds, 4 + 4);
  r.lanes.push_back({.lane = "a", .tier = "device", .bytes_per_second = 8, .overhead_seconds = 1});
  EXPECT_DOUBLE_EQ(run(p, r).seconds, 4 + 1 + 0.5);
  EXPECT_DOUBLE_EQ(task_seconds(p, r, p.bodies[0].tasks[0]), 1 + 0.5);  // the unit's tier is device
  std::swap(r.lanes.front(), r.lanes.back());                           // the order of rows does not matter
  EXPECT_DOUBLE_EQ(run(p, r).seconds, 4 + 1 + 0.5);
}

TEST(Simulate, FlopsCountByPrecision) {
  const Program p = program(tasks({{12, 0}}), "0 a:1 run 0\n");
  MachineRates r = unit_rates();
  r.lanes[0].flops.fp32 = 2, r.lanes[0].flops.bf16 = 4, r.lanes[0].flops.fp16 = 3;
  EXPECT_DOUBLE_EQ(run(p, r).seconds, 6);
  r.precision = DType::bf16;
  EXPECT_DOUBLE_EQ(run(p, r).seconds, 3);
  r.precision = DType::f16;
  EXPECT_DOUBLE_EQ(run(p, r).seconds, 4);
}

// An op without rates of its own takes the longer of its times for flops and for bytes. An op with rates
// takes the sum of both.
TEST(Simulate, APassTakesTheSumOverItsKindsOfOp) {
  std::string tables = testing::kUnitTables;
  tables += "pass linear flops 12 bytes 4 attention flops 6 bytes 8\nbody step clean -> clean\n";
  const Program p = program_from_text(
      tables + "tasks step\n0 forward 0/0 flops 18 bytes 12 pass 0\ninstructions step\n0 a:1 run 0\n");
  MachineRates r = unit_rates();
  EXPECT_DOUBLE_EQ(run(p, r).seconds, 12 + 8);
  OpRates row{OpKind::attention, {}, {}};
  row.flops.fp32 = 3, row.bytes.fp32 = 2;
  r.lanes[0].ops = {row};
  EXPECT_DOUBLE_EQ(run(p, r).seconds, 12 + 6.0 / 3 + 8.0 / 2);
  EXPECT_DOUBLE_EQ(task_seconds(p, r, p.bodies[0].tasks[0]), 12 + 6.0 / 3 + 8.0 / 2);
  r.precision = DType::bf16;  // the row's rates are unlimited in this precision
  EXPECT_DOUBLE_EQ(run(p, r).seconds, 12);
}

// The lane's rates are those of 4 cores, but the pool has 1. Alone, the task would take this core for 4 * 3
// s, and the copy would take it for 2 s. Both flow at half speed until the copy ends at 4. Then 12 - 2 s of
// the task are left.
TEST(Simulate, WhatOccupiesMoreThanThereIsTakesLonger) {
  const Program p = program(tasks({{3, 0}}), "0 a:1 run 0\n1 down:1 copy x2@0 host+0 -> device+0\n");
  MachineRates r = unit_rates();
  r.pools = {{"cores", 1}};
  r.lanes[0].sharing.occupies = {{0, 4}};
  r.links[0].sharing.occupies = {{0, 1}};
  const SimulationResult s = run(p, r);
  expect_time(s, 0, 1, 0, 4);
  expect_time(s, 0, 0, 0, 14);
}

TEST(Simulate, PoolIsSharedWhileBothFlow) {
  // Memory moves 1 byte a second: 4 bytes for the task, 2 for the copy. Both flow at half speed until the
  // copy ends at 4. The task then has 2 bytes left and ends at 6.
  const Program p = program(tasks({{0, 4}}), "0 a:1 run 0\n1 down:1 copy x2@0 host+0 -> device+0\n");
  MachineRates r = unit_rates();
  r.pools = {{"memory", 1}};
  r.lanes[0].sharing.per_byte = {{0, 1}};
  r.links[0].sharing.per_byte = {{0, 1}};
  SimulationResult s = run(p, r);
  expect_time(s, 0, 1, 0, 4);
  expect_time(s, 0, 0, 0, 6);
  EXPECT_DOUBLE_EQ(s.lane_slowed[lane(p, "a")][0], 2);
  EXPECT_DOUBLE_EQ(s.lane_slowed[lane(p, "down")][0], 2);
  EXPECT_DOUBLE_EQ(s.lane_slowed[lane(p, "b")][0], 0);
  r.pools[0].capacity = 2;  // enough for both
  s = run(p, r);
  expect_time(s, 0, 1, 0, 2);
  expect_time(s, 0, 0, 0, 4);
}

TEST(Simulate, CoresAreOccupiedForTheWholeDuration) {
  // 2 cores: the task takes both for 4 s, the copy one for 2 s, so each flows at 2/3. The copy ends at 3,
  // when the task has done 2 s; the task ends at 5.
  const Program p = program(tasks({{4, 0}}), "0 a:1 run 0\n1 down:1 copy x2@0 host+0 -> device+0\n");
  MachineRates r = unit_rates();
  r.pools = {{"cores", 2}};
  r.lanes[0].sharing.occupies = {{0, 2}};
  r.links[0].sharing.occupies = {{0, 1}};
  const SimulationResult s = run(p, r);
  expect_time(s, 0, 1, 0, 3);
  expect_time(s, 0, 0, 0, 5);
}

TEST(Simulate, SharesRiseUntilEachTasksPoolIsFull) {
  // Pool P (1/s): a and b each take all of it when alone, so each flows at 1/2. Pool Q (1/s): b alone takes
  // half of it, so now 1/4; c alone takes all of it, and may flow at 3/4. Alone a, b and c take 2, 2 and 3 s.
  // All end at 4.
  const Program p = program(tasks({{2, 0}, {2, 0}, {3, 0}}), "0 a:1 run 0\n1 b:1 run 1\n2 c:1 run 2\n");
  MachineRates r = unit_rates();
  r.pools = {{"P", 1}, {"Q", 1}};
  r.lanes[0].sharing.occupies = {{0, 1}};
  r.lanes[1].sharing.occupies = {{0, 1}, {1, 0.5}};
  r.lanes[2].sharing.occupies = {{1, 1}};
  const SimulationResult s = run(p, r);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(s.times[0][i].end, 4, 1e-12);
}

TEST(Simulate, OverlappingLanesHideLatencyAndKeepOrder) {
  // Each copy has 1 s of latency and 4 bytes. Both latencies pass in 0-1 s, the first copy's bytes flow in
  // 1-5 s, the second's in 5-9 s. One after the other, the copies would take 10 s.
  const char* reads = "0 read:1 copy x4@0 nvme+0 -> host+0\n1 read:2 copy x4@0 nvme+4 -> host+4\n";
  const Program p = program("", reads);
  MachineRates r = unit_rates();
  r.links[2].latency_seconds = 1;
  SimulationResult s = run(p, r);
  expect_time(s, 0, 0, 0, 5);
  expect_time(s, 0, 1, 0, 9);
  EXPECT_DOUBLE_EQ(s.lane_busy[lane(p, "read")], 9);
  // A wait on the lane itself puts them in turn.
  const Program q = program("", std::string(reads, std::strlen(reads) - 1) + " after read:1\n");
  s = run(q, r);
  expect_time(s, 0, 1, 5, 10);
  // The lane's second copy waits for another lane. In between, the lane is idle.
  const Program late = program(tasks({{7, 0}}),
                               "0 a:1 run 0\n1 read:1 copy x4@0 nvme+0 -> host+0\n"
                               "2 read:2 copy x2@0 nvme+0 -> host+0 after a:1\n");
  s = run(late, r);
  expect_time(s, 0, 2, 7, 10);
  EXPECT_DOUBLE_EQ(s.lane_busy[lane(late, "read")], 8);
}

TEST(Simulate, DriveHasThreeRates) {
  const Program both =
      program("", "0 read:1 copy x8@0 nvme+0 -> host+0\n1 write:1 copy x2@0 host+0 -> nvme+0\n");
  MachineRates r = unit_rates();
  r.links[2].bytes_per_second = r.links[3].bytes_per_second = kUnlimited;
  r.drives = {{"nvme", 4, 2, 2}};
  // While read and write are under way, each moves a byte a second. The write ends at 2. The read has 6 bytes
  // left, at 4 a second: it ends at 3.5.
  SimulationResult s = run(both, r);
  expect_time(s, 0, 1, 0, 2);
  expect_time(s, 0, 0, 0, 3.5);
  EXPECT_DOUBLE_EQ(s.lane_slowed[lane(both, "write")][0], 1);
  EXPECT_DOUBLE_EQ(s.lane_slowed[lane(both, "read")][0], 1.5);
  // The mixed rate is 4 and the read rate 1: the read keeps its 1, and the write could have 3 but reaches
  // only its own 2. The write takes 1 s, the read 8 s.
  r.drives = {{"nvme", 1, 2, 4}};
  s = run(both, r);
  expect_time(s, 0, 1, 0, 1);
  expect_time(s, 0, 0, 0, 8);
}

// Drive shares of 2 and 6 give the drives a quarter and three quarters of the bytes.
TEST(Simulate, DrivesShareTheBytesByWeight) {
  MachineRates r = unit_rates();
  r.links[2].bytes_per_second = r.links[3].bytes_per_second = kUnlimited;
  const Program read = program("", "0 read:1 copy x8@0 nvme+0 -> host+0\n");
  const Program both =
      program("", "0 read:1 copy x8@0 nvme+0 -> host+0\n1 write:1 copy x8@0 host+0 -> nvme+0\n");
  // The first drive reads 2 bytes at 1 a second, the second 6 at 3. (With equal shares, the first would take
  // 4 s.)
  r.drives = {{"nvme", 1, 2, 4}, {"nvme", 3, 3, 6}};
  EXPECT_DOUBLE_EQ(run(read, r).seconds, 2);
  // Neither slows the other: the read takes 2 s as before, the write 1 s on the first drive and 2 s on the
  // second.
  SimulationResult s = run(both, r);
  expect_time(s, 0, 0, 0, 2);
  expect_time(s, 0, 1, 0, 2);
  // The first drive moves 2 bytes each way at 1 a second, the second 6 each way at 3. (Equal shares would
  // take 4 s.)
  r.drives = {{"nvme", 4, 4, 2}, {"nvme", 6, 6, 6}};
  s = run(both, r);
  expect_time(s, 0, 0, 0, 2);
  expect_time(s, 0, 1, 0, 2);
  // When only reads are under way, the second drive decides: 6 bytes at 6 a second.
  EXPECT_DOUBLE_EQ(run(read, r).seconds, 1);
}

TEST(Simulate, LanesRunAheadByOneBody) {
  // a takes 1 s a body, slow 10 s. The third body starts only when the first has ended on all lanes, at 10.
  const Program p = program(tasks({{1, 0}, {10, 0}}), "0 a:1 run 0\n1 slow:1 run 1\n");
  const SimulationResult s = run(p, unit_rates(), {0, 0, 0, 0});
  expect_time(s, 0, 0, 0, 1);
  expect_time(s, 1, 0, 1, 2);
  expect_time(s, 2, 0, 10, 11);
  expect_time(s, 3, 0, 20, 21);
  expect_time(s, 3, 1, 30, 40);
  EXPECT_DOUBLE_EQ(s.seconds, 40);
}

TEST(Simulate, WaitsOnTheBodyBeforeDependOnWhichItWas) {
  const std::string work = tasks({{1, 0}, {5, 0}});
  const Program p =
      program({{"short", work, "0 a:1 run 0\n1 b:1 run 0\n2 c:1 raw 1 after b:1\n", "short long"},
               {"long", work, "0 a:1 run 0 after short/b:1 after long/c:1\n1 b:1 run 1\n2 c:1 raw 1\n",
                "short long"}});
  SimulationResult s = run(p, unit_rates(), {0, 1, 1});
  expect_time(s, 0, 2, 1, 6);
  expect_time(s, 1, 0, 1, 2);    // after the short one: its b ends at 1
  expect_time(s, 1, 2, 6, 11);   // c is in order
  expect_time(s, 2, 0, 11, 12);  // after the long one: its c ends at 11
  EXPECT_THROW(run(program({{"x", work, "", "y"}, {"y", work, "", ""}}), unit_rates(), {0, 0}),
               std::invalid_argument);
}

TEST(Simulate, EmptyBodiesAndZeroWork) {
  const Program p =
      program(tasks({{0, 0}, {2, 0}}), "0 a:1 run 0\n1 b:1 run 0 after a:1\n2 a:2 run 1 after b:1\n");
  EXPECT_DOUBLE_EQ(run(p, unit_rates(), {0, 0}).seconds, 4);
  EXPECT_EQ(run(program("", ""), unit_rates(), {0, 0, 0}).seconds, 0);
  EXPECT_EQ(run(p, unit_rates(), {}).seconds, 0);
}

TEST(Simulate, SteadyStepLeavesOutTheEnds) {
  // A copy of 2 s, a task of 3 s and a copy of 1 s take 6 s alone. Repeated, they take 3 s a step, since the
  // copies overlap with tasks.
  const Program p = program(tasks({{3, 0}}),
                            "0 down:1 copy x2@0 host+0 -> device+0\n1 a:1 run 0 after down:1\n"
                            "2 up:1 copy x1@0 device+0 -> host+0 after a:1\n");
  EXPECT_DOUBLE_EQ(run(p, unit_rates()).seconds, 6);
  const std::vector<BodyId> step{0};
  EXPECT_DOUBLE_EQ(steady_step_seconds(p, unit_rates(), step), 3);
  EXPECT_DOUBLE_EQ(steady_step_seconds(p, unit_rates(), step, 2, 3), 3);
}

TEST(Simulate, LoadsAreTheLeastThatResourcesTake) {
  // a has 1 s of overhead and runs 3 s. While they flow at 1 byte/s, a and down each use 2 of the memory's 4
  // bytes a second.
  const Program p = program(tasks({{0, 3}, {2, 0}}),
                            "0 a:1 run 0\n1 down:1 copy x4@0 host+0 -> device+0\n2 b:1 run 1 after down:1\n"
                            "3 read:1 copy x8@0 nvme+0 -> host+0\n4 write:1 copy x2@0 host+0 -> nvme+0\n");
  MachineRates r = unit_rates();
  r.pools = {{"memory", 4}, {"cores", 2}};
  r.lanes[0].overhead_seconds = 1;
  r.links[2].latency_seconds = 9;  // the lane overlaps it
  r.lanes[0].sharing.per_byte = r.links[0].sharing.per_byte = {{0, 2}};
  r.lanes[1].sharing.occupies = {{1, 1}};
  r.drives = {{"nvme", 4, 2, 2}, {"nvme", 4, 2, 4}};
  const Loads loads = loads_of(p, r, std::vector<BodyId>{0});
  EXPECT_DOUBLE_EQ(loads.lanes[lane(p, "a")], 4);
  EXPECT_DOUBLE_EQ(loads.lanes[lane(p, "b")], 2);
  EXPECT_DOUBLE_EQ(loads.lanes[lane(p, "down")], 4);
  EXPECT_DOUBLE_EQ(loads.lanes[lane(p, "read")], 8);
  EXPECT_DOUBLE_EQ(loads.lanes[lane(p, "write")], 2);
  EXPECT_DOUBLE_EQ(loads.lanes[lane(p, "up")], 0);
  ASSERT_EQ(loads.pools.size(), 2u);
  EXPECT_DOUBLE_EQ(loads.pools[0], (3 + 4) * 2 / 4.0);
  EXPECT_DOUBLE_EQ(loads.pools[1], 2 * 1 / 2.0);
  // The drive shares are 2 and 4. The first drive reads 8/3 bytes in 2/3 s and writes 2/3 in 1/3 s, at best
  // one after the other, since at once it reads one and writes one byte a second. The second reads 16/3 bytes
  // and writes 4/3. It reads 2 and writes 2 for 2/3 s, in which the write ends and 4/3 are read; the rest
  // takes 1 s.
  ASSERT_EQ(loads.drives.size(), 2u);
  EXPECT_DOUBLE_EQ(loads.drives[0], 1);
  EXPECT_DOUBLE_EQ(loads.drives[1], 5 / 3.0);

  const Loads copies = loads_of(p, r, std::vector<BodyId>{0},
                                [](const Body&, const Instruction& in) { return in.task == kNoTask; });
  EXPECT_DOUBLE_EQ(copies.lanes[lane(p, "a")], 0);
  EXPECT_DOUBLE_EQ(copies.lanes[lane(p, "down")], 4);
  EXPECT_DOUBLE_EQ(copies.pools[0], 4 * 2 / 4.0);
  EXPECT_DOUBLE_EQ(copies.pools[1], 0);
  EXPECT_DOUBLE_EQ(copies.drives[0], 1);
}

TEST(Simulate, ObjectsToWhatItCannotPredict) {
  const Program p = program(tasks({{1, 0}}), "0 a:1 run 0\n");
  MachineRates r = unit_rates();
  r.lanes.clear();
  try {
    run(p, r);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    EXPECT_STREQ(e.what(), "The machine description `one` has no rates for tasks on lane a.");
  }
  r = unit_rates();
  r.links.clear();
  EXPECT_EQ(run(p, r).seconds, 1);  // no copy, no need
  EXPECT_THROW(run(program("", "0 down:1 copy x1@0 host+0 -> device+0\n"), r), Error);
  EXPECT_THROW(run(p, unit_rates(), {1}), std::invalid_argument);
  EXPECT_THROW(run(program(tasks({{1, 0}}), "0 a:1 run 0 after a:1\n"), unit_rates()), std::invalid_argument);
}

// On any program: a lane is busy at least as long as its work takes. The whole program takes at least as long
// as any lane, pool or drive is needed. A machine that is twice as fast in everything takes half as long.
TEST(Simulate, RandomPrograms) {
  MachineRates r = default_machine_rates();
  MachineRates twice = r;
  for (PoolRate& p : twice.pools) p.capacity *= 2;
  for (DriveRates& d : twice.drives) d.read *= 2, d.write *= 2, d.mixed *= 2;
  for (LaneRates& l : twice.lanes) {
    l.flops.fp32 *= 2, l.flops.bf16 *= 2, l.flops.fp16 *= 2, l.bytes_per_second *= 2, l.overhead_seconds /= 2;
    for (PoolUse& u : l.sharing.occupies) u.amount *= 2;
  }
  for (LinkRates& l : twice.links) {
    l.bytes_per_second *= 2, l.latency_seconds /= 2;
    for (PoolUse& u : l.sharing.occupies) u.amount *= 2;
  }
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Program p = testing::random_program(seed);
    const std::vector<BodyId> sequence = {0, 4, 1, 2, 2, 3, 4};
    const SimulationResult s = run(p, r, sequence);
    for (const double busy : s.lane_busy) EXPECT_LE(busy, s.seconds * (1 + 1e-12));
    for (BodyId b = 0; b < p.bodies.size(); ++b) {
      const SimulationResult alone = simulate(p, r, std::vector<BodyId>{b});
      const Loads loads = loads_of(p, r, {&b, 1});
      for (const auto& all : {loads.lanes, loads.pools, loads.drives})
        for (const double load : all) EXPECT_LE(load, alone.seconds * (1 + 1e-12));
      for (LaneId l = 0; l < loads.lanes.size(); ++l) {
        double work = loads.lanes[l];
        for (const double lost : alone.lane_slowed[l]) work += lost;
        // Lanes that overlap are also busy with latencies. Sums are rounded.
        EXPECT_GE(alone.lane_busy[l], work * (1 - 1e-9));
        if (p.machine.lanes[l].overlapping) continue;
        EXPECT_LE(alone.lane_busy[l], work * (1 + 1e-9));
      }
    }
    for (size_t position = 0; position < sequence.size(); ++position)
      for (const InstructionTime& t : s.times[position]) {
        EXPECT_GT(t.end, t.begin);
        EXPECT_LE(t.end, s.seconds);
      }
    EXPECT_NEAR(run(p, twice, sequence).seconds, s.seconds / 2, 1e-9 * s.seconds);  // rounding of sums
  }
}

TEST(Simulate, TwentyThousandInstructionsAreFewMilliseconds) {
  const Program p = testing::random_program(7, {40, 40, 2600, 300, 600});
  const std::vector<BodyId> sequence = {0, 1, 2, 3};
  size_t instructions = 0;
  for (const BodyId b : sequence) instructions += p.bodies[b].instructions.size();
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_GT(simulate(p, default_machine_rates(), sequence).seconds, 0);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  std::printf("simulated %zu instructions in %.1f ms (median of 5)\n", instructions, 1e3 * seconds[2]);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(seconds[2] / static_cast<double>(instructions),
            2.5e-6);  // 0.3 to 0.6 us measured; the rest is for noise
#endif
}

}  // namespace
}  // namespace sluice
