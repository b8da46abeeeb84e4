// The bytes of a body at its fullest moment, wherever its buffers live. Most candidates that do not fit have
// more bytes than all tiers together, and this shows it without an arrangement. Called in the search.
#pragma once

#include <cstdint>

#include "engine/program/program.h"

namespace sluice {

// Bytes that all tiers together hold at some moment, in any arrangement: permanent buffers, and each piece of
// a transient buffer from the task that writes it to the last task that uses what was written. The body needs
// no instructions.
uint64_t bytes_at_once(const Program& program, const Body& body);

}  // namespace sluice
