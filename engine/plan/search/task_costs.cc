#include "engine/plan/search/task_costs.h"

#include <cmath>

#include "engine/simulate/simulate.h"

namespace sluice {

namespace {

std::vector<uint32_t> costs_of(const Program& program, const MachineRates& rates, const Body& body) {
  std::vector<double> seconds;
  double segment_seconds = 0, segments = 0;
  for (const Task& t : body.tasks) {
    seconds.push_back(task_seconds(program, rates, t));
    if (!is_of_segment(t.kind)) continue;
    segment_seconds += seconds.back();
    segments += 1;
  }
  const double scale = segment_seconds > 0 ? kSegmentCost * segments / segment_seconds : 0;
  // Sums are rounded, not single costs, so that many small tasks together cost what they should.
  std::vector<uint32_t> costs;
  double sum = 0.5;
  for (const double s : seconds) {
    const double before = std::floor(sum);
    sum += s * scale;
    costs.push_back(static_cast<uint32_t>(std::floor(sum) - before));
  }
  return costs;
}

}  // namespace

std::vector<std::vector<uint32_t>> task_costs(const Program& program, const MachineRates& rates) {
  std::vector<std::vector<uint32_t>> costs;
  for (const Body& body : program.bodies) costs.push_back(costs_of(program, rates, body));
  return costs;
}

}  // namespace sluice
