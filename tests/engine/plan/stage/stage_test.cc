// Staging by hand: a machine of two tiers with alignment 1, buffers of ten bytes, and every transfer written
// out.
#include "engine/plan/stage/stage.h"

#include <gtest/gtest.h>

#include "engine/plan/assemble/assemble.h"
#include "engine/plan/lower/body_builder.h"
#include "engine/verify/verify.h"

namespace sluice {
namespace {

enum : LaneId { kRun, kIn, kOut, kRunBelow };
constexpr uint64_t kRoom = 1000;

// Tasks run on tier 0, but `norm` on tier 1 and `optimize` on either. Permanent buffers live in tier 1 unless
// they are in `homes_above`.
class Sketch {
 public:
  Sketch() {
    Machine& m = program_.machine;
    m.tiers = {{"top", 0, 1, false}, {"below", kRoom, 1, false}};
    m.lanes = {{"run"}, {"in"}, {"out"}, {"run_below"}};
    m.links = {{1, 0, kIn, 1}, {0, 1, kOut, 1}};
    for (int k = 0; k < kTaskKinds; ++k) {
      const auto kind = static_cast<TaskKind>(k);
      if (kind != TaskKind::norm) m.units.push_back({kind, kRun, 0});
      if (kind == TaskKind::norm || kind == TaskKind::optimize) m.units.push_back({kind, kRunBelow, 1});
    }
  }
  BufferId permanent(const std::string& name, uint64_t bytes = 10) { return buffer(name, {0, bytes}, true); }
  BufferId transient(const std::string& name, uint64_t bytes = 10) { return buffer(name, {0, bytes}, false); }
  BufferId pieces(const std::string& name, std::vector<uint64_t> cuts) {
    return buffer(name, std::move(cuts), true);
  }

  struct Use {
    BufferId buffer;
    Access access;
    uint32_t first = 0, last = 0;  // 0, 0: all pieces
  };
  void task(const std::vector<Use>& uses, TaskKind kind = TaskKind::forward) {
    tasks_.push_back({kind, uses});
  }
  void read(BufferId b) { task({{b, Access::read}}); }

  std::vector<BufferId> homes_above;

  // The list as text: "+a" fetches buffer a, "-a" writes it back, "0" runs task 0, "0'" runs it in tier 1.
  // "a.0" is piece 0 of a, "+a@10" fetches a to address 10, and "-a@10>0" writes it back from 10 to 0.
  std::string staged(uint64_t capacity, uint32_t lead, bool keep = true, bool addresses = false) {
    EXPECT_FALSE(assembled(capacity, lead, keep)) << "does not fit";
    std::string text;
    for (const Instruction& in : program_.bodies[0].instructions) {
      if (!text.empty()) text += " ";
      if (in.task != kNoTask) {
        text += std::to_string(in.task) + (in.lane == kRunBelow ? "'" : "");
        continue;
      }
      const Buffer& b = program_.buffers[in.operands[0].buffer];
      text += (in.lane == kIn ? "+" : "-") + b.name;
      if (b.pieces() > 1) text += "." + std::to_string(in.operands[0].first);
      if (addresses && in.lane == kIn) text += "@" + std::to_string(in.places[1].offset);
      if (addresses && in.lane == kOut)
        text += "@" + std::to_string(in.places[0].offset) + ">" + std::to_string(in.places[1].offset);
    }
    const std::vector<Violation> violations = verify(program_);
    EXPECT_TRUE(violations.empty()) << describe(program_, violations.front());
    return text;
  }
  // A line for every fetch, in order of the list: "c 1 for 2, address of a, cut" means that the fetch of c
  // stands before task 1, is needed by task 2, cannot come earlier since a's bytes lie there, and has a lead
  // that was cut for want of room.
  std::vector<std::string> bounds(uint64_t capacity, uint32_t lead, bool keep = true) {
    FetchNotes notes{std::vector<bool>(program_.buffers.size(), true), {}};
    EXPECT_FALSE(assembled(capacity, lead, keep, &notes)) << "does not fit";
    std::vector<std::string> lines;
    for (const FetchNote& n : notes.bodies[0]) {
      constexpr const char* kWords[] = {"begin", "write", "address of ", "order of ", "share", "lead"};
      const bool has_other = n.bound == FetchBound::address || n.bound == FetchBound::order;
      lines.push_back(program_.buffers[n.buffer].name + " " + std::to_string(n.begins) + " for " +
                      std::to_string(n.needed) + ", " + kWords[static_cast<int>(n.bound)] +
                      (has_other ? program_.buffers[n.other].name : "") + (n.lead_cut ? ", cut" : ""));
    }
    return lines;
  }
  std::optional<BodyShortage> assembled(uint64_t capacity, uint32_t lead, bool keep = true,
                                        FetchNotes* notes = nullptr) {
    program_.bodies.clear();
    BodyBuilder body(program_, "body", BodyState::clean, BodyState::clean);
    for (const auto& [kind, uses] : tasks_) {
      Task& t = body.task(kind, 0, 0);
      for (const Use& u : uses) {
        if (u.last == 0)
          body.add(t, Role::none, u.buffer, u.access);
        else
          body.add(t, Role::none, u.buffer, u.first, u.last, u.access);
      }
    }
    body.finish();
    program_.bodies[0].predecessors = {0};
    program_.machine.tiers[0].capacity = capacity;
    std::vector<TierId> homes(program_.buffers.size(), 1);
    for (const BufferId b : homes_above) homes[b] = 0;
    Arrangement arrangement{homes, {lead, lead}, keep};
    arrangement.notes = notes;
    return assemble(program_, arrangement);
  }
  const Program& program() const { return program_; }

 private:
  BufferId buffer(const std::string& name, std::vector<uint64_t> cuts, bool permanent) {
    Buffer b;
    b.name = name;
    b.kind = BufferClass::weights;
    b.cuts = std::move(cuts);
    b.permanent = permanent;
    program_.buffers.push_back(std::move(b));
    return static_cast<BufferId>(program_.buffers.size() - 1);
  }
  Program program_;
  std::vector<std::pair<TaskKind, std::vector<Use>>> tasks_;
};

// Without a lead all three use the same ten bytes, so none can come early.
TEST(Stage, LeadBringsFetchesForward) {
  Sketch s;
  for (const char* name : {"a", "b", "c"}) s.read(s.permanent(name));
  EXPECT_EQ(s.staged(30, 0), "+a 0 +b 1 +c 2");
  EXPECT_EQ(s.staged(30, 1), "+a +b 0 +c 1 2");
  EXPECT_EQ(s.staged(30, 2), "+a +b +c 0 1 2");
}

// With room for two, c cannot lead by two tasks; it leads by one instead.
TEST(Stage, LeadIsHalvedWhereMemoryIsShort) {
  Sketch s;
  for (const char* name : {"a", "b", "c"}) s.read(s.permanent(name));
  EXPECT_EQ(s.staged(20, 2), "+a +b 0 +c 1 2");
  EXPECT_EQ(s.staged(10, 2), "+a 0 +b 1 +c 2");
}

// A buffer that is made next takes another place if there is room. So its task need not wait until the
// write-back is done.
TEST(Stage, WhatIsWrittenBackLags) {
  Sketch s;
  for (const char* name : {"a", "b", "c"}) s.task({{s.permanent(name), Access::write}});
  EXPECT_EQ(s.staged(30, 0, true, true), "0 -a@0>0 1 -b@0>10 2 -c@0>20");
  EXPECT_EQ(s.staged(30, 1, true, true), "0 -a@0>0 1 -b@10>10 2 -c@0>20");
  EXPECT_EQ(s.staged(10, 1, true, true), "0 -a@0>0 1 -b@0>10 2 -c@0>20");
}

// A task below reads what one above made. With a lag of two tasks, the next buffer has places of its own in
// both tiers.
TEST(Stage, WhatIsTakenBelowLagsThere) {
  Sketch s;
  for (const char* name : {"a", "b"}) {
    const BufferId x = s.transient(name);
    s.task({{x, Access::write}});
    s.task({{x, Access::read}}, TaskKind::norm);
  }
  EXPECT_EQ(s.staged(20, 0, true, true), "0 -a@0>0 1' 2 -b@0>0 3'");
  EXPECT_EQ(s.staged(20, 2, true, true), "0 -a@0>0 1' 2 -b@10>10 3'");
}

// The uses are a b a c b a, with gaps a 0-2, b 1-4, a 2-5. With room for two copies the two shortest gaps are
// kept; a then finds no room at 3 for its gap 2-5. The addresses of the first fetch of b are free from the
// beginning. c and the second fetch of a must wait for theirs.
TEST(Stage, ShortestGapsAreKept) {
  Sketch s;
  const BufferId a = s.permanent("a"), b = s.permanent("b"), c = s.permanent("c");
  for (const BufferId x : {a, b, a, c, b, a}) s.read(x);
  EXPECT_EQ(s.staged(20, 0, true, true), "+a@10 +b@0 0 1 2 +c@10 3 4 +a@0 5");
  EXPECT_EQ(s.staged(30, 0), "+a +b +c 0 1 2 3 4 5");
  EXPECT_EQ(s.staged(10, 0), "+a 0 +b 1 +a 2 +c 3 +b 4 +a 5");
  EXPECT_EQ(s.staged(30, 0, false), "+a 0 +b 1 +a 2 +c 3 +b 4 +a 5");
}

// Prefetching comes before keeping: the leads of b and c take the room in which a could have stayed.
TEST(Stage, LeadsComeBeforeGaps) {
  Sketch s;
  const BufferId a = s.permanent("a"), b = s.permanent("b"), c = s.permanent("c");
  for (const BufferId x : {a, b, c, a}) s.read(x);
  EXPECT_EQ(s.staged(20, 0), "+a +b 0 1 +c 2 3");
  EXPECT_EQ(s.staged(20, 1), "+a +b 0 +c 1 +a 2 3");
}

// What is written and kept is written back once, after the last write. What is overwritten whole is not
// fetched.
TEST(Stage, StoresTheLastWriteOnly) {
  Sketch s;
  const BufferId a = s.permanent("a");
  s.task({{a, Access::write}});
  s.task({{a, Access::add}});
  s.read(a);
  EXPECT_EQ(s.staged(10, 0), "0 1 -a 2");
  EXPECT_EQ(s.staged(10, 0, false), "0 -a +a 1 -a +a 2");
}

// A write that does not read makes another version, whose readers do not need the version before. So the
// earlier version is not written back.
TEST(Stage, WhatIsMadeAgainIsNotStored) {
  Sketch s;
  const BufferId x = s.transient("x"), a = s.permanent("a", 20);
  for (int time = 0; time < 2; ++time) {
    s.task({{x, Access::write}});
    s.read(x);
    if (time == 0) s.read(a);
  }
  EXPECT_EQ(s.staged(20, 0), "0 1 +a 2 3 4");
  EXPECT_EQ(s.program().arena_bytes, (std::vector<uint64_t>{20, 20}));
}

TEST(Stage, AddFetchesAndStores) {
  Sketch s;
  s.task({{s.permanent("a"), Access::add}});
  EXPECT_EQ(s.staged(10, 0), "+a 0 -a");
}

// A transient buffer goes down only when it must make room, and not at all when nobody reads it any more.
TEST(Stage, TransientBuffersSinkWhenTheyMust) {
  Sketch s;
  const BufferId x = s.transient("x"), a = s.permanent("a", 20);
  s.task({{x, Access::write}});
  s.read(a);
  s.task({{x, Access::add}});
  EXPECT_EQ(s.staged(30, 0), "+a 0 1 2");
  EXPECT_EQ(s.staged(20, 0), "0 -x +a 1 +x 2");
  EXPECT_EQ(s.program().arena_bytes, (std::vector<uint64_t>{20, 30}));
}

// A transient buffer that lives above never leaves: nothing else gets its room there, and below it takes
// none.
TEST(Stage, TransientBuffersThatLiveAboveStay) {
  Sketch s;
  const BufferId x = s.transient("x"), a = s.permanent("a", 20);
  s.homes_above = {x};
  s.task({{x, Access::write}});
  s.read(a);
  s.task({{x, Access::add}});
  for (const bool keep : {true, false}) EXPECT_EQ(s.staged(30, 0, keep), "+a 0 1 2");
  EXPECT_EQ(s.program().arena_bytes, (std::vector<uint64_t>{30, 20}));
  const auto shortage = s.assembled(29, 0);
  ASSERT_TRUE(shortage);
  EXPECT_EQ(shortage->shortage.tier, 0);
  EXPECT_EQ(shortage->shortage.bytes_needed, 30u);
}

// A task in tier 1 uses x, so x lives there, even though a home above was asked for.
TEST(Stage, TransientBuffersSinkToTheLowestTask) {
  Sketch s;
  const BufferId x = s.transient("x");
  s.homes_above = {x};
  s.task({{x, Access::write}});
  s.task({{x, Access::read}}, TaskKind::norm);
  EXPECT_EQ(s.staged(10, 0), "0 -x 1'");
  EXPECT_EQ(s.program().buffers[x].home, 1);
}

// Without kept copies, the copies that are staged for one task lie side by side, if possible in a hole
// between buffers that live there. x lives from 0 to 3; y, of 20 bytes, from 0 to 1; a and b take y's place.
TEST(Stage, BlocksBesideWhatLivesThere) {
  Sketch s;
  const BufferId x = s.transient("x"), y = s.transient("y", 20), a = s.permanent("a"), b = s.permanent("b");
  s.homes_above = {x, y};
  s.task({{x, Access::write}, {y, Access::write}});
  s.read(y);
  s.task({{a, Access::read}, {b, Access::read}});
  s.read(x);
  EXPECT_EQ(s.staged(30, 0, false, true), "0 1 +a@0 +b@10 2 3");
  EXPECT_EQ(s.program().arena_bytes, (std::vector<uint64_t>{30, 20}));
}

// c (20 bytes, tasks 1 to 3) and a share addresses, so c waits for a. The ten bytes of b are free from the
// beginning, but its fetch does not pass that of c, which is needed earlier.
TEST(Stage, FetchesGrowBackwardsInOrder) {
  Sketch s;
  const BufferId a = s.permanent("a"), b = s.permanent("b"), c = s.permanent("c", 20);
  s.read(a);
  s.read(c);
  s.read(c);
  s.task({{c, Access::read}, {b, Access::read}});
  EXPECT_EQ(s.staged(30, 0, true, true), "+a@0 0 +c@0 +b@20 1 2 3");
}

// A fetch never stands before the write whose result it reads.
TEST(Stage, FetchesStayBehindWrites) {
  Sketch s;
  const BufferId a = s.permanent("a"), b = s.permanent("b");
  s.task({{a, Access::write}});
  s.read(b);
  s.read(a);
  EXPECT_EQ(s.staged(10, 2), "0 -a +b 1 +a 2");
}

// Only the pieces that a task names move.
TEST(Stage, PiecesMoveAlone) {
  Sketch s;
  const BufferId a = s.pieces("a", {0, 10, 25, 30});
  s.task({{a, Access::write, 1, 2}});
  s.task({{a, Access::read, 2, 3}});
  EXPECT_EQ(s.staged(15, 0, true, true), "0 -a.1@0>10 +a.2@0 1");
}

// A buffer that lives above comes down once for the two reads of tasks below, and goes back up after a write
// there.
TEST(Stage, HomesAboveATask) {
  Sketch s;
  const BufferId a = s.permanent("a");
  s.homes_above = {a};
  s.task({{a, Access::add}});
  s.task({{a, Access::read}}, TaskKind::norm);
  s.task({{a, Access::read}}, TaskKind::norm);
  s.task({{a, Access::write}}, TaskKind::norm);
  s.read(a);
  EXPECT_EQ(s.staged(20, 0), "0 -a 1' 2' 3' +a 4");
}

// An update runs in the tier where its largest buffer lives. The smaller buffer travels.
TEST(Stage, TasksRunNearTheirLargestHome) {
  Sketch s;
  const BufferId state = s.permanent("s", 30), gradient = s.permanent("g");
  s.task({{state, Access::add}, {gradient, Access::read}}, TaskKind::optimize);
  EXPECT_EQ(s.staged(100, 0), "0'");
  s.homes_above = {gradient};
  EXPECT_EQ(s.staged(100, 0), "-g 0'");
  s.homes_above = {state};
  EXPECT_EQ(s.staged(100, 0), "+g 0");
  s.homes_above = {state, gradient};
  EXPECT_EQ(s.staged(100, 0), "0");
}

TEST(Stage, ShortageNamesTheTask) {
  Sketch s;
  const BufferId a = s.permanent("a"), b = s.permanent("b");
  s.read(a);
  s.task({{a, Access::read}, {b, Access::read}});
  s.read(b);
  EXPECT_FALSE(s.assembled(20, 4));
  const auto shortage = s.assembled(19, 4);
  ASSERT_TRUE(shortage);
  EXPECT_EQ(shortage->body, 0);
  EXPECT_EQ(shortage->shortage.tier, 0);
  EXPECT_EQ(shortage->shortage.task, 1u);
  EXPECT_EQ(shortage->shortage.bytes_needed, 20u);
}

// Even the homes alone may be too much.
TEST(Stage, ShortageOfHomes) {
  Sketch s;
  s.read(s.permanent("a", kRoom));
  s.read(s.permanent("b", 1));
  const auto shortage = s.assembled(kRoom, 0);
  ASSERT_TRUE(shortage);
  EXPECT_EQ(shortage->shortage.tier, 1);
  EXPECT_EQ(shortage->shortage.bytes_needed, kRoom + 1);
  EXPECT_EQ(shortage->shortage.task, kNoTask);
}

using Lines = std::vector<std::string>;

TEST(Stage, NotesSayWhatKeepsAFetchFromComingEarlier) {
  Sketch three;
  for (const char* name : {"a", "b", "c"}) three.read(three.permanent(name));
  EXPECT_EQ(three.bounds(30, 2), (Lines{"a 0 for 0, begin", "b 0 for 1, begin", "c 0 for 2, begin"}));
  EXPECT_EQ(three.bounds(20, 2),
            (Lines{"a 0 for 0, begin", "b 0 for 1, begin", "c 1 for 2, address of a, cut"}));
  EXPECT_EQ(three.bounds(10, 1),
            (Lines{"a 0 for 0, begin", "b 1 for 1, address of a, cut", "c 2 for 2, address of b, cut"}));

  // The task directly before the fetch makes x in the tier below.
  Sketch made;
  const BufferId x = made.permanent("x");
  made.read(made.permanent("first"));
  made.task({{x, Access::add}}, TaskKind::norm);
  made.read(x);
  EXPECT_EQ(made.bounds(40, 2), (Lines{"first 0 for 0, begin", "x 2 for 2, write"}));

  // c's own place is free from the beginning, but b is needed earlier and waits for a's bytes.
  Sketch waits;
  for (const auto& [name, bytes] : {std::pair("a", 20), {"b", 20}, {"c", 10}})
    waits.read(waits.permanent(name, static_cast<uint64_t>(bytes)));
  EXPECT_EQ(waits.bounds(30, 1),
            (Lines{"a 0 for 0, begin", "b 1 for 1, address of a, cut", "c 1 for 2, order of b"}));

  // Nothing is noted of buffers that nobody asked about.
  FetchNotes none{std::vector<bool>(3, false), {}};
  EXPECT_FALSE(three.assembled(30, 2, true, &none));
  EXPECT_TRUE(none.bodies.at(0).empty());
}

// b needs all the room between the tasks that make the two pieces, so piece 0 leaves. It comes back into the
// allocation that begins when piece 1 is made.
TEST(Stage, AFetchMayJoinAnotherPiece) {
  Sketch s;
  const BufferId a = s.pieces("a", {0, 10, 20});
  s.task({{a, Access::write, 0, 1}});
  s.read(s.permanent("b", 20));
  s.task({{a, Access::write, 1, 2}});
  s.read(a);
  EXPECT_EQ(s.staged(20, 0), "0 -a.0 +b 1 +a.0 2 -a.1 3");
  EXPECT_EQ(s.bounds(20, 0), (std::vector<std::string>{"b 1 for 1, address of a", "a 2 for 3, share"}));
}

}  // namespace
}  // namespace sluice
