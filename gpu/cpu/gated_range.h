// A piece of swiglu's work, for the code of every vector target.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::cpu {

// Some elements of the operands. The gate and the other factor may lie in one packed input.
struct GatedRange {
  uint64_t gate, up, out;  // the first element in each operand
  uint64_t count;
  size_t up_input;  // the input that has `up`
};

}  // namespace sluice::cpu
