// How fast host memory is: for the optimizer, and for threads that copy.
//
// Data are larger than caches, in huge pages where the system gives them, as arenas are. One thread calls.
#pragma once

#include <cstdint>

#include "engine/base/parallel.h"
#include "engine/program/program.h"

namespace sluice {

// Parameters a second of AdamW on fp32 masters with gradients and weights in `precision`, and the bytes that
// one parameter reads and writes, as the planner counts them.
struct OptimizerRate {
  double parameters_per_second = 0, bytes_a_parameter = 0;
};
OptimizerRate measure_optimizer(DType precision, uint64_t parameters, Workers& workers);

// Bytes a second of `bytes` copied by so many threads together, each its own part; each byte is read and
// written.
double measure_copies(int threads, uint64_t bytes);

// Seconds from one thread's counting an instruction to another's going on, both awake at the time.
double measure_handover();

}  // namespace sluice
