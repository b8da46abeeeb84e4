// Times the steps of one configuration as `sluice train` runs them, with the same plan, session and trainer,
// but no run directory and no checkpoint. Numbers that are not finite do not end the steps.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/run/options/options.h"
#include "tools/benchmarks/gpu/rows.h"

namespace sluice {

struct TrainingPlace {
  std::string device;     // as --device
  std::string directory;  // of the nvme tier and of the token file
  std::string machine;    // as --machine; empty: the built-in description
};

// The values of the row: configuration, plan, and medians over the steps that count. Runs as many steps as
// fit in `seconds`, but at least three. A row whose first three steps would not fit is skipped. Prints a line
// for each step, and calls `so_far` with the values after each step that counts. Throws what training throws,
// and Error(infeasible) if the budgets cannot hold the model.
nlohmann::ordered_json measure_training(const Row& row, const TrainingPlace& place, double seconds,
                                        const std::function<void(const nlohmann::ordered_json&)>& so_far);

// Times algorithms of cuBLASLt for the row's products, in the precision that `sluice train` takes on this
// GPU. `small`: a rehearsal. Throws Error(environment), and Error(infeasible) where there is no GPU.
nlohmann::ordered_json measure_algorithms(const Row& row, DeviceKind device, bool small);

// Runs `sluice bench`, which writes `file`. `small`: a rehearsal.
nlohmann::ordered_json measure_bench(const TrainingPlace& place, const std::string& file, bool small);

// Runs the row's configuration by `sluice profile`, whose files go to `directory`/profile.
nlohmann::ordered_json measure_profile(const Row& row, const TrainingPlace& place,
                                       const std::string& directory);

}  // namespace sluice
