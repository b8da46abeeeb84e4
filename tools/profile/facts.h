// The facts of a profile as one JSON object (docs/profile.md): profile.json holds it, and the text and the
// page are made from it. Also the lanes that the page draws.
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

// When and where the run began, and which Sluice ran it.
struct Origin {
  std::string time;  // of the start, in UTC: "2026-11-24T22:54:23Z"
  std::string host_name, version;
};

struct ProfiledRun {
  const Options& options;  // resolved
  const Budgets& budgets;
  const Plan& plan;
  const Recorder& recorder;
  const Profile& profile;
  const std::vector<StepMetrics>& steps;
  const Origin& origin;
  ExitCode code = ExitCode::done;                   // of the training command
  std::optional<Error> error;                       // what ended the training command
  std::optional<std::vector<WhatIf>> changes = {};  // none: not planned
};

nlohmann::ordered_json profile_facts(const ProfiledRun& run);

// The recorded instructions as columns: lane, name, time, what each waited for.
nlohmann::ordered_json profile_lanes(const ProfiledRun& run);

// The object as safe_json() has it, with one line for each of its keys.
std::string json_lines(const nlohmann::ordered_json& object);

}  // namespace sluice
