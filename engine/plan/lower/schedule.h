// The schedule of a step as data: in which order segment uses of trained layers run with micro-batches,
// forward and backward.
//
// The planner takes any schedule in which each segment use comes after the uses that write what it reads. The
// schedule fixes the order in which gradients are added. So two schedules can give different bits, for
// example where a group has several uses.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/graph/graph.h"

namespace sluice {

struct ScheduledUse {
  uint32_t use = 0;    // segment use in forward order
  uint32_t slice = 0;  // micro-batch
};

// Each list has each pair of a use and a micro-batch exactly once.
struct StepSchedule {
  std::vector<ScheduledUse> forward, backward;
};

// Runs all micro-batches of a layer before the next layer (L2L: Pudipeddi et al. 2020, arXiv:2002.05645). So
// weights travel twice a step, however many micro-batches there are.
StepSchedule layer_major(const Model& model, uint32_t slices);

// Throws std::invalid_argument unless each list has each pair of a use and a micro-batch exactly once.
void check_schedule(const StepSchedule& schedule, uint32_t uses, uint32_t slices);

}  // namespace sluice
