// The facts of a profile as one JSON object (docs/profile.md): profile.json is this, and the text and the
// page are made from it. Also what the page draws: the lanes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/profile/profile.h"
#include "engine/profile/what_if.h"
#include "engine/run/options/options.h"
#include "engine/run/start/budgets.h"
#include "engine/run/train/metrics.h"

namespace sluice {

struct ProfiledRun {
  const Options& options;  // resolved
  const Budgets& budgets;
  const Plan& plan;
  const Recorder& recorder;
  const Profile& profile;
  const std::vector<StepMetrics>& steps;
  const std::vector<WhatIf>& changes;
  std::vector<uint64_t> bytes_here;  // by tier: what this machine has
  ExitCode code = ExitCode::done;    // of the training command
  std::optional<Error> error;        // that ended it
};

nlohmann::ordered_json profile_facts(const ProfiledRun& run);

// Every recorded instruction by column: which lane, what, when, what it waited for.
nlohmann::ordered_json profile_lanes(const ProfiledRun& run);

// As JSON text that may stand anywhere, in a page too: what is not ASCII, or means something in HTML, is
// escaped.
std::string safe_json(const nlohmann::ordered_json& value);
// The same of an object, a line for each of its keys.
std::string json_lines(const nlohmann::ordered_json& object);

}  // namespace sluice
