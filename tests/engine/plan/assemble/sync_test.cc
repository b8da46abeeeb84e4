// Waits by hand: one tier, instructions that touch given bytes, and exactly the waits that must follow.
#include "engine/plan/assemble/sync.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace sluice {
namespace {

enum : LaneId { kA, kB, kC, kD, kLaneCount };  // lane D overlaps
constexpr const char* kLaneNames = "ABCD";

// Bodies whose instructions are tasks with operands at given addresses: of plain buffers, or of slots of a
// ring.
class Sketch {
 public:
  explicit Sketch(size_t bodies = 1) {
    program_.machine.tiers = {{"memory", 1000, 1, false}};
    program_.machine.lanes = {{"A"}, {"B"}, {"C"}, {"D", true}};
    program_.rings = {{"ring"}};
    program_.bodies.resize(bodies);
    for (Body& body : program_.bodies) body.advance = {0};
  }
  Body& body(size_t b = 0) { return program_.bodies[b]; }

  struct Touch {
    uint64_t begin, end;
    Access access;
    int back = -1;  // -1: a plain buffer; else Operand::back of a ring slot
  };
  void add(LaneId lane, const std::vector<Touch>& touches, size_t b = 0) {
    Instruction in;
    in.lane = lane;
    in.task = static_cast<uint32_t>(body(b).instructions.size());
    for (const Touch& t : touches) {
      Buffer buffer;
      buffer.cuts = {0, t.end - t.begin};
      buffer.permanent = true;
      if (t.back >= 0) buffer.ring = 0, buffer.home_offset = 500, buffer.slot_stride = 100;
      program_.buffers.push_back(buffer);
      const auto id = static_cast<BufferId>(program_.buffers.size() - 1);
      in.operands.push_back({id, 0, 1, t.access, 0, static_cast<uint8_t>(std::max(t.back, 0))});
      in.places.push_back({0, t.begin});
    }
    body(b).instructions.push_back(std::move(in));
  }

  // "A1 after B2 C1; ...": the waits of body `b`, within it or, with `before` >= 0, on its predecessor of
  // that index.
  std::string waits(size_t b = 0, int before = -1) {
    synchronise(program_);
    std::string text;
    std::vector<uint32_t> number(kLaneCount, 0);
    for (const Instruction& in : body(b).instructions) {
      ++number[in.lane];
      const std::vector<Wait>& list = before < 0 ? in.waits : in.waits_before[static_cast<size_t>(before)];
      if (list.empty()) continue;
      text += fmt::format("{}{}{} after", text.empty() ? "" : "; ", kLaneNames[in.lane], number[in.lane]);
      for (const Wait& w : list) text += fmt::format(" {}{}", kLaneNames[w.lane], w.count);
    }
    return text;
  }

 private:
  Program program_;
};

constexpr Access kRead = Access::read, kWrite = Access::write, kAdd = Access::add;

TEST(Sync, ReadAfterWrite) {
  Sketch s;
  s.add(kA, {{0, 10, kWrite}});
  s.add(kB, {{5, 6, kRead}});
  EXPECT_EQ(s.waits(), "B1 after A1");
}

TEST(Sync, WriteAfterRead) {
  Sketch s;
  s.add(kA, {{0, 10, kRead}});
  s.add(kB, {{9, 20, kWrite}});
  EXPECT_EQ(s.waits(), "B1 after A1");
}

TEST(Sync, WriteAfterWrite) {
  Sketch s;
  s.add(kA, {{0, 10, kWrite}});
  s.add(kB, {{0, 10, kWrite}});
  EXPECT_EQ(s.waits(), "B1 after A1");
}

TEST(Sync, AddReadsAndWrites) {
  Sketch s;
  s.add(kA, {{0, 10, kRead}});
  s.add(kB, {{0, 10, kAdd}});
  s.add(kC, {{0, 10, kRead}});
  EXPECT_EQ(s.waits(), "B1 after A1; C1 after B1");
}

TEST(Sync, ReadsAndNeighboursNeedNothing) {
  Sketch s;
  s.add(kA, {{0, 10, kRead}});
  s.add(kB, {{0, 10, kRead}});
  s.add(kA, {{10, 20, kWrite}});
  s.add(kB, {{20, 30, kWrite}});
  EXPECT_EQ(s.waits(), "");
}

// The writer in between hides the first writer, but only where it wrote.
TEST(Sync, TheNewestWriterCountsByteByByte) {
  Sketch s;
  s.add(kA, {{0, 10, kWrite}});
  s.add(kA, {{50, 60, kWrite}});
  s.add(kB, {{0, 5, kWrite}});
  s.add(kC, {{0, 5, kRead}});
  s.add(kD, {{5, 10, kRead}});
  EXPECT_EQ(s.waits(), "B1 after A1; C1 after B1; D1 after A1");
}

TEST(Sync, AWriterWaitsForAllReaders) {
  Sketch s;
  s.add(kA, {{0, 10, kRead}});
  s.add(kB, {{0, 4, kRead}});
  s.add(kB, {{4, 10, kRead}});
  s.add(kC, {{0, 10, kWrite}});
  EXPECT_EQ(s.waits(), "C1 after A1 B2");
}

// C reads what A and B wrote, but B has waited for A.
TEST(Sync, ImpliedWaitsAreDropped) {
  Sketch s;
  s.add(kA, {{0, 10, kWrite}});
  s.add(kB, {{0, 10, kRead}, {20, 30, kWrite}});
  s.add(kC, {{0, 10, kRead}, {20, 30, kRead}});
  s.add(kC, {{0, 1, kRead}});
  EXPECT_EQ(s.waits(), "B1 after A1; C1 after B1");
}

// A lane need not wait again for what one of its earlier instructions has waited for.
TEST(Sync, KnowledgeStaysOnTheLane) {
  Sketch s;
  s.add(kA, {{0, 10, kWrite}});
  s.add(kA, {{10, 20, kWrite}});
  s.add(kB, {{10, 20, kRead}});
  s.add(kB, {{0, 10, kRead}});
  EXPECT_EQ(s.waits(), "B1 after A2");
}

TEST(Sync, OrderOfALaneIsFreeUnlessItOverlaps) {
  Sketch s;
  s.add(kA, {{0, 10, kWrite}});
  s.add(kA, {{0, 10, kRead}});
  s.add(kD, {{20, 30, kWrite}});
  s.add(kD, {{20, 30, kRead}});
  s.add(kD, {{20, 30, kWrite}});
  EXPECT_EQ(s.waits(), "D2 after D1; D3 after D2");
}

// On an overlapping lane, the start of an instruction shows that its waits were met. It does not show that
// its neighbours have completed.
TEST(Sync, OverlappingLanesPassOnWhatTheyWaitedFor) {
  Sketch s;
  s.add(kA, {{0, 10, kWrite}});
  s.add(kD, {{0, 10, kRead}, {40, 50, kWrite}});
  s.add(kD, {{0, 10, kRead}});
  s.add(kB, {{40, 50, kRead}, {0, 10, kRead}});
  EXPECT_EQ(s.waits(), "D1 after A1; B1 after D1");
}

TEST(Sync, TwoOperandsOfOneInstructionDoNotWaitForEachOther) {
  Sketch s;
  s.add(kD, {{0, 10, kRead}, {0, 10, kWrite}});
  s.add(kA, {{5, 6, kWrite}});
  EXPECT_EQ(s.waits(), "A1 after D1");
}

// The body follows itself: A1 overwrites what B1 read the last time, and B1 reads what A1 writes. For A
// against A the lane's order suffices.
TEST(Sync, AcrossTheBoundary) {
  Sketch s;
  s.body().predecessors = {0};
  s.add(kA, {{0, 10, kWrite}});
  s.add(kB, {{0, 10, kRead}});
  EXPECT_EQ(s.waits(), "B1 after A1");
  EXPECT_EQ(s.waits(0, 0), "A1 after B1");
}

// What a body writes itself hides the body before: only accesses that come before any write look back. Each
// predecessor has waits of its own.
TEST(Sync, EveryPredecessorByItself) {
  Sketch s(3);
  s.body(2).predecessors = {0, 1};
  s.add(kA, {{0, 10, kWrite}}, 0);
  s.add(kB, {{5, 10, kWrite}}, 1);
  s.add(kC, {{0, 8, kRead}}, 2);
  s.add(kC, {{20, 30, kWrite}}, 2);
  s.add(kB, {{20, 30, kRead}}, 2);
  EXPECT_EQ(s.waits(2), "B1 after C2");
  EXPECT_EQ(s.waits(2, 0), "C1 after A1");
  EXPECT_EQ(s.waits(2, 1), "C1 after B1");
}

// B1 waits for C1 of this body, which waited for A1 of the body before.
TEST(Sync, WaitsOnTheBodyBeforeAreImpliedThroughThisOne) {
  Sketch s(2);
  s.body(1).predecessors = {0};
  s.add(kA, {{0, 10, kWrite}}, 0);
  s.add(kC, {{0, 10, kRead}, {20, 30, kWrite}}, 1);
  s.add(kB, {{0, 10, kRead}, {20, 30, kRead}}, 1);
  EXPECT_EQ(s.waits(1), "B1 after C1");
  EXPECT_EQ(s.waits(1, 0), "C1 after A1");
}

// Completions are counted in order across bodies: if D1 of this body has completed, so has D1 of the body
// before.
TEST(Sync, ACompletionTellsOfTheBodyBefore) {
  Sketch s(2);
  s.body(1).predecessors = {0};
  s.add(kD, {{0, 10, kWrite}}, 0);
  s.add(kD, {{20, 30, kWrite}}, 1);
  s.add(kB, {{0, 10, kRead}, {20, 30, kRead}}, 1);
  EXPECT_EQ(s.waits(1), "B1 after D1");
  EXPECT_EQ(s.waits(1, 0), "");
}

// An overlapping lane may start while the same lane still works on the body before.
TEST(Sync, OverlappingLanesAcrossTheBoundary) {
  Sketch s;
  s.body().predecessors = {0};
  s.add(kD, {{0, 10, kWrite}});
  EXPECT_EQ(s.waits(0, 0), "D1 after D1");
}

// With an advance of one, `back` 1 is the slot that the body before wrote as `back` 0. All slots of one body
// lie apart.
TEST(Sync, RingSlotsMoveWithTheBody) {
  Sketch s;
  s.body().predecessors = {0};
  s.body().advance = {1};
  s.add(kA, {{500, 510, kWrite, 0}});
  s.add(kB, {{500, 510, kRead, 1}});
  EXPECT_EQ(s.waits(), "");
  EXPECT_EQ(s.waits(0, 0), "B1 after A1");
  s.body().advance = {0};
  EXPECT_EQ(s.waits(0, 0), "");
}

}  // namespace
}  // namespace sluice
