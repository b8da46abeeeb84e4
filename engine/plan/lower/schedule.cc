#include "engine/plan/lower/schedule.h"

#include <algorithm>
#include <stdexcept>

namespace sluice {

namespace {

bool meets_each_once(const std::vector<ScheduledUse>& visits, uint32_t uses, uint32_t slices) {
  std::vector<bool> met(size_t{uses} * slices, false);
  for (const ScheduledUse& v : visits) {
    if (v.use >= uses || v.slice >= slices || met[size_t{v.use} * slices + v.slice]) return false;
    met[size_t{v.use} * slices + v.slice] = true;
  }
  return visits.size() == met.size();
}

}  // namespace

StepSchedule layer_major(const Model& model, uint32_t slices) {
  StepSchedule schedule;
  uint32_t begin = 0;
  for (uint32_t l = 0; l < model.trained_layers(); ++l) {
    const uint32_t end = begin + static_cast<uint32_t>(model.layers[l].segments.size());
    for (uint32_t m = 0; m < slices; ++m)
      for (uint32_t u = begin; u < end; ++u) schedule.forward.push_back({u, m});
    begin = end;
  }
  for (uint32_t l = model.trained_layers(), end = begin; l-- > 0; end = begin) {
    begin = end - static_cast<uint32_t>(model.layers[l].segments.size());
    for (uint32_t m = 0; m < slices; ++m)
      for (uint32_t u = end; u-- > begin;) schedule.backward.push_back({u, m});
  }
  return schedule;
}

void check_schedule(const StepSchedule& schedule, uint32_t uses, uint32_t slices) {
  if (!meets_each_once(schedule.forward, uses, slices) || !meets_each_once(schedule.backward, uses, slices))
    throw std::invalid_argument("the schedule does not visit every segment use with every micro-batch once");
}

}  // namespace sluice
