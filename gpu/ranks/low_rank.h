// PowerSGD's arithmetic on one group's gradient (engine/program/low_rank.h has the paper and the layout of
// factors): compress, then project, then expand. The results of the first two are summed over ranks.
//
// Arithmetic is fp32, except that columns are made orthonormal and squares are added in double. Products of
// the rank's own gradient are added in an order that depends on shape and processor alone. Orthonormal
// columns and the expanded gradient, which must be equal on all ranks, have the same bits for every
// instruction set and number of threads. Caller: the optimizer lane.
#pragma once

#include "engine/base/parallel.h"
#include "engine/program/low_rank.h"

namespace sluice {

// `gradient` is a flat buffer in `precision`. For the matrices that have factors: error += gradient, then
// left = error x right^T. The gradient's other ranges (LowRankLayout::plain) are copied into `left`, in fp32.
void compress_gradient(const LowRankLayout& layout, DType precision, const void* gradient, float* error,
                       const float* right, float* left, Workers& workers);

// Makes the columns of left orthonormal. A column that is zero or depends on earlier columns is replaced by
// fixed pseudo-random numbers; otherwise its factor would stay zero. Then right = left^T x error, and error
// -= left x right: the compression error that remains.
void project_error(const LowRankLayout& layout, float* left, float* error, float* right, Workers& workers);

// Writes elements [first, first + elements) of the gradient, rounded to `precision`: left x right, the plain
// ranges as they are, and zero elsewhere. block_sums, unless nullptr, gets the sum of squares of each block
// of kNormBlock written elements.
void expand_gradient(const LowRankLayout& layout, const float* left, const float* right, uint64_t first,
                     uint64_t elements, DType precision, void* out, double* block_sums, Workers& workers);

}  // namespace sluice
