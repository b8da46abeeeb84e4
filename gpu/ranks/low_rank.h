// PowerSGD's arithmetic on one group's gradient (engine/program/low_rank.h has the paper and the layout of
// factors): compress, then project, then expand, with a sum over ranks of what each of the first two gives.
//
// fp32; products of the rank's own gradient are added in an order that depends on shape and processor alone.
// What all ranks must get alike, orthonormal columns and the expanded gradient, has the same bits on every
// target and thread count. Callers: the runner's optimizer lane.
#pragma once

#include "engine/base/parallel.h"
#include "engine/program/low_rank.h"

namespace sluice {

// error += gradient, a flat buffer in `precision`; left = error x right^T, and plain ranges of the gradient.
void compress_gradient(const LowRankLayout& layout, DType precision, const void* gradient, float* error,
                       const float* right, float* left, Workers& workers);

// Makes the columns of left orthonormal. A column that depends on those before it, or is zero, becomes one of
// fixed pseudo-random numbers, or its factor would be zero from then on. Then right = left^T x error, and
// error -= left x right: what this rank has not said.
void project_error(const LowRankLayout& layout, float* left, float* error, float* right, Workers& workers);

// Elements [first, first + elements) of left x right and of plain ranges, zero elsewhere, rounded to
// `precision`. The sums of squares of what was written, by block of kNormBlock, if asked for.
void expand_gradient(const LowRankLayout& layout, const float* left, const float* right, uint64_t first,
                     uint64_t elements, DType precision, void* out, double* block_sums, Workers& workers);

}  // namespace sluice
