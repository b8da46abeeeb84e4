// Which other budgets and batches would make steps faster, in words. Callers: plan, profile.
#pragma once

#include <string>
#include <vector>

#include "engine/profile/what_if.h"
#include "engine/run/start/planned_run.h"

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
// long as the plan itself; where that is too long, the line says so.
std::string advice_text(const PlannedRun& run, const Plan& plan);

}  // namespace sluice
