// What the tests of a rank's memory share: runs at ZeRO stage 3, and the bytes that their plans keep.
#pragma once

#include <string>

#include "tests/support/training_support.h"

namespace sluice {

inline TestRun rank_memory_run(const DriveDirectory& directory, const std::string& model, DType precision,
                               int64_t ranks) {
  TestRun run;
  run.options = short_run(directory, model, directory / "text.txt");
  run.options.numbers.precision = precision;
  run.options.batch.batch = 12;
  run.options.batch.micro_batch = 1;
  run.options.batch.sequence = 32;
  run.options.batch.steps = 3;
  run.options.run.out = directory / ("out" + std::to_string(ranks));
  run.options.ranks.gpus = run.options.ranks.count = ranks;
  run.threads = 1;
  return run;
}

// Bytes of one rank's permanent buffers, without tokens and scalars.
inline uint64_t permanent_bytes(const Plan& plan) {
  uint64_t bytes = 0;
  for (const Buffer& b : plan.program.buffers)
    if (b.permanent && b.kind != BufferClass::scalars) bytes += b.bytes();
  return bytes;
}

}  // namespace sluice
