// The verifier: is a program correct for every interleaving that its waits allow? With the planner it shares
// only program.h, roles.h and engine/base, so that one mistake cannot hide in both.
//
// 1. Tables: indices in range, homes disjoint, aligned and inside the arenas, arenas inside the tiers'
//    capacities.
// 2. Structure: every task in one instruction with its operands on its unit's lane and tier; transfers on
//    existing links; waits on earlier instructions; a body's predecessors are the bodies that end in the
//    state in which it starts.
// 3. Contents: the list order is replayed over a map from addresses to (buffer, offset, ring slot, version).
//    Every operand finds what its task demands, only a home's own buffer is written in that home, and at the
//    end every home holds the newest version. Bodies start from current homes and garbage elsewhere, so by
//    induction every legal sequence is covered.
// 4. Order: vector clocks over the lanes (Fidge 1988, Mattern 1989) for every body and every legal ordered
//    pair. Two accesses of overlapping bytes, at least one writing, are ordered: the later one starts after
//    the earlier completed. Pairs of neighbours are enough, since no lane starts body n of a run before every
//    lane has completed body n - 2.
//
// Together 3 and 4 make every allowed interleaving equivalent to the list order. O(n log n) in instructions.
// Called before every run and by tests; no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/program/program.h"

namespace sluice {

constexpr BodyId kNoBody = 255;

struct Violation {
  BodyId before = kNoBody;  // the body that ran before, when the fault lies between two
  BodyId body = kNoBody;    // kNoBody: the fault is in the tables
  uint32_t instruction = kNoInstruction;
  std::string what;  // one clause, without a full stop
};

// Empty = correct. Reports at most `limit` violations; contents and order are looked at only when tables and
// structure are correct.
std::vector<Violation> verify(const Program& program, size_t limit = 10);

// "body step after first, instruction 17 (h2d 5): reads ...", for messages and tests.
std::string describe(const Program& program, const Violation& violation);

}  // namespace sluice
