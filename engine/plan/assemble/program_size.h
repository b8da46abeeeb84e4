// How large a program may become, whatever its homes: computed from its tasks, before homes are chosen.
#pragma once

#include <cstdint>

#include "engine/program/program.h"

namespace sluice {

struct ProgramSize {
  uint64_t tasks = 0, operands = 0;  // in all bodies
  uint64_t transfers = 0;            // in all bodies
  uint64_t longest = 0;              // instructions of the longest body
  uint64_t table_bytes = 0;          // of buffers with their names and cuts, and of unusually many waits
};

// The largest size that a program of this lowering may have. `lowered` has tasks only. For a task, each piece
// of an operand is fetched at most once over each boundary between two tiers, and each piece that the task
// writes is stored at most once over each boundary (stage.h).
ProgramSize size_at_most(const Program& lowered);

// The size of an assembled program.
ProgramSize size_of(const Program& program);

// The larger of the two in each field.
ProgramSize larger_of(const ProgramSize& a, const ProgramSize& b);

// Bytes of memory that a program of this size takes, with what malloc adds to each of its vectors.
uint64_t program_bytes(const ProgramSize& size);

}  // namespace sluice
