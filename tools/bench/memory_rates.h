// How fast host memory is for the optimizer and for threads that copy.
//
// Data are larger than caches, and lie in huge pages where the system grants them, as arenas do. One thread
// calls.
#pragma once

#include <cstdint>

#include "engine/base/parallel.h"
#include "engine/program/program.h"
#include "tools/bench/rounds.h"

namespace sluice {

// Parameters a second of AdamW on fp32 master weights, with gradients and weights in `precision`, and the
// bytes read and written for one parameter, as the planner counts them.
struct OptimizerRate {
  double parameters_per_second = 0, bytes_a_parameter = 0;
  Rounds rounds;
};
OptimizerRate measure_optimizer(DType precision, uint64_t parameters, Workers& workers);

// Bytes a second at which `threads` threads together copy `bytes`, each its own part. Memory traffic is twice
// that: each byte is read and written.
TimedRate measure_copies(int threads, uint64_t bytes);

// Seconds from the completion of an instruction on one thread until another thread, which waits for it and is
// not asleep, goes on.
double measure_handover();

}  // namespace sluice
