// The arithmetic of reductions between ranks, so that every transport gives the same bits: transports move
// bytes (gpu/communicator.h), the owner of a part adds them here.
//
// Callers: the runner's optimizer lane.
#pragma once

#include <cstdint>

#include "engine/op.h"
#include "engine/parallel.h"

namespace sluice {

// `parts` holds what each of `ranks` ranks has for this one: `elements` values in `precision`, in order of
// rank. Adds them in fp32 in that order, rounds once to `precision`, and emits, per block of kNormBlock
// elements, the sum of the squares of what it wrote, in double, in a fixed order, unless block_sums is
// nullptr. elements > 0.
void sum_ranks(DType precision, const void* parts, uint32_t ranks, uint64_t elements, void* out,
               double* block_sums, Workers& workers);

}  // namespace sluice
