// Which other budgets and batches would make steps faster, in words. Callers: plan, profile.
#pragma once

#include <string>
#include <vector>

#include "engine/profile/what_if.h"
#include "engine/run/start/planned_run.h"
#include "engine/run/start/planning.h"

namespace sluice {

constexpr size_t kChangesShown = 3;

// A change in words ("4.00 GiB more host memory") and the arguments that make it.
struct ChangeWords {
  std::string words, arguments;
  bool is_beyond = false;  // the machine has less
};
// `ranks`: of the run.
ChangeWords words_of(const Change& change, const Budgets& budgets, uint64_t ranks);

// The changes that gain most, as lines of `sluice plan`. Plans for each of them, which takes some times as
// long as the plan itself. Where the program has more than `tasks_most`, the line says that nothing is tried.
std::string advice_text(const PlannedRun& run, const Plan& plan, uint64_t tasks_most = kTasksTried);

}  // namespace sluice
