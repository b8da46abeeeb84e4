// Where the time of a plan's step goes: what every lane does, what lane `compute` waits for, the critical
// path, the bottleneck, and what the step writes to drives. All of it is simulated, of a steady step.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/profile/attribute.h"
#include "engine/run/options/options.h"
#include "engine/run/train/saving.h"

namespace sluice {

// The resource whose work takes longest at its full rate: no order of the same work takes less.
struct Bottleneck {
  enum class Kind : uint8_t { lane, pool, drive };
  Kind kind = Kind::lane;
  size_t index = 0;  // into Machine::lanes, MachineRates::pools or drives
  double seconds = 0;
};
Bottleneck bottleneck_of(const Loads& loads);
// "compute", "cores"; a drive by its tier, and its number from 1 where there are several: "nvme 2".
std::string bottleneck_name(const Program& program, const MachineRates& rates, const Bottleneck& bottleneck);

// For each level of Recompute, the number of segments that have it. Segments that end in the loss are not
// counted: their forward runs within their backward.
using SegmentLevels = std::array<uint32_t, kRecomputes.size()>;
SegmentLevels segment_levels(const Plan& plan);
// "none of 3, cheap of 5 segments", or "all of 8 segments".
std::string levels_words(const SegmentLevels& levels);
// Seconds of a step that lane `compute` spends on recomputation.
double recompute_seconds(const Plan& plan);

struct PlanFacts {
  uint64_t ranks = 1;                       // number of ranks that write to the same drives
  double seconds = 0;                       // of the step
  Saving saving;                            // what checkpoints add to it
  std::vector<double> busy;                 // by lane
  std::vector<std::vector<double>> slowed;  // part of `busy`, as SimulationResult::lane_slowed
  std::vector<double> waited_for;           // by lane: idle seconds of compute that are charged to it
  std::vector<double> critical;             // by lane: seconds of the critical path
  std::vector<WorkSeconds> waits, path;     // waited_for and critical by kind of work, the most first
  Bottleneck bottleneck;
  uint64_t bytes_written = 0;  // to files, by all these ranks
  double drive_part = 1;       // the largest part of bytes_written that one drive gets
};
PlanFacts facts_of(const Plan& plan, const Options& options);

// The facts as `sluice plan` prints them: a table and some lines. `steps`: of the run, where they are given.
std::string facts_text(const Plan& plan, const PlanFacts& facts, std::optional<int64_t> steps);

// A line about the drive's wear in a run of `steps` steps. "" if the drive would last a year of such steps.
std::string short_wear_text(const PlanFacts& facts, int64_t steps);

// Adds the facts to the output of `plan --json`.
void add_facts(const Plan& plan, const PlanFacts& facts, std::optional<int64_t> steps,
               nlohmann::ordered_json& out);
// The value of --steps, if it is given.
std::optional<int64_t> steps_of(const Options& options);

}  // namespace sluice
