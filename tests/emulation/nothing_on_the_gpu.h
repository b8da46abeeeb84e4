// Whether all that was taken on the emulated GPUs was given back.
#pragma once

#include <gtest/gtest.h>

#include "tests/emulation/emulated_gpu.h"

namespace sluice {

inline void expect_nothing_on_the_gpu() {
  const emulation::Counts counts = emulation::counts();
  EXPECT_EQ(counts.allocated_bytes, 0u);
  EXPECT_EQ(counts.registered_bytes, 0u);
  EXPECT_EQ(counts.streams_there, 0u);
  EXPECT_EQ(counts.events_there, 0u);
}

}  // namespace sluice
