// The search against brute force on small models in two and three tiers, and against the simple placement
// rules. Brute force tries all ways in which the first groups of weights, of gradients and of state live
// higher than the rest, with many sets of layers that recompute.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>

#include "engine/plan/plan.h"
#include "engine/simulate/simulate.h"
#include "tests/support/figures.h"
#include "tests/support/plan_support.h"

namespace sluice::testing {
namespace {

constexpr double kWithin = 1.03;
Figures& figures = Figures::print_at_end();
constexpr uint32_t kLead = 3;  // tasks, in brute force
const std::vector<Recompute> kAllLevels{kRecomputes.begin(), kRecomputes.end()};

// The drives and compute take about equally long. Nothing has latency, which would make up the whole time of
// small transfers.
MachineRates even_rates() {
  MachineRates r;
  r.name = "even";
  r.precision = DType::bf16;
  r.pools = {{"cores", 2}};
  LaneRates compute{.lane = "compute", .bytes_per_second = 40e9}, optimizer{.lane = "optimizer"};
  compute.flops.bf16 = 20e9;
  optimizer.bytes_per_second = 10e9;
  compute.sharing.occupies = optimizer.sharing.occupies = {{0, 2}};
  r.lanes = {compute, optimizer};
  r.links = {{"nvme", "host"}, {"host", "nvme"}};
  r.drives = {{.tier = "nvme", .read = 0.1e9, .write = 0.1e9, .mixed = 0.1e9}};
  return r;
}

PlanRequest request_for(uint32_t layers, uint64_t host_bytes, bool clip) {
  PlanRequest r;
  r.machine = testing::machine_of(Tiers::host_nvme);
  r.machine.tiers[0].capacity = host_bytes;
  r.machine.tiers[1].alignment = kDirectAlignment;
  r.rates = even_rates();
  const Model model = build_model(
      config_from_name("gpt2:layers=" + std::to_string(layers) + ",width=128,heads=2,vocab=256,context=64"),
      DType::bf16, 2, 64);
  r.model = [model](int64_t, int64_t) { return model; };
  r.micro_batches = {2};
  r.lower.batch = 4;
  r.lower.update_waits_for_norm = clip;
  r.lower.optimizer = {3, state_plane_stride};
  r.lower.workspace_bytes = no_workspace;
  return r;
}

// Groups before the first bound live in the top tier, those before the next bound in the tier below, and so
// on.
using Division = std::vector<uint32_t>;

// All ways to divide so many groups over the tiers; the rest lives in the lowest tier.
std::vector<Division> divisions(uint32_t groups, size_t tiers) {
  std::vector<Division> all{{}};
  for (size_t tier = 0; tier + 1 < tiers; ++tier) {
    std::vector<Division> longer;
    for (const Division& d : all)
      for (uint32_t bound = d.empty() ? 0 : d.back(); bound <= groups; ++bound) {
        longer.push_back(d);
        longer.back().push_back(bound);
      }
    all = std::move(longer);
  }
  return all;
}

TierId home_of(uint32_t group, const Division& d) {
  return static_cast<TierId>(std::upper_bound(d.begin(), d.end(), group) - d.begin());
}

// By buffer. `divided` is by class: weights, gradients, state.
std::vector<TierId> homes_of(const Program& p, const Lowering& lowering,
                             const std::array<const Division*, 3>& divided) {
  std::vector<TierId> homes(p.buffers.size(), lowest_tier(p.machine));
  for (uint32_t g = 0; g < lowering.groups.size(); ++g) {
    const GroupBuffers& b = lowering.groups[g];
    homes[b.weights] = home_of(g, *divided[0]);
    homes[b.gradient] = home_of(g, *divided[1]);
    for (const BufferId s : b.state) homes[s] = home_of(g, *divided[2]);
  }
  return homes;
}

using Levels = std::vector<Recompute>;  // by layer

// The fastest step over all divisions and sets of levels. All bodies of the best must fit, not only its step.
double best_of_all(const PlanRequest& request, const std::vector<Levels>& sets) {
  const size_t tiers = request.machine.tiers.size();
  double best = 1e300;
  for (const Levels& set : sets) {
    LowerOptions options = request.lower;
    options.recompute = {Recompute::none};  // the embedding; the choice matters neither here nor for the head
    options.recompute.insert(options.recompute.end(), set.begin(), set.end());
    options.recompute.push_back(Recompute::none);
    Program whole;
    whole.machine = request.machine;
    const Lowering lowering = lower(request.model(2, request.sequence), options, whole);
    const BodyId step = *lowering.bodies().step;
    Program tasks = whole;
    for (size_t b = 0; b < tasks.bodies.size(); ++b)
      if (b != step) tasks.bodies[b].tasks.clear();
    const std::vector<Division> all = divisions(static_cast<uint32_t>(lowering.groups.size()), tiers);
    const std::vector<Division> none{Division(tiers - 1, 0)};
    for (const Division& weights : all)
      for (const Division& gradients : request.lower.update_waits_for_norm ? all : none)  // else transient
        for (const Division& state : all) {
          const Arrangement a{homes_of(tasks, lowering, {&weights, &gradients, &state}),
                              std::vector<uint32_t>(tiers, kLead)};
          Program p = tasks;
          if (assemble(p, a)) continue;
          const double seconds = steady_step_seconds(p, request.rates, step);
          if (seconds >= best) continue;
          p = whole;
          if (!assemble(p, a)) best = seconds;
        }
  }
  return best;
}

std::vector<Levels> all_sets(uint32_t layers, const Levels& levels) {
  std::vector<Levels> sets{{}};
  for (uint32_t l = 0; l < layers; ++l) {
    std::vector<Levels> longer;
    for (const Levels& set : sets)
      for (const Recompute level : levels) {
        longer.push_back(set);
        longer.back().push_back(level);
      }
    sets = std::move(longer);
  }
  return sets;
}

void expect_as_good(uint32_t layers, bool clip, uint64_t percent, const std::vector<Levels>& sets) {
  const auto roomy = std::get<Plan>(make_plan(request_for(layers, kPlenty, clip)));
  const PlanRequest request = request_for(layers, roomy.program.arena_bytes[0] * percent / 100, clip);
  const auto result = make_plan(request);
  ASSERT_TRUE(std::holds_alternative<Plan>(result)) << percent;
  const double found = std::get<Plan>(result).step_seconds, best = best_of_all(request, sets);
  figures.at_most(fmt::format("search / brute force, {} layers", layers), found / best, kWithin);
  EXPECT_LE(found, kWithin * best) << layers << " layers in " << percent << " % of plenty, clip " << clip;
  EXPECT_GT(best, roomy.step_seconds) << "not for want of memory";
}

TEST(PlanSearch, IsAsGoodAsBruteForce) {
  for (const bool clip : {true, false})
    for (const uint64_t percent : {50, 75})
      expect_as_good(4, clip, percent, all_sets(4, {Recompute::none, Recompute::cheap, Recompute::all}));
}

// Of eight layers, the last few or the first few keep more than the others.
TEST(PlanSearch, IsAsGoodForEightLayers) {
  std::vector<Levels> sets;
  for (const auto& [more, less] : {std::pair{Recompute::none, Recompute::all},
                                   {Recompute::none, Recompute::cheap},
                                   {Recompute::cheap, Recompute::all}})
    for (uint32_t kept = 0; kept <= 8; kept += 2)
      for (const bool last : {false, true}) {
        sets.emplace_back();
        for (uint32_t l = 0; l < 8; ++l)
          sets.back().push_back((last ? l >= 8 - kept : l < kept) ? more : less);
      }
  std::sort(sets.begin(), sets.end());
  sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
  expect_as_good(8, true, 60, sets);
}

// A device above both: its links are four times as fast as the drives; updates run at the speed of compute's
// memory, or slower.
PlanRequest in_three_tiers(bool clip, double update_bytes_per_second, uint32_t layers = 2) {
  PlanRequest r = request_for(layers, kPlenty, clip);
  r.machine = testing::machine_of(Tiers::device_host_nvme);
  r.machine.tiers[2].alignment = kDirectAlignment;
  r.rates.links.push_back({"host", "device", 0.4e9});
  r.rates.links.push_back({"device", "host", 0.4e9});
  r.rates.lanes[1].bytes_per_second = update_bytes_per_second;
  return r;
}

TEST(PlanSearch, IsAsGoodInThreeTiers) {
  for (const bool clip : {true, false})
    for (const double update : {40e9, 1e9}) {
      PlanRequest request = in_three_tiers(clip, update);
      const uint64_t plenty = std::get<Plan>(make_plan(request)).program.arena_bytes[0];
      for (const uint64_t device : {60, 75, 90})
        for (const uint64_t host : {40, 75}) {
          request.machine.tiers[0].capacity = plenty * device / 100;
          request.machine.tiers[1].capacity = plenty * host / 100;
          const auto result = make_plan(request);
          const std::string what = fmt::format("clip {}, update {:.0f} GB/s, {} % device, {} % host", clip,
                                               update / 1e9, device, host);
          ASSERT_TRUE(std::holds_alternative<Plan>(result)) << what;
          const double found = std::get<Plan>(result).step_seconds,
                       best = best_of_all(request, all_sets(2, kAllLevels));
          ASSERT_LT(best, 1e300) << what;
          figures.at_most("search / brute force, three tiers", found / best, kWithin);
          EXPECT_LE(found, kWithin * best) << what;
        }
    }
}

TEST(PlanSearch, MoreMemoryIsNotSlower) {
  for (const bool clip : {true, false}) {
    PlanRequest request = in_three_tiers(clip, 1e9);
    const uint64_t plenty = std::get<Plan>(make_plan(request)).program.arena_bytes[0];
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

// State has one buffer for each shard. A large model is searched with larger shards than the plan's. Then the
// search moves no single buffers, since these are not the plan's.
TEST(PlanSearch, SingleBuffersMoveOnlyWithThePlansShards) {
  const auto moves = [](uint32_t layers) {
    PlanRequest request = in_three_tiers(true, 1e9);
    const Model model = build_model(config_from_name("gpt2:layers=" + std::to_string(layers) +
                                                     ",width=4096,heads=32,vocab=256,context=64"),
                                    DType::bf16, 2, 64);
    request.model = [model](int64_t, int64_t) { return model; };
    const uint64_t plenty = std::get<Plan>(make_plan(request)).program.arena_bytes[0];
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

// In a deep model the search tries only some numbers of kept layers and leaves out what seems hopeless.
TEST(PlanSearch, DeepModelsAreNoSlowerThanWithAGivenRecomputation) {
  PlanRequest request = in_three_tiers(true, 1e9, 20);
  const uint64_t plenty = std::get<Plan>(make_plan(request)).program.arena_bytes[0];
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
  const uint64_t plenty = std::get<Plan>(make_plan(request)).program.arena_bytes[0];
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
