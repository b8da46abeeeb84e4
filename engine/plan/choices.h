// Choices that a request makes, or leaves to the search.
#pragma once

#include <cstdint>

namespace sluice {

// Whether updates run in backward. If they would have to wait for the norm of all gradients, weights are made
// there by a guess of the update. automatic: updates run in backward if that makes steps shorter.
enum class Overlap : uint8_t { automatic, always, never };

// How the homes of permanent buffers are chosen: for the shortest step, or by a rule that the search keeps
// to.
enum class Placement : uint8_t {
  automatic,
  lowest,         // everything as low as it can be
  highest,        // as high as it fits, layer by layer
  weights_first,  // as high as it fits, all weights first
  state_first,    // as high as it fits, all optimizer state first
};

}  // namespace sluice
