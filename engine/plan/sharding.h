// Which ranks share which training state: strategies that a request leaves open, and the choice among them by
// simulated time.
//
// Sharding at ZeRO stages: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion
// parameter models". Within node groups: Zhang et al. 2022, "MiCS: near-linear scaling for training gigantic
// model on public cloud".
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "engine/plan/plan.h"

namespace sluice {

struct Sharding {
  int zero_stage = 3;  // stages 1 and 2 have the same program
  bool weights_in_node_group = false;

  void set(LowerOptions& options) const;
  bool operator==(const Sharding&) const = default;
};

// The shardings that are possible on the mesh, with the given stage and weights_in_node_group (nullopt: any).
// The first one shares most. If gradients are compressed, ranks share no weights.
std::vector<Sharding> shardings(const Mesh& mesh, std::optional<int> zero_stage,
                                std::optional<bool> weights_in_node_group, bool compresses);

struct WeighedSharding {
  enum class Outcome : uint8_t { planned, does_not_fit, too_slow };

  Sharding sharding;
  Outcome outcome = Outcome::planned;
  double seconds = 0;  // of a step, simulated; too_slow: the lower bound under any placement (limit.h)
};
struct ShardingChoice {
  Sharding sharding;                     // the fastest; the first of all, if none fits
  std::vector<WeighedSharding> weighed;  // in the order of `open`; empty: `open` has one only
};

// A sharding is chosen over one that shares more only if it is 5 % faster. It is planned only if its lower
// bound (limit.h) allows that. `request` may be made for any of these shardings. `plan` may enlarge arenas of
// the request's machine, up to those of `largest`.
ShardingChoice choose_sharding(PlanRequest request, std::span<const Sharding> open, const Machine& largest,
                               const std::function<std::variant<Plan, Infeasible>(const PlanRequest&)>& plan);

}  // namespace sluice
