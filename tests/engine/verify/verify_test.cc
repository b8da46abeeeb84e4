// The verifier accepts what is correct and objects to every single fault, each for the stated reason.
#include "engine/verify/verify.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>

#include "tests/support/figures.h"
#include "tests/support/mutate.h"
#include "tests/support/random_program.h"

namespace sluice {
namespace {

using testing::kPrograms;
using testing::kSanitized;
using testing::Mutated;
using testing::Mutation;

// A step that reads weights from the file, computes, updates the weights in host memory and writes them back.
// Scalar t has one slot for each step: the first task reads this step's slot, the second overwrites that of
// the step before.
constexpr const char* kStep = R"(sluice program 1
tier device capacity 1024 alignment 64
tier host capacity 1024 alignment 64
tier nvme capacity 1024 alignment 64 file
lane compute
lane h2d
lane d2h
lane nvme_read overlapping
lane nvme_write overlapping
lane optimizer
link host device h2d alignment 64
link device host d2h alignment 64
link nvme host nvme_read alignment 64
link host nvme nvme_write alignment 64
unit forward compute device
unit optimize optimizer host
ring train
buffer w weights permanent home nvme+0 pieces 64x2
buffer x activations home device pieces 64
buffer k workspace home device pieces 64
buffer t scalars permanent home device+0 ring train stride 64 pieces 64
arena 512 128 128
body step clean -> clean advance 1 peak 512 128 128 after step
tasks step
0 forward 0/0 flops 100 bytes 256 read w@0 write x@0 read t@0 write k@0
1 forward 1/0 flops 100 bytes 256 add x@1 write t~1@0
2 optimize 0/0 flops 0 bytes 128 add w@0
instructions step
0 nvme_read:1 copy w@0 nvme+0 -> host+0 after step/nvme_write:1
1 h2d:1 copy w@0 host+0 -> device+192 after nvme_read:1 after step/compute:1
2 compute:1 run 0 at device+192 device+320 device+0 device+384 after h2d:1
3 compute:2 run 1 at device+320 device+0
4 optimizer:1 run 2 at host+0 after h2d:1
5 nvme_write:1 copy w@1 host+0 -> nvme+0 after optimizer:1
)";

std::string all(const Program& p, const std::vector<Violation>& violations) {
  std::string text;
  for (const Violation& v : violations) text += describe(p, v) + "\n";
  return text;
}
std::string all(const Program& p) { return all(p, verify(p)); }

void expect_violation(const Program& p, const std::string& what) {
  const std::string text = all(p);
  EXPECT_NE(text.find(what), std::string::npos) << "expected: " << what << "\nfound:\n" << text;
}

using Change = std::function<void(Program&)>;
struct Fault {
  const char* what;  // part of a violation
  Change change;
};
Instruction& at(Program& p, size_t i) { return p.bodies[0].instructions[i]; }

void expect_each(const std::vector<Fault>& faults) {
  for (const Fault& f : faults) {
    Program p = program_from_text(kStep);
    f.change(p);
    expect_violation(p, f.what);
  }
}

TEST(Verify, AcceptsTheHandMadeStep) {
  const Program p = program_from_text(kStep);
  EXPECT_EQ(all(p), "");
  EXPECT_TRUE(testing::still_correct(p));
}

TEST(Verify, ObjectsToTables) {
  expect_each({
      {"its capacity is 1024", [](Program& p) { p.arena_bytes[1] = 1025; }},
      {"the arena of host has 192 bytes, but the largest peak is 128",
       [](Program& p) { p.arena_bytes[1] = 192; }},
      {"2 arenas for 3 tiers", [](Program& p) { p.arena_bytes.pop_back(); }},
      {"tier host has alignment 48", [](Program& p) { p.machine.tiers[1].alignment = 48; }},
      {"a link names tiers 7", [](Program& p) { p.machine.links[0].from = 7; }},
      {"the cuts of buffer w do not rise",
       [](Program& p) {
         p.buffers[0].cuts = {0, 64, 64};
       }},
      {"buffer x has its home in tier 9", [](Program& p) { p.buffers[1].home = 9; }},
      {"buffer t is in ring 3", [](Program& p) { p.buffers[3].ring = 3; }},
      {"buffer t is in a ring and not permanent", [](Program& p) { p.buffers[3].permanent = false; }},
      {"the home of buffer w is not inside the arena", [](Program& p) { p.buffers[0].home_offset = 64; }},
      {"the home of buffer t is not inside",
       [](Program& p) { p.buffers[3].slot_stride = uint64_t{1} << 63; }},
      {"the home of buffer t is not aligned", [](Program& p) { p.buffers[3].home_offset = 32; }},
      {"the homes of buffers t and t overlap", [](Program& p) { p.buffers[3].slot_stride = 0; }},
      {"exceed 4611686018427387904 bytes", [](Program& p) { p.buffers[3].cuts[1] = uint64_t{1} << 62; }},
      {"its predecessors are not", [](Program& p) { p.bodies[0].predecessors.clear(); }},
      {"does not advance every ring", [](Program& p) { p.bodies[0].advance[0] = 2; }},
      {"its peak of 1024 bytes exceeds", [](Program& p) { p.bodies[0].peak_bytes[0] = 1024; }},
      {"its peak leaves out the home of w", [](Program& p) { p.bodies[0].peak_bytes[2] = 64; }},
  });
}

TEST(Verify, ObjectsToOperandsAndTransfers) {
  expect_each({
      {"is on lane 9", [](Program& p) { at(p, 0).lane = 9; }},
      {"has 1 places for 2 operands", [](Program& p) { at(p, 0).places.pop_back(); }},
      {"names buffer 99", [](Program& p) { at(p, 0).operands[0].buffer = 99; }},
      {"names pieces [0, 3) of w", [](Program& p) { at(p, 0).operands[0].last = 3; }},
      {"names pieces [1, 1) of w",
       [](Program& p) {
         at(p, 0).operands[0] = {0, 1, 1};
       }},
      {"names slot 1 back of w", [](Program& p) { at(p, 0).operands[0].back = 1; }},
      {"names slot 3 back of t", [](Program& p) { at(p, 3).operands[1].back = 3; }},
      {"has w in tier 5", [](Program& p) { at(p, 0).places[1].tier = 5; }},
      {"which is not aligned to 64", [](Program& p) { at(p, 1).places[1].offset = 200; }},
      {"beyond the body's peak of 512", [](Program& p) { at(p, 2).places[3].offset = 512; }},
      {"beyond the body's peak of 512", [](Program& p) { at(p, 2).places[3].offset = UINT64_MAX - 63; }},
      {"copies a range that is not aligned to 4096", [](Program& p) { p.machine.links[0].alignment = 4096; }},
      {"which no link does", [](Program& p) { at(p, 0).lane = 1; }},
      {"which no link does", [](Program& p) { at(p, 1).places[0].tier = 2; }},
      {"copies between different ranges", [](Program& p) { at(p, 0).operands[1].last = 1; }},
      {"is a transfer that does not read, then write",
       [](Program& p) { at(p, 0).operands[1].access = Access::add; }},
      {"is a transfer of 1 operands",
       [](Program& p) { at(p, 0).operands.pop_back(), at(p, 0).places.pop_back(); }},
      {"copies a workspace",
       [](Program& p) {
         at(p, 0).operands[0].buffer = at(p, 0).operands[1].buffer = 2,
               at(p, 0).operands[0].last = at(p, 0).operands[1].last = 1;
       }},
  });
}

TEST(Verify, ObjectsToTasksAndWaits) {
  expect_each({
      {"runs task 9", [](Program& p) { at(p, 2).task = 9; }},
      {"task 1 is in 2 instructions", [](Program& p) { at(p, 2).task = 1; }},
      {"task 0 is in 0 instructions", [](Program& p) { at(p, 2).task = 1; }},
      {"has other operands than its task 0", [](Program& p) { at(p, 2).operands[0].version = 1; }},
      {"has other operands than its task 0",
       [](Program& p) { std::swap(at(p, 2).operands[0], at(p, 2).operands[1]); }},
      {"runs norm on lane compute", [](Program& p) { p.bodies[0].tasks[0].kind = TaskKind::norm; }},
      {"runs optimize on lane compute", [](Program& p) { at(p, 4).lane = 0; }},
      {"names process group 0", [](Program& p) { p.bodies[0].tasks[0].kind = TaskKind::gather; }},
      {"is a collective that does not read, then write",
       [](Program& p) {
         p.processes = {{"all", 2, 1}};
         p.bodies[0].tasks[0].kind = TaskKind::exchange;
       }},
      {"runs forward on operands in tier host",
       [](Program& p) {
         at(p, 2).places[0] = {1, 0};
       }},
      {"waits for instruction 2 of lane nvme_read, which is not an earlier one of this body",
       [](Program& p) { at(p, 1).waits[0].count = 2; }},
      {"waits for instruction 1 of lane optimizer",
       [](Program& p) {
         at(p, 1).waits.push_back({5, 1});
       }},
      {"waits for instruction 0 of lane nvme_read", [](Program& p) { at(p, 1).waits[0].count = 0; }},
      {"waits twice for lane nvme_read",
       [](Program& p) {
         at(p, 1).waits.push_back({3, 1});
       }},
      {"waits for lane 12", [](Program& p) { at(p, 1).waits[0].lane = 12; }},
      {"waits for instruction 3 of lane compute, which is not in the body before",
       [](Program& p) { at(p, 1).waits_before[0][0].count = 3; }},
      {"has 0 lists of waits for 1 predecessors", [](Program& p) { at(p, 1).waits_before.clear(); }},
  });
}

// Keeps the first `count` instructions, makes new tasks for those of them that run one, and drops waits on
// the body before.
void keep_instructions(Program& p, size_t count) {
  p.bodies[0].instructions.resize(count);
  p.bodies[0].tasks.resize(0);
  for (Instruction& i : p.bodies[0].instructions) {
    for (auto& waits : i.waits_before) waits.clear();
    if (i.task == kNoTask) continue;
    p.bodies[0].tasks.push_back({TaskKind::forward, 0, 0, Recompute::none, 0, 0, i.operands});
    if (i.lane == 5) p.bodies[0].tasks.back().kind = TaskKind::optimize;
  }
}
void set_operands(Program& p, size_t i, std::vector<Operand> operands) {
  at(p, i).operands = p.bodies[0].tasks[at(p, i).task].operands = std::move(operands);
}

TEST(Verify, ObjectsToContents) {
  expect_each({
      {"demands w[0, 2) version 0 at device [128, 192) and finds garbage",
       [](Program& p) {
         at(p, 2).places[0].offset = 128;
         at(p, 2).places[3].offset = 448;
       }},
      {"demands w[1, 2) version 0 at nvme [0, 64) and finds version 0 of w from its byte 0",
       [](Program& p) {
         at(p, 0).operands[0] = {0, 1, 2}, at(p, 0).operands[1] = {0, 1, 2, Access::write};
       }},
      {"demands w[0, 2) version 1", [](Program& p) { at(p, 1).operands[0].version = 1; }},
      {"ends with version 0 of piece 0 of w at home, but version 1 was made",
       [](Program& p) { keep_instructions(p, 5); }},
      {"demands x[0, 1) version 0",
       [](Program& p) {
         set_operands(p, 2, {{0, 0, 2}, {1, 0, 1}, {3, 0, 1}, {2, 0, 1}});
       }},
      {"replaces version 0 of x[0, 1) when piece 0 is at version 1",
       [](Program& p) {
         set_operands(p, 3, {{1, 0, 1, Access::write, 0}, {3, 0, 1, Access::write, 0, 1}});
       }},
      {"writes x[0, 1) over a home of another range at device [64, 128)",
       [](Program& p) { at(p, 2).places[1].offset = at(p, 3).places[0].offset = 64; }},
      {"writes k[0, 1) over a home of another range", [](Program& p) { at(p, 2).places[3].offset = 128; }},
      {"has overlapping operands at device [384, 448)",
       [](Program& p) { at(p, 2).places[1].offset = at(p, 3).places[0].offset = 384; }},
      {"has overlapping operands at device [192, 256)", [](Program& p) { at(p, 2).places[3].offset = 192; }},
  });
}

TEST(Verify, WeightsAreNotThereBeforeTheyAreLoaded) {
  Program p = program_from_text(kStep);
  p.bodies[0].start = BodyState::empty;
  p.bodies[0].predecessors.clear();
  for (Instruction& i : p.bodies[0].instructions) i.waits_before.clear();
  expect_violation(p, "instruction 0 (nvme_read 1): demands w[0, 2) version 0 at nvme [0, 128)");
}

// kStep with weights that are empty while their update is pending, and with the states `start` and `end`.
Program made_weights(const char* access, BodyState start, BodyState end) {
  Program p = program_from_text(kStep);
  p.buffers[0].empty_in = {BodyState::pending};
  Body& step = p.bodies[0];
  step.start = start;
  step.end = end;
  if (!can_follow(end, start)) {
    step.predecessors.clear();
    for (Instruction& i : step.instructions) i.waits_before.clear();
  }
  if (std::string(access) != "write") return p;
  // Only the update is left. It makes the weights from nothing.
  step.tasks = {step.tasks[2]};
  step.tasks[0].operands[0].access = Access::write;
  step.instructions = {step.instructions[4], step.instructions[5]};
  step.instructions[0].task = 0;
  step.instructions[0].operands = step.tasks[0].operands;
  step.instructions[0].waits.clear();
  if (!step.predecessors.empty()) step.instructions[0].waits_before[0] = {{4, 1}};
  return p;
}

TEST(Verify, WeightsOfAPendingUpdateAreNotThere) {
  constexpr BodyState pending = BodyState::pending, guessed = BodyState::guessed;
  EXPECT_EQ(all(made_weights("read", BodyState::clean, BodyState::clean)), "");
  EXPECT_EQ(all(made_weights("read", guessed, guessed)), "") << "a right guess";
  expect_violation(made_weights("read", pending, guessed),
                   "instruction 0 (nvme_read 1): demands w[0, 2) version 0 at nvme [0, 128)");
  EXPECT_EQ(all(made_weights("write", pending, guessed)), "") << "a repair";
  EXPECT_EQ(all(made_weights("write", pending, BodyState::clean)), "");
}

TEST(Verify, ABodyLeavesNoWeightsUnmade) {
  for (const BodyState end : {BodyState::clean, BodyState::guessed, BodyState::pending}) {
    Program p = made_weights("write", BodyState::pending, end);
    p.bodies[0].tasks.clear();
    p.bodies[0].instructions.clear();
    if (end == BodyState::pending)
      EXPECT_EQ(all(p), "");
    else
      expect_violation(p, "ends without content of w");
  }
}

TEST(Verify, OperandsHaveTheRolesOfTheirTask) {
  const auto with = [](Role role, Access access) {
    Program p = program_from_text(kStep);
    Operand& o = p.bodies[0].tasks[2].operands[0];
    o.role = role, o.access = access;
    p.bodies[0].instructions[4].operands[0] = o;
    return p;
  };
  EXPECT_EQ(all(with(Role::none, Access::add)), "") << "a program whose text names no roles";
  expect_violation(with(Role::loss, Access::add), "optimize has no operand as loss");
  expect_violation(with(Role::gradient, Access::add), "optimize does not add what it has as gradient");
  expect_violation(with(Role::state, Access::add), "optimize has 0 operands as gradient");
  Program p = program_from_text(kStep);
  at(p, 0).operands[0].role = Role::weights;
  expect_violation(p, "is a transfer whose operands have roles");
}

TEST(Verify, OnlyPermanentBuffersAreEmptyInSomeStates) {
  for (const BufferId b : {1u, 3u}) {  // transient, and in a ring
    Program p = program_from_text(kStep);
    p.buffers[b].empty_in = {BodyState::pending};
    expect_violation(p, "is empty in some states");
  }
}

// After a wrong guess, a body that starts in `pending` follows.
TEST(Verify, BodiesFollowAGuessWhetherItIsRightOrWrong) {
  Program p = made_weights("write", BodyState::pending, BodyState::guessed);
  EXPECT_EQ(p.bodies[0].predecessors, std::vector<BodyId>{0});
  p.bodies[0].predecessors.clear();
  for (Instruction& i : p.bodies[0].instructions) i.waits_before.clear();
  expect_violation(p, "its predecessors are not the bodies that end in a state where it can start");
  EXPECT_FALSE(can_follow(BodyState::pending, BodyState::guessed));
  EXPECT_FALSE(can_follow(BodyState::guessed, BodyState::clean));
  EXPECT_FALSE(can_follow({.update = BodyState::Update::guessed, .shared = true}, BodyState::pending));
  for (const BodyState guess :
       {BodyState::guessed, BodyState{.update = BodyState::Update::guessed, .shared = true}}) {
    Program unmade = made_weights("read", guess, guess);
    unmade.buffers[0].empty_in = {guess};
    expect_violation(unmade, "w may be empty at the end of a body where the next one finds content");
  }
}

TEST(Verify, ObjectsToEveryDroppedWaitOfTheHandMadeStep) {
  Program p = program_from_text(kStep);
  const std::vector<Mutation> drops = testing::all_single_wait_drops(p);
  ASSERT_EQ(drops.size(), 6u);
  const char* expected[] = {
      "body step after step, instruction 0 (nvme_read 1): reads what was written to nvme [0, 128) by "
      "instruction 5",
      "instruction 1 (h2d 1): reads what was written to host [0, 128) by instruction 0 (nvme_read 1), which "
      "may not",
      "body step after step, instruction 1 (h2d 1): overwrites what is read from device [192, 320) by "
      "instruction 2",
      "instruction 2 (compute 1): reads what was written to device [192, 320) by instruction 1 (h2d 1)",
      "instruction 4 (optimizer 1): overwrites what is read from host [0, 128) by instruction 1 (h2d 1)",
      "instruction 5 (nvme_write 1): reads what was written to host [0, 128) by instruction 4 (optimizer 1)",
  };
  for (size_t d = 0; d < drops.size(); ++d) {
    const Mutated guard(p, drops[d]);
    expect_violation(p, expected[d]);
  }
}

// An overlapping lane writes one range twice: only a wait on the first write's completion orders them.
TEST(Verify, OverlappingLanesNeedWaitsOnThemselves) {
  Program p = program_from_text(kStep);
  Instruction again = at(p, 5);
  at(p, 5).waits_before = {{}};
  again.waits = {{4, 1}};
  p.bodies[0].instructions.push_back(again);
  for (Wait& w : at(p, 0).waits_before[0]) w.count = 2;
  EXPECT_EQ(all(p), "");
  at(p, 6).waits.clear();
  expect_violation(
      p, "instruction 6 (nvme_write 2): overwrites what was written to nvme [0, 128) by instruction 5");
  at(p, 6).waits = {{5, 1}};  // already implied, and not about the lane itself
  expect_violation(
      p, "instruction 6 (nvme_write 2): overwrites what was written to nvme [0, 128) by instruction 5");
  p.machine.lanes[4].overlapping = false;
  at(p, 6).waits.clear();
  EXPECT_EQ(all(p), "");
}

// Which slot of a ring two bodies share depends on how far the second body advances it.
TEST(Verify, RingSlotsRotateBetweenBodies) {
  Program p = program_from_text(kStep);
  p.machine.units[1] = {TaskKind::optimize, 5, 0};  // so lane optimizer can read t in the device
  keep_instructions(p, 0);
  const auto add = [&](LaneId lane, TaskKind kind, Operand o) {
    p.bodies[0].tasks.push_back({kind, 0, 0, Recompute::none, 0, 0, {o}});
    p.bodies[0].instructions.push_back(
        {lane, static_cast<uint32_t>(p.bodies[0].tasks.size() - 1), {o}, {{0, 0}}, {}, {{}}});
  };
  for (const int slots : {2, 3})
    for (int cell = 0; cell < slots * slots; ++cell)
      for (uint8_t advance = 0; advance < 2; ++advance) {
        const auto write_back = static_cast<uint8_t>(cell / slots);
        const auto read_back = static_cast<uint8_t>(cell % slots);
        p.rings[0].slots = static_cast<uint8_t>(slots);
        if (write_back == read_back) continue;  // would need a wait within the body
        keep_instructions(p, 0);
        p.bodies[0].advance = {advance};
        add(0, TaskKind::forward, {3, 0, 1, Access::write, 0, write_back});
        add(5, TaskKind::optimize, {3, 0, 1, Access::read, 0, read_back});
        // The reader sees what the body before wrote, or the writer overwrites what the body before read.
        const bool reads = (write_back + advance) % slots == read_back,
                   overwrites = (read_back + advance) % slots == write_back;
        EXPECT_EQ(verify(p).size(), size_t{reads} + size_t{overwrites}) << all(p);
        EXPECT_EQ(testing::still_correct(p), !reads && !overwrites);
        if (reads)
          expect_violation(
              p, "body step after step, instruction 1 (optimizer 1): reads what was written to ring");
        if (reads) at(p, 1).waits_before = {{{0, 1}}};
        if (overwrites) at(p, 0).waits_before = {{{5, 1}}};
        EXPECT_EQ(all(p), "");
      }
}

TEST(Verify, StopsAtTheLimit) {
  Program p = program_from_text(kStep);
  for (Instruction& i : p.bodies[0].instructions) i.waits.clear(), i.waits_before = {{}};
  EXPECT_EQ(verify(p).size(), 10u) << all(p);
  EXPECT_EQ(verify(p, 2).size(), 2u);
  EXPECT_EQ(verify(p, 1)[0].instruction, 1u);
}

TEST(Verify, AcceptsRandomProgramsAsTheOracleDoes) {
  for (uint64_t seed = 0; seed < kPrograms; ++seed) {
    const Program p = testing::random_program(seed);
    EXPECT_EQ(all(p), "") << "seed " << seed;
    EXPECT_TRUE(seed % 20 != 0 || testing::still_correct(p)) << "seed " << seed;
  }
}

TEST(Verify, ObjectsToEveryDroppedWait) {
  size_t drops = 0, caught = 0;
  for (uint64_t seed = 0; seed < kPrograms; ++seed) {
    Program p = testing::random_program(seed);
    for (const Mutation& m : testing::all_single_wait_drops(p)) {
      const Mutated guard(p, m);
      const bool objects = !verify(p, 1).empty();
      EXPECT_TRUE(objects) << "seed " << seed << ": " << m.name();
      ++drops, caught += objects;
    }
  }
  figures.holds(fmt::format("random programs ({}): dropped waits, all", kPrograms), caught, drops);
  EXPECT_GT(drops, 90 * kPrograms);  // 106 a program with these seeds
}

TEST(Verify, ObjectsToSwappedPieces) {
  size_t swaps = 0, caught = 0;
  for (uint64_t seed = 0; seed < kPrograms; ++seed) {
    Program p = testing::random_program(seed);
    for (const Mutation& m : testing::piece_swaps(p)) {
      const Mutated guard(p, m);
      const bool objects = !verify(p, 1).empty();
      EXPECT_TRUE(objects) << "seed " << seed << ": " << m.name();
      ++swaps, caught += objects;
    }
  }
  figures.holds(fmt::format("random programs ({}): swapped pieces, all", kPrograms), caught, swaps);
  EXPECT_GT(swaps, kPrograms);
}

TEST(Verify, ObjectsToShiftedOffsetsUnlessTheRangeIsAloneInItsLife) {
  size_t shifts = 0, caught = 0, exempt = 0;
  constexpr int64_t kShifts[] = {-128, -64, 64, 192};
  for (uint64_t seed = 0; seed < kPrograms; ++seed) {
    Program p = testing::random_program(seed);
    for (const Mutation& m : testing::offset_shifts(p, kShifts[seed % 4])) {
      ++shifts;
      {
        const Mutated guard(p, m);
        if (!verify(p, 1).empty()) {
          ++caught;
          continue;
        }
        EXPECT_TRUE(testing::still_correct(p)) << "seed " << seed << ": " << m.name();
      }
      const bool alone = testing::alone_in_its_life(p, m);
      EXPECT_TRUE(alone) << "seed " << seed << ": " << m.name();
      exempt += alone;
    }
  }
  figures.holds(fmt::format("random programs ({}): shifted offsets, all not alone in their life", kPrograms),
                caught, shifts - exempt);
  EXPECT_GT(caught, 200 * kPrograms);  // 220 shifts a program, 5 % exempt
  EXPECT_GT(exempt, 2 * kPrograms);
}

// The other direction: what the verifier rejects, the oracle rejects too.
TEST(Verify, DoesNotObjectToWhatIsCorrect) {
  for (uint64_t seed = 1000; seed < 1000 + kPrograms / 50; ++seed) {
    Program p = testing::random_program(seed);
    for (const Mutation& m : testing::offset_shifts(p, 64)) {
      const Mutated guard(p, m);
      const std::vector<Violation> violations = verify(p, 1);
      EXPECT_TRUE(violations.empty() || !testing::still_correct(p)) << m.name() << "\n" << all(p, violations);
    }
  }
}

// The contract: 50,000 instructions in less than 100 ms, for all bodies and pairs together.
TEST(Verify, FiftyThousandInstructionsTakeLessThanATenthOfASecond) {
  testing::RandomOptions options{40, 40, kSanitized ? 600 : 7400, 300, 600};
  const Program p = testing::random_program(7, options);
  size_t instructions = 0;
  for (const Body& b : p.bodies) instructions += b.instructions.size();
  std::vector<double> seconds;
  for (int run = 0; run < 5; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(all(p), "");
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  std::printf("verified %zu instructions in %.1f ms (median of 5)\n", instructions, 1e3 * seconds[2]);
  if (kSanitized) return;
  EXPECT_GE(instructions, 50000u);
  EXPECT_LT(seconds[2], 0.1);
}

}  // namespace
}  // namespace sluice
