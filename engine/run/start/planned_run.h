// What `sluice plan` plans for: options settled, device, budgets and machine, here or elsewhere, and the
// planner's request.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/run/start/run_start.h"
#include "engine/run/start/setup.h"

namespace sluice {

struct PlannedDevice {
  std::unique_ptr<Device> device;  // nullptr: it is only planned for
  WorkspaceBytes workspaces;
  std::optional<AcceleratorUse> use;
  bool ranks_meet = false;         // in its memory, and not in the host's
  std::vector<std::string> notes;  // sentences about what is assumed
};

// `request` refers to `device`.
struct PlannedRun {
  Options options;
  RunStart start;  // its notes, and those of the device
  PlannedDevice device;
  Budgets budgets;
  PlanRequest request;
};

// Throws as open_run_start(), make_device(), resolve_budgets() and plan_request() do.
PlannedRun planned_run(Options options);

}  // namespace sluice
