// The arithmetic of reductions between ranks, so that every transport gives the same bits: transports move
// bytes (gpu/ranks/communicator.h), the owner of a part adds them here.
//
// The order of additions, each in fp32, is a tree over the ranks' numbers, wherever the ranks run: of n
// values from rank `first` on, T(first, 1) is the value and T(first, n) = T(first, h) + T(first + h, n - h),
// h being the largest power of two below n. Every aligned block of 2^m ranks is a subtree of it. So blocks of
// ranks may be added to fp32 first (partial sums) and then the blocks, rounding once: the bits are those of
// all at once.
//
// Callers: the runner's optimizer lane, and the cpu device.
#pragma once

#include <cstdint>

#include "engine/base/parallel.h"
#include "engine/graph/op.h"

namespace sluice {

// `parts` holds what each of `ranks` ranks (or blocks of ranks) has for this one: `elements` values in
// `from`, in order of rank. Adds them as above, rounds once to `to`, and emits, per block of kNormBlock
// elements, the sum of the squares of what it wrote, in double, in a fixed order, unless block_sums is
// nullptr. ranks, elements > 0; the two types are one, or one of them is fp32.
void sum_ranks(DType from, const void* parts, uint32_t ranks, uint64_t elements, DType to, void* out,
               double* block_sums, Workers& workers);

}  // namespace sluice
