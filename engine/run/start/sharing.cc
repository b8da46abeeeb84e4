#include "engine/run/start/sharing.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/plan/sharding.h"
#include "engine/run/start/planning.h"

namespace sluice {

namespace {

std::vector<Sharding> open_shardings(const RankOptions& options, const Mesh& mesh) {
  std::optional<int> stage;
  if (options.zero) stage = static_cast<int>(*options.zero);
  std::optional<bool> in_node_group;
  if (options.shard_weights) in_node_group = options.shard_weights == WeightShards::node;
  return shardings(mesh, stage, in_node_group, options.compression.rank > 0);
}

std::string words_of(const Sharding& sharding) {
  const bool within_nodes = sharding.zero_stage == 3 && sharding.weights_in_node_group;
  return std::to_string(sharding.zero_stage) + (within_nodes ? " within nodes" : "");
}

std::string words_of(const WeighedSharding& weighed) {
  using Outcome = WeighedSharding::Outcome;
  if (weighed.outcome == Outcome::does_not_fit) return words_of(weighed.sharding) + ": does not fit";
  return fmt::format("{}: {}{:.3g} s", words_of(weighed.sharding),
                     weighed.outcome == Outcome::too_slow ? "at least " : "", weighed.seconds);
}

// The machine with the largest device arena that plan_within() may use. A smaller host budget needs fewer
// page tables, which leaves the device a larger arena.
Machine with_largest_arenas(Machine machine, const Budgets& budgets) {
  if (!budgets.device || !budgets.device->driver) return machine;
  const std::vector<const TierBudget*> rows = budgets.by_tier();
  for (size_t t = 0; t < rows.size(); ++t)
    if (rows[t] == &*budgets.device) machine.tiers[t].capacity = budgets.with_host_limit(0).device->arena;
  return machine;
}

}  // namespace

void apply_sharing(const RankOptions& options, const Mesh& mesh, LowerOptions& lower) {
  if (mesh.node_group_ranks() == 1 && mesh.ranks() > 1 && options.shard_weights == WeightShards::node)
    throw Error(ExitCode::usage,
                fmt::format("--shard-weights node is for an even number of ranks on every machine, not {}.",
                            mesh.node_ranks() % 2 ? mesh.node_ranks() : mesh.ranks() % mesh.node_ranks()),
                "Use --shard-weights all, or --zero 2, where every rank has all weights.");
  Sharding{static_cast<int>(options.zero.value_or(3)), options.shard_weights == WeightShards::node}.set(
      lower);
}

std::string settle_sharing(RankOptions& options, PlanRequest request, const Budgets& budgets) {
  const std::vector<Sharding> open = open_shardings(options, request.mesh);
  const Machine largest = with_largest_arenas(request.machine, budgets);
  const ShardingChoice choice = choose_sharding(
      std::move(request), open, largest, [&](const PlanRequest& one) { return plan_within(one, budgets); });
  options.zero = choice.sharding.zero_stage;
  options.shard_weights = choice.sharding.weights_in_node_group ? WeightShards::node : WeightShards::all;
  if (choice.weighed.empty()) return "";
  std::string weighed;
  for (const WeighedSharding& one : choice.weighed) weighed += (weighed.empty() ? "" : ", ") + words_of(one);
  return fmt::format("Ranks share at ZeRO stage {} (a step at stage {}).", words_of(choice.sharding),
                     weighed);
}

}  // namespace sluice
