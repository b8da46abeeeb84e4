// What leads are counted in: each task's cost, in proportion to the seconds that it takes alone on its lane.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/program/program.h"
#include "engine/rates/machine_rates.h"

namespace sluice {

constexpr uint32_t kSegmentCost = 16;  // of the mean forward or backward of a body

// By body and task.
std::vector<std::vector<uint32_t>> task_costs(const Program& program, const MachineRates& rates);

}  // namespace sluice
