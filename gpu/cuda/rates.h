// How fast one GPU multiplies matrices through the multiplier that training uses. A training step is held
// against this limit.
//
// Builds without the cuda device throw an error that says so. Allocates GPU memory and gives it back. Caller:
// one thread, once.
#pragma once

#include "engine/graph/op.h"

namespace sluice {

struct MatmulMeasurement {
  int ordinal = 0;
  DType precision = DType::bf16;  // of the operands and the result
  int64_t size = 0;               // the product is [size,size] x [size,size]
  int products = 1;               // of one timing; the median of seven timings counts
  double (*clock)() = nullptr;    // seconds
};

// Floating-point operations a second, multiply-adds counted as two, on random values: a GPU is faster on
// zeros. Throws Error(environment).
double cuda_matmul_rate(const MatmulMeasurement& measurement);

}  // namespace sluice
