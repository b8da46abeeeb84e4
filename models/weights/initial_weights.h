// Initial values of parameters: each element is a function of (seed, tensor name, element index) alone. So
// any range can be made by itself, in any order, on any thread, with the same bits.
//
// Words: Philox4x32-10 with key = seed and counter = (element / 4, xxh64(tensor name)), 64 bits each, low
// word first; the four words of a counter belong to elements 4k .. 4k+3. Normal values: Box and Muller
// (1958) on pairs of words, in double, with elementary functions made of correctly rounded operations only,
// so that every machine gives the same bits. Callers: the task `load` (its lane's thread) and tests.
#pragma once

#include <cstdint>

#include "engine/graph/graph.h"

namespace sluice {

// Elements [first, first + count) of a parameter, counted from its own first element, as fp32, by its
// initializer and standard deviation. The range must lie within the shape.
void fill_initial(const Parameter& parameter, uint64_t seed, uint64_t first, uint64_t count, float* out);

}  // namespace sluice
