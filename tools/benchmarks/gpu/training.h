// The steps of one configuration, timed as `sluice train` runs them: the same plan, session and trainer, but
// no run directory and no checkpoint.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tools/benchmarks/gpu/rows.h"

namespace sluice {

struct TrainingPlace {
  std::string device;     // as --device
  std::string directory;  // of the nvme tier and of the token file
  std::string machine;    // as --machine; empty: the built-in description
};

// The values of the row: configuration, plan, and medians over the steps that count. Throws what training
// throws, and Error(infeasible) if the budgets cannot hold the model.
nlohmann::ordered_json measure_training(const Row& row, const TrainingPlace& place);

// Runs `sluice bench`, which writes `file`. `small`: a rehearsal.
nlohmann::ordered_json measure_bench(const TrainingPlace& place, const std::string& file, bool small);

// Runs the row's configuration by `sluice profile`, whose files go to `directory`/profile.
nlohmann::ordered_json measure_profile(const Row& row, const TrainingPlace& place,
                                       const std::string& directory);

}  // namespace sluice
