// What `sluice plan` plans for, on this machine or another: settled options, device, budgets, and the
// planner's request.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/run/start/budgets.h"
#include "engine/run/start/devices.h"
#include "engine/run/start/run_start.h"

namespace sluice {

struct PlannedDevice {
  std::unique_ptr<Device> device;  // nullptr: this machine lacks it
  DeviceNeeds needs;
  std::optional<AcceleratorUse> use;
  bool ranks_meet = false;         // collectives read and write device memory, not host memory
  std::vector<std::string> notes;  // sentences: what is assumed
};

// `request` refers to `device`.
struct PlannedRun {
  Options options;
  RunStart start;  // `start.notes` include the notes of `device`
  PlannedDevice device;
  Budgets budgets;
  PlanRequest request;
};

// Throws as open_run_start(), make_device(), resolve_budgets() and plan_request() do.
PlannedRun planned_run(Options options);

}  // namespace sluice
