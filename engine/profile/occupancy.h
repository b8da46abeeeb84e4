// What lies in every tier, and from when to when. The program alone says this in instructions; with the
// simulated or measured times of its instructions, it is known in seconds.
//
// A stay is one piece of a buffer at one address, from the instruction that writes it there to the last that
// uses it. Permanent buffers at home make no stays: they are always there. Called for reports, by any thread;
// plain functions, O(n log n). Requires a program whose structure is sound (verify.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/program/program.h"
#include "engine/simulate/simulate.h"

namespace sluice {

constexpr size_t kClassCount = static_cast<size_t>(BufferClass::scalars) + 1;
using ClassBytes = std::array<uint64_t, kClassCount>;  // by BufferClass

struct Stay {
  BufferId buffer = 0;
  uint32_t piece = 0;
  TierId tier = 0;
  bool staged = false;             // a staged copy of a permanent buffer
  uint64_t offset = 0, bytes = 0;  // in the tier's arena
  uint32_t first = 0, last = 0;    // instructions of the body
};

// All stays of the body, in the order in which they begin.
std::vector<Stay> stays_of(const Program& program, const Body& body);

// By tier: the bytes of permanent buffers, with all slots of rings.
std::vector<ClassBytes> permanent_bytes(const Program& program);

struct OccupancyPoint {
  double seconds = 0;  // from here on, until the next point
  ClassBytes bytes{};
};

// By tier: what lies there, permanent buffers included; the first point is at the start of the first
// instruction. `times` are as in SimulationResult. Nothing is known of an instruction whose `begin` is not
// finite. A stay that begins with such an instruction is left out; a stay that ends with one ends with the
// last instruction of all.
std::vector<std::vector<OccupancyPoint>> occupancy(const Program& program, std::span<const BodyId> sequence,
                                                   const std::vector<std::vector<InstructionTime>>& times);

}  // namespace sluice
