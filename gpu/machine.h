// How devices, host memory and drives are described to the planner: plain tables, filled here and nowhere
// else.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/program/program.h"

namespace sluice {

// The lanes of every machine, in order of id.
enum LaneName : LaneId {
  kComputeLane,
  kH2dLane,
  kD2hLane,
  kNvmeReadLane,
  kNvmeWriteLane,
  kOptimizerLane,
  kCollectiveLane,
  kLanes
};

constexpr const char* kNvmeTier = "nvme";

struct TierCapacities {
  std::optional<uint64_t> device;  // a device arena of its own; none: the device computes in host memory
  uint64_t host = 0;
  std::optional<uint64_t> nvme;  // none: no nvme tier
};

// Segments run in the top tier, `save` tasks in host memory, updates in either. Ranks exchange bytes of host
// memory or, if `ranks_meet_in_device`, of device memory; the device then adds what was exchanged, too.
Machine machine_of(const TierCapacities& capacities, bool ranks_meet_in_device = false);

}  // namespace sluice
