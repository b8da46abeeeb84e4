// How fast one GPU multiplies matrices through the multiplier that training uses. Large matrices give a limit
// against which a training step is held. The products of a model are timed by each of several algorithms.
//
// Builds without the cuda device throw an error that says so. Allocates GPU memory and gives it back. Caller:
// one thread, once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gpu/products.h"

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

struct TimedProduct {
  std::string name;  // its sizes and types
  double flops = 0;
  double first = 0;   // flops a second by the algorithm that cuBLASLt proposes first
  double chosen = 0;  // flops a second by the algorithm that is chosen
  int candidates = 0;
};

// There is at least one product. `clock` and `timed` are set.
struct AlgorithmMeasurement {
  int ordinal = 0;
  std::vector<Product> products;                   // of one precision; equal ones are timed once
  int candidates = 8;                              // the most for a product; cuBLASLt proposes these first
  int timings = 7;                                 // of each; the median counts
  double seconds_least = 0;                        // a timing repeats the product for at least this time
  double (*clock)() = nullptr;                     // seconds
  std::function<void(const TimedProduct&)> timed;  // called for each product as soon as it is timed
};

struct TimedAlgorithms {
  std::vector<TimedProduct> products;
  std::string text;  // the algorithm chosen for each product, for CudaOptions::matmul_algorithms
};

// For each product, chooses the fastest candidate if it is faster than the first one by 2 %, else the first.
// All candidates obey what training asks of an algorithm (gpu/cuda/matmul.h). Throws Error(environment).
TimedAlgorithms cuda_time_algorithms(const AlgorithmMeasurement& measurement);

}  // namespace sluice
