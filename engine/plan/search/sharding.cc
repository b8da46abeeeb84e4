#include "engine/plan/sharding.h"

#include <algorithm>
#include <limits>

#include "engine/plan/search/limit.h"

namespace sluice {

namespace {

constexpr double kLessSharedWorthwhile = 0.95;  // of the seconds of a sharding that shares more

// The lower bound of a step with any of the request's micro-batches. Once it is below `enough`, further
// micro-batches are left out.
double least_seconds(const PlanRequest& request, const Machine& largest, double enough) {
  double least = std::numeric_limits<double>::infinity();
  for (const int64_t micro_batch : request.micro_batches) {  // lowering the largest takes least time
    if (least < enough) break;
    least = std::min(least, least_step_seconds(largest, request.rates,
                                               request.model(micro_batch, request.sequence), request.lower));
  }
  return least;
}

}  // namespace

void Sharding::set(LowerOptions& options) const {
  options.zero_stage = zero_stage;
  options.weights_in_node_group = weights_in_node_group;
}

std::vector<Sharding> shardings(const Mesh& mesh, std::optional<int> zero_stage,
                                std::optional<bool> weights_in_node_group, bool compresses) {
  const bool has_node_groups = mesh.node_group_ranks() > 1 && mesh.node_group_ranks() < mesh.ranks();
  std::vector<int> stages = {3, 1, 0};
  if (compresses) stages = {1, 0};
  if (mesh.ranks() == 1) stages = {3};
  if (zero_stage) stages = {*zero_stage};
  std::vector<Sharding> found;
  for (const int stage : stages)
    for (const bool in_node_group : {false, true}) {
      const bool differs = !in_node_group || (stage == 3 && has_node_groups);
      if (weights_in_node_group ? in_node_group == *weights_in_node_group : differs)
        found.push_back({stage, in_node_group});
    }
  return found;
}

ShardingChoice choose_sharding(
    PlanRequest request, std::span<const Sharding> open, const Machine& largest,
    const std::function<std::variant<Plan, Infeasible>(const PlanRequest&)>& plan) {
  ShardingChoice choice{open.front(), {}};
  if (open.size() == 1) return choice;
  double fast_enough = std::numeric_limits<double>::infinity();
  for (const Sharding& sharding : open) {
    sharding.set(request.lower);
    WeighedSharding& weighed = choice.weighed.emplace_back();
    weighed.sharding = sharding;
    if (fast_enough < std::numeric_limits<double>::infinity())
      weighed.seconds = least_seconds(request, largest, fast_enough);
    if (weighed.seconds >= fast_enough) {
      weighed.outcome = WeighedSharding::Outcome::too_slow;
      continue;
    }
    const auto result = plan(request);
    const Plan* const fits = std::get_if<Plan>(&result);
    weighed.outcome = fits ? WeighedSharding::Outcome::planned : WeighedSharding::Outcome::does_not_fit;
    weighed.seconds = fits ? fits->step_seconds : 0;
    if (!fits || weighed.seconds >= fast_enough) continue;
    fast_enough = kLessSharedWorthwhile * weighed.seconds;
    choice.sharding = sharding;
  }
  return choice;
}

}  // namespace sluice
