// What a body holds at its fullest, wherever its buffers live. Most candidates that do not fit keep more than
// all tiers hold together, which this shows without an arrangement. Called in the search.
#pragma once

#include <cstdint>

#include "engine/program/program.h"

namespace sluice {

// Bytes that all tiers hold together at some moment, in any arrangement: permanent buffers, and pieces of the
// others from the task that writes them to the last that uses what it wrote. The body needs no instructions.
uint64_t bytes_at_once(const Program& program, const Body& body);

}  // namespace sluice
