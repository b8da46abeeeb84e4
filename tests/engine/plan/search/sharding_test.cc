// The choice of what ranks share: which strategies a mesh has, and which of them is taken.
#include "engine/plan/sharding.h"

#include <gtest/gtest.h>

#include "engine/plan/search/limit.h"
#include "tests/support/search_support.h"

namespace sluice::testing {
namespace {

using Shardings = std::vector<Sharding>;
using Outcome = WeighedSharding::Outcome;

const Sharding kAll{3, false}, kInNodes{3, true}, kState{1, false}, kNothing{0, false};

TEST(Sharding, StrategiesOfAMesh) {
  const Mesh nodes({8, 1}, 4);
  EXPECT_EQ(shardings(nodes, {}, {}, false), (Shardings{kAll, kInNodes, kState, kNothing}));
  EXPECT_EQ(shardings(nodes, {}, {}, true), (Shardings{kState, kNothing})) << "compressed gradients";
  EXPECT_EQ(shardings(nodes, 3, {}, false), (Shardings{kAll, kInNodes}));
  EXPECT_EQ(shardings(nodes, 2, {}, false), (Shardings{{2, false}}));
  EXPECT_EQ(shardings(nodes, 3, true, false), (Shardings{kInNodes}));
  EXPECT_EQ(shardings(Mesh({8, 1}, 8), {}, {}, false), (Shardings{kAll, kState, kNothing})) << "one node";
  EXPECT_EQ(shardings(Mesh({1, 1}, 1), {}, {}, false), (Shardings{kAll}));
}

// Four ranks on two nodes. Nothing takes time but compute, which is the same for all strategies.
PlanRequest request_of_ranks() {
  PlanRequest request = request_for(1, kPlenty, true);
  request.mesh = Mesh({4, 1}, 2);
  Model model = request.model(2, 64);
  model.mesh = request.mesh;
  request.model = [model](int64_t, int64_t) { return model; };
  request.rates.lanes[1].bytes_per_second = kUnlimited;
  request.rates.drives.clear();
  return request;
}

// Chooses among plans whose steps take `seconds`, where 0 means that there is no plan. `planned` becomes the
// number of plans that were asked for.
ShardingChoice choose(const PlanRequest& request, const std::vector<double>& seconds, size_t& planned) {
  const Shardings open = shardings(request.mesh, {}, {}, false);
  planned = 0;
  return choose_sharding(request, open, request.machine,
                         [&](const PlanRequest& one) -> std::variant<Plan, Infeasible> {
                           const auto is_asked = [&](const Sharding& s) {
                             return s.zero_stage == one.lower.zero_stage &&
                                    s.weights_in_node_group == one.lower.weights_in_node_group;
                           };
                           const auto k = std::ranges::find_if(open, is_asked) - open.begin();
                           ++planned;
                           if (seconds[static_cast<size_t>(k)] == 0) return Infeasible{};
                           Plan plan;
                           plan.step_seconds = seconds[static_cast<size_t>(k)];
                           return plan;
                         });
}

TEST(Sharding, TheFastestThatFitsUnlessOneSharesMoreAndIsNearlyAsFast) {
  const PlanRequest request = request_of_ranks();
  size_t planned = 0;
  EXPECT_EQ(choose(request, {10, 11, 9.6, 12}, planned).sharding, kAll);
  EXPECT_EQ(choose(request, {10, 11, 9.4, 9.3}, planned).sharding, kState);
  EXPECT_EQ(choose(request, {10, 11, 9.4, 8}, planned).sharding, kNothing);
  EXPECT_EQ(planned, 4u);
  const ShardingChoice choice = choose(request, {0, 11, 0, 10.9}, planned);
  EXPECT_EQ(choice.sharding, kInNodes);
  EXPECT_EQ(choice.weighed[0].outcome, Outcome::does_not_fit);
  EXPECT_EQ(choice.weighed[3].seconds, 10.9);
  EXPECT_EQ(choose(request, {0, 0, 0, 0}, planned).sharding, kAll);
}

// The second plan takes 1 % longer than the lower bound, so none can be faster by 5 %.
TEST(Sharding, NoneIsPlannedThatCannotBeFasterByEnough) {
  const PlanRequest request = request_of_ranks();
  LowerOptions options = request.lower;
  kState.set(options);
  const double least = least_step_seconds(request.machine, request.rates, request.model(2, 64), options);
  ASSERT_GT(least, 0);
  size_t planned = 0;
  const ShardingChoice choice = choose(request, {2 * least, 1.01 * least, least, least}, planned);
  EXPECT_EQ(planned, 2u);
  EXPECT_EQ(choice.sharding, kInNodes);
  EXPECT_EQ(choice.weighed[2].outcome, Outcome::too_slow);
  EXPECT_DOUBLE_EQ(choice.weighed[2].seconds, least);
}

TEST(Sharding, NothingIsPlannedWhereNothingIsOpen) {
  const PlanRequest request = request_of_ranks();
  const ShardingChoice choice = choose_sharding(request, Shardings{kState}, request.machine,
                                                [](const PlanRequest&) -> std::variant<Plan, Infeasible> {
                                                  ADD_FAILURE() << "it is planned";
                                                  return Infeasible{};
                                                });
  EXPECT_EQ(choice.sharding, kState);
  EXPECT_TRUE(choice.weighed.empty());
}

}  // namespace
}  // namespace sluice::testing
