// Idle time and the instructions that are charged with it: by hand on machines of a flop and a byte a second,
// and on random and planned programs. There, charges must be chains that take as long as the lane was idle.
#include "engine/profile/attribute.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <limits>
#include <random>

#include "tests/support/plan_support.h"
#include "tests/support/random_program.h"
#include "tests/support/unit_machine.h"

namespace sluice {
namespace {

using testing::lane;
using testing::program;
using testing::tasks;
using testing::unit_rates;

struct Simulated {
  Simulated(Program p, std::vector<BodyId> bodies = {0}, const MachineRates& rates = unit_rates())
      : program(std::move(p)),
        sequence(std::move(bodies)),
        times(simulate(program, rates, sequence, true).times),
        history{program, sequence, times} {}
  Simulated(const Simulated&) = delete;
  const Program program;
  const std::vector<BodyId> sequence;
  std::vector<std::vector<InstructionTime>> times;
  const History history;
};

// "1.0 [2, 4]": instruction 0 of position 1, executed from 2 to 4. A question mark means that it was not
// executing then.
std::string words(const std::vector<Charge>& charges) {
  std::string out;
  for (const Charge& c : charges) {
    char row[80];
    std::snprintf(row, sizeof row, "%s%zu.%u%s [%g, %g]", out.empty() ? "" : ", ", c.position, c.instruction,
                  c.executed ? "" : "?", c.begin, c.end);
    out += row;
  }
  return out;
}
// "before 0.3: ...", one interval a line.
std::string words(const std::vector<Idle>& idles) {
  std::string out;
  for (const Idle& i : idles) {
    const std::string next = i.instruction == kNoInstruction
                                 ? "the end"
                                 : std::to_string(i.position) + "." + std::to_string(i.instruction);
    out += "before " + next + ": " + words(i.charges) + "\n";
  }
  return out;
}
std::string idle_words(const Simulated& s, const char* name) {
  return words(idle_intervals(s.history, lane(s.program, name)));
}

TEST(Attribute, FollowsWaitsAcrossLanes) {
  // read takes 0-4; down waits for it, 4-6; a waits for down, 6-9; b runs 0-5 beside them; up waits for a and
  // b, 9-10.
  const Simulated s(program(tasks({{3, 0}, {5, 0}}),
                            "0 read:1 copy x4@0 nvme+0 -> host+0\n"
                            "1 down:1 copy x2@0 host+0 -> device+0 after read:1\n"
                            "2 b:1 run 1\n"
                            "3 a:1 run 0 after down:1\n"
                            "4 up:1 copy x1@0 device+0 -> host+0 after a:1 after b:1\n"));
  EXPECT_EQ(compute_lane(s.program.machine), lane(s.program, "a"));
  EXPECT_EQ(idle_words(s, "a"), "before 0.3: 0.0 [0, 4], 0.1 [4, 6]\nbefore the end: 0.4 [9, 10]\n");
  EXPECT_EQ(idle_words(s, "b"), "before the end: 0.1 [5, 6], 0.3 [6, 9], 0.4 [9, 10]\n");
  EXPECT_EQ(idle_words(s, "c"), "before the end: 0.0 [0, 4], 0.1 [4, 6], 0.3 [6, 9], 0.4 [9, 10]\n");
  EXPECT_EQ(words(critical_path(s.history)), "0.0 [0, 4], 0.1 [4, 6], 0.3 [6, 9], 0.4 [9, 10]");
}

TEST(Attribute, ALaneIsOftenBusyWithWhatComesBefore) {
  // down copies 0-4 for nobody, 4-6 and 6-8 for a. a runs 6-7 and 8-9.
  const Simulated s(program(tasks({{1, 0}, {1, 0}}),
                            "0 down:1 copy x4@0 host+0 -> device+0\n"
                            "1 down:2 copy x2@0 host+0 -> device+4\n"
                            "2 a:1 run 0 after down:2\n"
                            "3 down:3 copy x2@0 host+0 -> device+6\n"
                            "4 a:2 run 1 after down:3\n"));
  EXPECT_EQ(idle_words(s, "a"), "before 0.2: 0.0 [0, 4], 0.1 [4, 6]\nbefore 0.4: 0.3 [7, 8]\n");
}

TEST(Attribute, OnOverlappingLanesBytesFlowInTurn) {
  // Latency 1: both reads start at 0; bytes of the first flow 1-5, of the second 5-9. a waits for the second.
  MachineRates r = unit_rates();
  r.links[2].latency_seconds = 1;
  const char* const reads = "0 read:1 copy x4@0 nvme+0 -> host+0\n1 read:2 copy x4@0 nvme+4 -> host+4\n";
  const Simulated s(program(tasks({{1, 0}}), std::string(reads) + "2 a:1 run 0 after read:2\n"), {0}, r);
  EXPECT_EQ(idle_words(s, "a"), "before 0.2: 0.0 [0, 5], 0.1 [5, 9]\n");
  // The second read starts when b is done, at 7, after the first has its bytes. So b is its cause.
  const Simulated late(program(tasks({{1, 0}, {7, 0}}),
                               "0 b:1 run 1\n1 read:1 copy x4@0 nvme+0 -> host+0\n"
                               "2 read:2 copy x4@0 nvme+4 -> host+4 after b:1\n"
                               "3 a:1 run 0 after read:2\n"),
                       {0}, r);
  EXPECT_EQ(idle_words(late, "a"), "before 0.3: 0.0 [0, 7], 0.2 [7, 12]\n");
  EXPECT_EQ(idle_words(late, "read"), "before 0.2: 0.0 [5, 7]\nbefore the end: 0.3 [12, 13]\n");
}

TEST(Attribute, WhatASharedPoolSlowsDownIsChargedLonger) {
  // Both copies share memory of a byte a second: beside up, down takes 4 s for its 2 bytes. a waits for down.
  MachineRates r = unit_rates();
  r.pools = {{"memory", 1}};
  r.links[0].sharing.per_byte = r.links[1].sharing.per_byte = {{0, 1}};
  const Simulated s(program(tasks({{1, 0}}),
                            "0 down:1 copy x2@0 host+0 -> device+0\n"
                            "1 up:1 copy x4@0 device+8 -> host+8\n"
                            "2 a:1 run 0 after down:1\n"),
                    {0}, r);
  EXPECT_EQ(idle_words(s, "a"), "before 0.2: 0.0 [0, 4]\nbefore the end: 0.1 [5, 6]\n");
}

TEST(Attribute, LanesRunAheadByOneBody) {
  // a takes 1 s a body, slow 10 s. From the third body on, a waits until all lanes have completed the last
  // but one.
  const Simulated s(program(tasks({{1, 0}, {10, 0}}), "0 a:1 run 0\n1 slow:1 run 1\n"), {0, 0, 0, 0});
  EXPECT_EQ(idle_words(s, "a"),
            "before 2.0: 0.1 [2, 10]\nbefore 3.0: 1.1 [11, 20]\n"
            "before the end: 2.1 [21, 30], 3.1 [30, 40]\n");
  EXPECT_EQ(idle_words(s, "slow"), "");
  EXPECT_EQ(words(critical_path(s.history)), "0.1 [0, 10], 1.1 [10, 20], 2.1 [20, 30], 3.1 [30, 40]");
}

TEST(Attribute, WaitsOnTheBodyBeforeDependOnWhichItWas) {
  // In body short, c takes 5 s after b's 1 s; in body long, b takes 5 s. The first instruction of long waits
  // for b if a short body came before, and for c if a long one did.
  const std::string work = tasks({{1, 0}, {5, 0}});
  const Simulated s(
      program({{"short", work, "0 a:1 run 0\n1 b:1 run 0\n2 c:1 raw 1 after b:1\n", "short long"},
               {"long", work, "0 a:1 run 0 after short/b:1 after long/c:1\n1 b:1 run 1\n2 c:1 raw 1\n",
                "short long"}}),
      {0, 1, 1});
  EXPECT_EQ(idle_words(s, "a"), "before 2.0: 0.2 [2, 6], 1.2 [6, 11]\nbefore the end: 2.2 [12, 16]\n");
}

TEST(Attribute, SumsByWork) {
  const Simulated s(program(tasks({{3, 0}, {5, 0}}),
                            "0 read:1 copy x4@0 nvme+0 -> host+0\n"
                            "1 read:2 copy x1@0 nvme+0 -> host+4\n"
                            "2 down:1 copy x2@0 host+0 -> device+0 after read:2\n"
                            "3 a:1 run 0 after down:1\n"));
  const std::vector<Charge> path = critical_path(s.history);
  const std::vector<WorkSeconds> sums = sum_by_work(s.history, path, false);
  ASSERT_EQ(sums.size(), 3u);
  EXPECT_EQ(sums[0].work.lane, lane(s.program, "read"));
  EXPECT_EQ(sums[0].seconds, 5);
  EXPECT_FALSE(sums[0].work.task.has_value());
  EXPECT_EQ(sums[0].work.moved, BufferClass::state);
  EXPECT_EQ(work_name(s.program, sums[0].work), "state from nvme to host");
  EXPECT_EQ(sums[1].work.task, TaskKind::forward);
  EXPECT_EQ(work_name(s.program, sums[1].work), "forward");
  EXPECT_EQ(sums[1].seconds, 3);
  EXPECT_EQ(sums[2].work.lane, lane(s.program, "down"));
  EXPECT_EQ(sums[2].seconds, 2);
  const std::vector<WorkSeconds> subjects = sum_by_work(s.history, path, true);
  ASSERT_EQ(subjects.size(), 4u);  // x4 and x1 are two
  EXPECT_EQ(s.program.buffers[subjects[0].work.subject].name, "x4");
  EXPECT_EQ(words(within(path, 4.5, 6)), "0.1 [4.5, 5], 0.2 [5, 6]");
}

// --- measured times: clocks that differ, threads that wake up late, runs that end half-way ---

constexpr const char* kCopyAndTwoTasks =
    "0 down:1 copy x2@0 host+0 -> device+0\n1 a:1 run 0 after down:1\n2 a:2 run 1\n";

TEST(Attribute, AnInstructionThatStartsLateIsChargedItself) {
  // down copies 0-2. a waits for it and begins only at 2.5. Its second instruction begins 0.25 late without
  // any wait.
  Simulated s(program(tasks({{1, 0}, {1, 0}}), kCopyAndTwoTasks));
  s.times = {{{0, 2}, {2.5, 3.5}, {3.75, 4.75}}};
  EXPECT_EQ(idle_words(s, "a"), "before 0.1: 0.0 [0, 2], 0.1? [2, 2.5]\nbefore 0.2: 0.2? [3.5, 3.75]\n");
  EXPECT_EQ(words(critical_path(s.history)),
            "0.0 [0, 2], 0.1? [2, 2.5], 0.1 [2.5, 3.5], 0.2? [3.5, 3.75], 0.2 [3.75, 4.75]");
  const std::vector<WorkSeconds> sums = sum_by_work(s.history, critical_path(s.history), false);
  ASSERT_EQ(sums.size(), 3u);
  EXPECT_EQ(sums[2].seconds, 0.75);
  EXPECT_FALSE(sums[2].work.executed);
}

TEST(Attribute, AnInstructionMaySeemToBeginBeforeItsCauseEnded) {
  Simulated s(program(tasks({{1, 0}}), "0 down:1 copy x2@0 host+0 -> device+0\n1 a:1 run 0 after down:1\n"));
  s.times = {{{0, 2.25}, {2, 3}}};
  EXPECT_EQ(idle_words(s, "a"), "before 0.1: 0.0 [0, 2]\n");
  s.times = {{{2.5, 2.25}, {2, 3}}};  // it ends before it begins: it took no time
  EXPECT_EQ(idle_words(s, "a"), "");
  EXPECT_EQ(words(critical_path(s.history)), "0.1 [2, 3]");
}

TEST(Attribute, WhatDidNotRunIsNoCause) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  Simulated s(program(tasks({{1, 0}, {1, 0}}), kCopyAndTwoTasks), {0, 0, 0});
  s.times = {{{0, 2}, {2, 3}, {kNever, kNever}}};  // the other bodies have no times at all
  EXPECT_EQ(idle_words(s, "a"), "before 0.1: 0.0 [0, 2]\n");
  EXPECT_EQ(words(critical_path(s.history)), "0.0 [0, 2], 0.1 [2, 3]");
  s.times = {{{kNever, kNever}, {2, 3}, {3, 4}}};
  EXPECT_EQ(idle_words(s, "a"), "");
  s.times.clear();
  EXPECT_EQ(idle_words(s, "a"), "");
  EXPECT_TRUE(critical_path(s.history).empty());
}

// --- any program ---

// When each instruction did its work on its lane, one after the other.
std::vector<std::vector<InstructionTime>> executed(const Simulated& s) {
  std::vector<std::vector<InstructionTime>> out = s.times;
  std::vector<double> until(s.program.machine.lanes.size());
  for (size_t at = 0; at < out.size(); ++at)
    for (size_t i = 0; i < out[at].size(); ++i) {
      double& end = until[s.program.bodies[s.sequence[at]].instructions[i].lane];
      out[at][i].begin = std::max(out[at][i].begin, end);
      end = out[at][i].end;
    }
  return out;
}

// The ends of all instructions, by position and instruction, if each takes `seconds` of its lane and starts
// as soon as the rules of program.h allow.
using Seconds = std::vector<std::vector<double>>;
Seconds ends_of(const Simulated& s, const Seconds& seconds) {
  const size_t lanes = s.program.machine.lanes.size();
  std::vector<std::vector<std::vector<double>>> done;  // by position and lane: ends, in order
  Seconds ends;
  std::vector<double> until(lanes), before_last(lanes), last(lanes);
  for (size_t at = 0; at < s.sequence.size(); ++at) {
    const Body& body = s.program.bodies[s.sequence[at]];
    const double all = *std::max_element(before_last.begin(), before_last.end());
    done.emplace_back(lanes);
    ends.emplace_back();
    for (size_t i = 0; i < body.instructions.size(); ++i) {
      const Instruction& in = body.instructions[i];
      double begin = std::max(until[in.lane], all);
      if (const Wait w = at > 0 ? when_decided(s.program.bodies[s.sequence[at - 1]]) : Wait{}; w.count > 0)
        begin = std::max(begin, done[at - 1][w.lane][w.count - 1]);
      for (const Wait& w : in.waits) begin = std::max(begin, done[at][w.lane][w.count - 1]);
      for (size_t p = 0; at > 0 && p < in.waits_before.size(); ++p)
        if (body.predecessors[p] == s.sequence[at - 1])
          for (const Wait& w : in.waits_before[p]) begin = std::max(begin, done[at - 1][w.lane][w.count - 1]);
      until[in.lane] = begin + seconds[at][i];
      done[at][in.lane].push_back(until[in.lane]);
      ends[at].push_back(until[in.lane]);
    }
    before_last = last;
    last = until;
  }
  return ends;
}

Seconds nothing_of(const Simulated& s) {
  Seconds out;
  for (const auto& times : s.times) out.emplace_back(times.size());
  return out;
}

// Charges have no gaps and are of instructions that were executing. They are a chain: if only the charged
// work took time, its parts would still run one after the other.
void expect_chain(const Simulated& s, const std::vector<std::vector<InstructionTime>>& execution,
                  const std::vector<Charge>& charges, double begin, double end) {
  ASSERT_FALSE(charges.empty());
  Seconds seconds = nothing_of(s);
  EXPECT_EQ(charges.back().end, end);
  for (size_t c = 0; c < charges.size(); ++c) {
    const Charge& charge = charges[c];
    const Body& body = s.program.bodies[s.sequence[charge.position]];
    EXPECT_EQ(charge.begin, c == 0 ? begin : charges[c - 1].end);
    EXPECT_LT(charge.begin, charge.end);
    EXPECT_TRUE(charge.executed);
    EXPECT_EQ(charge.lane, body.instructions[charge.instruction].lane);
    EXPECT_GE(charge.begin, execution[charge.position][charge.instruction].begin);
    EXPECT_LE(charge.end, execution[charge.position][charge.instruction].end);
    seconds[charge.position][charge.instruction] = charge.seconds();
  }
  const Seconds ends = ends_of(s, seconds);
  const Charge& last = charges.back();
  EXPECT_NEAR(ends[last.position][last.instruction], end - begin, 1e-12 * end);  // sums are rounded
}

void expect_sound(const Simulated& s) {
  const std::vector<std::vector<InstructionTime>> execution = executed(s);
  std::vector<double> busy(s.program.machine.lanes.size());
  Seconds seconds = nothing_of(s);
  double all = 0;
  for (size_t at = 0; at < execution.size(); ++at)
    for (size_t i = 0; i < execution[at].size(); ++i) {
      const InstructionTime& t = execution[at][i];
      seconds[at][i] = t.end - t.begin;
      busy[s.program.bodies[s.sequence[at]].instructions[i].lane] += seconds[at][i];
      all = std::max(all, t.end);
    }
  const Seconds ends = ends_of(s, seconds);  // the rules as tried here are those of the simulator
  for (size_t at = 0; at < ends.size(); ++at)
    for (size_t i = 0; i < ends[at].size(); ++i) EXPECT_NEAR(ends[at][i], execution[at][i].end, 1e-12 * all);
  for (LaneId l = 0; l < busy.size(); ++l) {
    double idle = 0;
    for (const Idle& interval : idle_intervals(s.history, l)) {
      expect_chain(s, execution, interval.charges, interval.begin, interval.end);
      idle += interval.end - interval.begin;
    }
    EXPECT_NEAR(idle + busy[l], all, 1e-12 * all) << "lane " << int{l};
  }
  expect_chain(s, execution, critical_path(s.history), 0, all);
}

TEST(Attribute, RandomPrograms) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    const Simulated s(testing::random_program(seed), {0, 4, 1, 2, 2, 3, 4}, default_machine_rates());
    expect_sound(s);
    if (HasFailure()) return;
  }
}

// Programs have plenty of memory, then the least of the first tiers, one tier more each time.
TEST(Attribute, PlannedPrograms) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(seed);
    testing::Case c = testing::random_case(seed);
    const size_t tiers = c.program.machine.tiers.size();
    for (size_t shrunk = 0; shrunk <= tiers; ++shrunk) {
      if (shrunk > 0) testing::shrink(c, static_cast<TierId>(shrunk - 1));
      ASSERT_FALSE(assemble(c.program, c.arrangement).has_value());
      const BodyIds& bodies = c.lowering.bodies();
      std::vector<BodyId> sequence = bodies.step_from(*bodies.first);
      if (bodies.repair) std::ranges::copy(bodies.step_from(*bodies.repair), std::back_inserter(sequence));
      const std::vector<BodyId> steps = repeated(bodies.usual(), 3);
      sequence.insert(sequence.end(), steps.begin(), steps.end());
      if (bodies.drain) sequence.push_back(*bodies.drain);
      expect_sound(Simulated(c.program, sequence, default_machine_rates()));
      if (HasFailure()) return;
    }
  }
}

// Charges fill each interval without gaps even if times contradict the program by some microseconds.
TEST(Attribute, ChargesAddUpWhateverClocksSay) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> off(0, 5e-6);  // seconds; so some instructions end before they begin
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Simulated s(testing::random_program(seed), {0, 4, 1, 2, 2, 3, 4}, default_machine_rates());
    for (auto& body : s.times)
      for (InstructionTime& t : body) t = {t.begin + off(random), t.end + off(random)};
    for (LaneId l = 0; l < s.program.machine.lanes.size(); ++l)
      for (const Idle& idle : idle_intervals(s.history, l)) {
        ASSERT_LT(idle.begin, idle.end);
        ASSERT_EQ(idle.charges.front().begin, idle.begin);
        ASSERT_EQ(idle.charges.back().end, idle.end);
        for (size_t c = 1; c < idle.charges.size(); ++c)
          ASSERT_EQ(idle.charges[c].begin, idle.charges[c - 1].end);
      }
  }
}

TEST(Attribute, FiftyThousandInstructionsAreFewMilliseconds) {
  std::vector<BodyId> sequence(9, 2);
  sequence.front() = 0, sequence[1] = 1;
  const Simulated s(testing::random_program(7, {40, 40, 2600, 300, 600}), sequence, default_machine_rates());
  size_t instructions = 0;
  for (const auto& body : s.times) instructions += body.size();
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<Idle> idles = idle_intervals(s.history, compute_lane(s.program.machine));
  const std::vector<Charge> path = critical_path(s.history);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%zu instructions, %zu idle intervals, a path of %zu: %.1f ms\n", instructions, idles.size(),
              path.size(), 1e3 * seconds);
  EXPECT_FALSE(idles.empty());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(seconds / static_cast<double>(instructions), 0.1 / 50000);
#endif
}

}  // namespace
}  // namespace sluice
