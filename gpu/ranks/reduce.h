// Sums over ranks. Communicators only move bytes, and the owner of a part adds here, so that every transport
// gives the same bits.
//
// Additions are in fp32. Their order is a tree over rank numbers, wherever the ranks run: T(first, 1) is the
// value of rank `first`, and T(first, n), over n ranks, is T(first, h) + T(first + h, n - h) with h the
// largest power of two below n. Any 2^m ranks from a multiple of 2^m on are a subtree. So each node group may
// be summed first, in fp32. The sum of these sums, rounded once, has the same bits as the sum of all ranks at
// once.
//
// Callers: the optimizer lane, and the cpu device.
#pragma once

#include <cstdint>

#include "engine/base/parallel.h"
#include "engine/graph/op.h"

namespace sluice {

// `parts` holds, in order, what each of `ranks` ranks (or node groups) has for this one: `elements` values in
// `from` each. Adds them as above and rounds once to `to`. Unless block_sums is nullptr, emits for each block
// of kNormBlock elements the sum of the squares of what it wrote, in double, in a fixed order. ranks,
// elements > 0; `from` and `to` are equal, or one of them is f32.
void sum_ranks(DType from, const void* parts, uint32_t ranks, uint64_t elements, DType to, void* out,
               double* block_sums, Workers& workers);

}  // namespace sluice
