// The search against the simple placement rules, against less memory and against given levels of
// recomputation.
#include "engine/plan/search/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>

#include "tests/support/figures.h"
#include "tests/support/search_support.h"

namespace sluice::testing {
namespace {

// Two refusals become one, with the smaller least of each tier. What planning takes is told by the refusal
// whose least the refused tier gets.
TEST(PlanSearch, ARefusalKeepsThePlanningOfItsLeast) {
  Infeasible a{.tier = 1, .least = {5, 90}, .least_together = {5, 90}, .planning = 90};
  Infeasible b{.tier = 1, .least = {7, 60}, .least_together = {7, 60}, .planning = 20};
  for (const Infeasible& best : {better_of(a, b), better_of(b, a)}) {
    EXPECT_EQ(best.least, (std::vector<std::optional<uint64_t>>{5, 60}));
    EXPECT_EQ(best.least_together, (std::vector<uint64_t>{5, 90}));
    EXPECT_EQ(best.planning, 20u);
  }
  b.least[1].reset();
  EXPECT_EQ(better_of(a, b).planning, 90u);
}

TEST(PlanSearch, MoreMemoryIsNotSlower) {
  for (const bool clip : {true, false}) {
    PlanRequest request = in_three_tiers(clip, 1e9);
    const uint64_t plenty = plenty_of(request);
    for (const TierId tier : {0, 1}) {
      for (const TierId memory : {0, 1}) request.machine.tiers[memory].capacity = plenty * 6 / 10;
      double before = 1e300;
      for (const uint64_t percent : {60, 90, 150, 400}) {
        request.machine.tiers[tier].capacity = plenty * percent / 100;
        const double seconds = std::get<Plan>(make_plan(request)).step_seconds;
        EXPECT_LE(seconds, kWithin * before) << "clip " << clip << ", tier " << tier << ", " << percent;
        before = std::min(before, seconds);
      }
    }
  }
}

// A model so large that the first candidate takes all of the work is planned by that candidate.
TEST(PlanSearch, GoesOnWhereNoWorkIsLeft) {
  for (const Overlap overlap : {Overlap::automatic, Overlap::always})
    for (const bool clip : {true, false}) {
      PlanRequest request = in_three_tiers(clip, 1e9, 4);
      request.lower.batch = 16;
      request.overlap = overlap;
      request.machine.tiers[0].capacity = plenty_of(request) / 2;
      Search search(request, 2, 0);
      EXPECT_LT(search.explore(1), Search::kNotFeasible);
      EXPECT_EQ(search.work_left(), 0u);
      EXPECT_TRUE(std::holds_alternative<Plan>(search.finish(0)));
    }
}

TEST(PlanSearch, LessWorkWeighsFewerCandidates) {
  PlanRequest request = in_three_tiers(true, 1e9);
  request.machine.tiers[0].capacity = plenty_of(request) / 2;
  const Plan thorough = std::get<Plan>(make_plan(request));
  uint32_t before = thorough.candidates;
  for (const uint64_t work : {kSearchWork / 10, kSearchWork / 100}) {
    request.search_work = work;
    const Plan quick = std::get<Plan>(make_plan(request));
    EXPECT_LT(quick.candidates, before / 2) << work;
    EXPECT_GE(quick.step_seconds, thorough.step_seconds / kWithin) << work;
    before = quick.candidates;
  }
  request.search_work = 0;
  EXPECT_TRUE(std::holds_alternative<Plan>(make_plan(request)));
}

// State has one buffer for each shard. A large model is searched with larger shards than the plan's. Then the
// search moves no single buffers, since these are not the plan's.
TEST(PlanSearch, SingleBuffersMoveOnlyWithThePlansShards) {
  const auto moves = [](uint32_t layers) {
    PlanRequest request = in_three_tiers(true, 1e9);
    const Model model = build_model(config_from_name("gpt2:layers=" + std::to_string(layers) +
                                                     ",width=4096,heads=32,vocab=256,context=64"),
                                    DType::bf16, 2, 64);
    request.model = [model](int64_t, int64_t) { return model; };
    const uint64_t plenty = plenty_of(request);
    for (const TierId memory : {0, 1}) request.machine.tiers[memory].capacity = plenty * 6 / 10;
    const Plan plan = std::get<Plan>(make_plan(request));
    return std::any_of(plan.weighed.begin(), plan.weighed.end(), [](const Weighed& w) { return w.moved; });
  };
  EXPECT_FALSE(moves(6)) << "1.2 billion parameters";
  EXPECT_TRUE(moves(1));
}

// The search also weighs the placement of every rule, so no rule is better than its choice.
TEST(PlanSearch, IsNoWorseThanAnyRule) {
  for (const uint64_t percent : {40, 60, 80}) {
    const auto roomy = std::get<Plan>(make_plan(request_for(4, kPlenty, true)));
    PlanRequest request = request_for(4, roomy.program.arena_bytes[0] * percent / 100, true);
    const double found = std::get<Plan>(make_plan(request)).step_seconds;
    std::set<double> ruled;
    for (const Placement rule :
         {Placement::lowest, Placement::highest, Placement::weights_first, Placement::state_first}) {
      request.placement = rule;
      const Plan plan = std::get<Plan>(make_plan(request));
      figures.at_most("search / each rule", found / plan.step_seconds, kWithin);
      EXPECT_LE(found, kWithin * plan.step_seconds) << static_cast<int>(rule) << " in " << percent << " %";
      ruled.insert(plan.step_seconds);
    }
    EXPECT_GE(ruled.size(), 3u) << "they differ";
  }
}

// In a deep model the search tries only some of what layers may keep, and leaves out what seems hopeless.
TEST(PlanSearch, DeepModelsAreNoSlowerThanWithAGivenRecomputation) {
  PlanRequest request = in_three_tiers(true, 1e9, 20);
  const uint64_t plenty = plenty_of(request);
  for (const uint64_t device : {50, 75, 95}) {
    request.machine.tiers[0].capacity = plenty * device / 100;
    request.machine.tiers[1].capacity = plenty * 7 / 10;
    request.recompute.reset();
    const double found = std::get<Plan>(make_plan(request)).step_seconds;
    for (const Recompute given : kRecomputes) {
      request.recompute = given;
      const auto result = make_plan(request);
      ASSERT_TRUE(std::holds_alternative<Plan>(result)) << device << " %, " << static_cast<int>(given);
      const double seconds = std::get<Plan>(result).step_seconds;
      figures.at_most("search / a given recomputation, 20 layers", found / seconds, kWithin);
      EXPECT_LE(found, kWithin * seconds) << device << " %, " << static_cast<int>(given);
    }
  }
}

// The rules decide where buffers live.
TEST(PlanSearch, RulesAreKept) {
  const auto roomy = std::get<Plan>(make_plan(request_for(4, kPlenty, true)));
  PlanRequest request = request_for(4, roomy.program.arena_bytes[0] / 2, true);
  const auto in_memory = [&](Placement rule) {  // of weights, gradients, state
    request.placement = rule;
    const Plan plan = std::get<Plan>(make_plan(request));
    std::map<BufferClass, uint64_t> bytes;
    for (const Buffer& b : plan.program.buffers)
      if (b.permanent && b.home == 0) bytes[b.kind] += b.bytes();
    return std::array{bytes[BufferClass::weights], bytes[BufferClass::gradients], bytes[BufferClass::state]};
  };
  uint64_t all_weights = 0;
  for (const Buffer& b : roomy.program.buffers)
    if (b.permanent && b.kind == BufferClass::weights) all_weights += b.bytes();
  EXPECT_EQ(in_memory(Placement::lowest), (std::array<uint64_t, 3>{}));
  EXPECT_EQ(in_memory(Placement::weights_first)[0], all_weights);
  const auto state_first = in_memory(Placement::state_first);
  EXPECT_GT(state_first[2], in_memory(Placement::weights_first)[2]);
  const auto by_layer = in_memory(Placement::highest);
  for (size_t k = 0; k < 3; ++k) EXPECT_GT(by_layer[k], 0u);
  EXPECT_NE(by_layer, state_first);
}

// With rule `lowest`, no buffer lives above the drives, though device memory has room.
TEST(PlanSearch, RulesAreKeptAboveHostMemory) {
  PlanRequest request = request_for(4, kPlenty, true);
  request.machine = testing::machine_of(Tiers::device_host_nvme);
  request.rates.links.push_back({"host", "device", 0.1e9});
  request.rates.links.push_back({"device", "host", 0.1e9});
  const uint64_t plenty = plenty_of(request);
  for (const TierId memory : {0, 1}) request.machine.tiers[memory].capacity = plenty * 6 / 10;
  const auto above_the_drives = [&](Placement placement) {
    request.placement = placement;
    const Plan plan = std::get<Plan>(make_plan(request));
    return std::count_if(plan.program.buffers.begin(), plan.program.buffers.end(), [](const Buffer& b) {
      return b.permanent && b.kind != BufferClass::scalars && b.home < 2;
    });
  };
  EXPECT_EQ(above_the_drives(Placement::lowest), 0);
  EXPECT_GT(above_the_drives(Placement::automatic), 0);
}

}  // namespace
}  // namespace sluice::testing
