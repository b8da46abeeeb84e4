// fetch_notes() of plan.h. A plan holds all of its arrangement, so the passes can run again.
#include "engine/base/error.h"
#include "engine/plan/plan.h"
#include "engine/plan/search/task_costs.h"

namespace sluice {

FetchNotes fetch_notes(const Plan& plan, std::vector<bool> wanted) {
  CHECK(wanted.size() == plan.program.buffers.size(), "not one answer for each buffer");
  FetchNotes notes{std::move(wanted), {}};
  Program again = plan.program;
  Arrangement arrangement;
  for (const Buffer& b : again.buffers) arrangement.homes.push_back(b.home);
  arrangement.leads = plan.leads;
  arrangement.keep = plan.keeps_copies;
  arrangement.task_costs = task_costs(again, plan.rates);
  arrangement.notes = &notes;
  CHECK(!assemble(again, arrangement), "a plan's arrangement does not fit a second time");
  CHECK(to_text(again) == to_text(plan.program), "a plan's arrangement gives another program");
  return notes;
}

}  // namespace sluice
