// Which other budgets, batches and options would make steps faster, in words. Callers: plan, profile.
//
// Every change that is advised was planned as if the user had typed it. So the command accepts it, and its
// figures are those of that plan.
#pragma once

#include <string>
#include <vector>

#include "engine/profile/what_if.h"
#include "engine/run/start/planned_run.h"
#include "engine/run/start/planning.h"

namespace sluice {

// A change in words ("4.00 GiB more host memory"), the option that makes it, and what else it changes.
struct ChangeWords {
  std::string words, option, value;
  std::string besides;  // a clause; empty: nothing
  std::string arguments() const { return "--" + option + " " + value; }
};
// `ranks`: the number of ranks of the run.
ChangeWords words_of(const Change& change, const Budgets& budgets, uint64_t ranks);
// Sets the option as the command line does.
void type_in(const ChangeWords& words, Options& options);

// The changes to try: more memory, --recompute auto, and, unless --resume is given, more sequences. Device
// memory is tried up to what there is, since a larger GPU is another machine. Host memory can be added.
std::vector<Amounts> amounts_to_try(const Options& options, const PlanRequest& request,
                                    const Budgets& budgets);

// The limit on the tasks of a plan and of all plans tried for advice, summed up. So many tasks take about a
// minute. Each plan counts for kTasksOfSearch more tasks than it has, since its search takes as long as
// laying out these.
constexpr uint64_t kAdviceTasks = 850'000, kTasksOfSearch = 37'000;

// The number of tasks that planning for the request adds to that sum.
uint64_t tasks_to_plan(const PlanRequest& request);

// The changes that gain most, as lines of `sluice plan`. Changes of the training, --clip 0 and adapters, come
// last but are tried first. Makes a plan for each change, until `tasks_most` would be exceeded; then a line
// says so. `given`: the options as the user wrote them.
std::string advice_text(const Options& given, const PlannedRun& run, const Plan& plan,
                        uint64_t tasks_most = kAdviceTasks);

}  // namespace sluice
