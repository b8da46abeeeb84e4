// Algorithms that are chosen by time for the matrix products of a model, as a machine description keeps them
// for --matmul-algorithms. Caller: `sluice bench --model`, on one thread, while nothing else runs.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "engine/run/options/options.h"
#include "gpu/cuda/rates.h"
#include "tools/bench/scale.h"

namespace sluice {

// The products of all ops of --model, in each size of micro-batch that a run on `options.ranks.count` ranks
// may have. Throws as resolve_model() and micro_batch_candidates() do, and Error(usage) if the settled device
// is no GPU.
std::vector<Product> products_to_time(const Options& options);

// Times `products`, and prints a line for each. Throws Error(environment).
TimedAlgorithms time_algorithms(const Options& options, const std::vector<Product>& products,
                                const GpuScale& scale, std::FILE* out);

}  // namespace sluice
