#include "engine/run/start/sharing.h"

#include <fmt/format.h>

#include <variant>
#include <vector>

#include "engine/base/error.h"
#include "engine/run/start/planning.h"

namespace sluice {

namespace {

constexpr int64_t kZeroStages[] = {3, 1, 0};    // the first shares most; 1 and 2 are one program
constexpr double kLessSharedWorthwhile = 0.95;  // of the seconds with more shared

// One choice of what ranks share.
struct ZeroChoice {
  int64_t stage = 3;
  WeightShards weights = WeightShards::all;
};

void lower_sharing(const ZeroChoice& sharing, LowerOptions& lower) {
  lower.zero_stage = static_cast<int>(sharing.stage);
  lower.weights_in_node_group = sharing.weights == WeightShards::node;
}

// The choices that the options leave open. The first shares most.
std::vector<ZeroChoice> open_sharings(const RankOptions& options, const Mesh& mesh,
                                      const LowerOptions& lower) {
  const bool has_node_groups = mesh.node_group_ranks() > 1 && mesh.node_group_ranks() < mesh.ranks();
  std::vector<ZeroChoice> open;
  const auto add = [&](int64_t stage) {
    for (const WeightShards weights : {WeightShards::all, WeightShards::node})
      if (options.shard_weights ? weights == *options.shard_weights
                                : weights == WeightShards::all || (stage == 3 && has_node_groups))
        open.push_back({stage, weights});
  };
  if (options.zero || mesh.ranks() == 1) {
    add(options.zero.value_or(kZeroStages[0]));
    return open;
  }
  for (const int64_t stage : kZeroStages)
    if (stage < 2 || lower.compress_rank == 0) add(stage);
  return open;
}

std::string sharing_words(const ZeroChoice& sharing) {
  const bool within_nodes = sharing.stage == 3 && sharing.weights == WeightShards::node;
  return std::to_string(sharing.stage) + (within_nodes ? " within nodes" : "");
}

}  // namespace

void apply_sharing(const RankOptions& options, const Mesh& mesh, LowerOptions& lower) {
  if (mesh.node_group_ranks() == 1 && mesh.ranks() > 1 && options.shard_weights == WeightShards::node)
    throw Error(ExitCode::usage,
                fmt::format("--shard-weights node is for an even number of ranks on every machine, not {}.",
                            mesh.node_ranks() % 2 ? mesh.node_ranks() : mesh.ranks() % mesh.node_ranks()),
                "Use --shard-weights all, or --zero 2, where every rank has all weights.");
  lower_sharing({options.zero.value_or(kZeroStages[0]), options.shard_weights.value_or(WeightShards::all)},
                lower);
}

std::string settle_sharing(RankOptions& options, PlanRequest request, const Budgets& budgets) {
  const std::vector<ZeroChoice> open = open_sharings(options, request.mesh, request.lower);
  ZeroChoice choice = open.front();
  double best = 0;  // 0: no plan yet
  std::string others;
  for (const ZeroChoice& sharing : open) {
    if (open.size() == 1) break;
    lower_sharing(sharing, request.lower);
    const auto result = plan_within(request, budgets);
    const Plan* plan = std::get_if<Plan>(&result);
    const std::string seconds = plan ? fmt::format("{:.3g} s", plan->step_seconds) : "does not fit";
    others += fmt::format("{}{}: {}", others.empty() ? "" : ", ", sharing_words(sharing), seconds);
    if (!plan || (best > 0 && plan->step_seconds >= kLessSharedWorthwhile * best)) continue;
    best = plan->step_seconds;
    choice = sharing;
  }
  options.zero = choice.stage;
  options.shard_weights = choice.weights;
  if (others.empty()) return "";
  return fmt::format("Ranks share at ZeRO stage {} (a step at stage {}).", sharing_words(choice), others);
}

}  // namespace sluice
