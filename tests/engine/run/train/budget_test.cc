// Budgets are promises: arenas are as large as the plan says, and the smallest budgets that an infeasible
// plan names are the smallest. tests/tools/train/budget_test.cc has the memory of the process.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "engine/base/pack.h"
#include "tests/support/figures.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

struct Setting {
  const char* model;
  DType precision;
  double clip;
  std::optional<Recompute> recompute;
  int64_t batch, micro_batch;
  Overlap overlap = Overlap::automatic;
};
const Setting kSettings[] = {
    {"gpt2:layers=4,width=64,heads=2,vocab=256,context=64", DType::bf16, 1, std::nullopt, 4, 1},
    {"gpt2:layers=3,width=96,heads=3,vocab=256,context=40", DType::f32, 0, Recompute::none, 4, 2},
    {"llama-1b:layers=4,width=64,heads=4,kv_heads=2,ffn=96,vocab=256,context=64", DType::f16, 0,
     Recompute::all, 2, 2, Overlap::always},
    {"llama-1b:layers=3,width=128,heads=4,kv_heads=1,ffn=160,vocab=256,context=32", DType::f32, 1,
     Recompute::all, 6, 2},
    {"gpt2:layers=4,width=64,heads=2,vocab=256,context=64", DType::bf16, 1, std::nullopt, 4, 1,
     Overlap::always},
    {"gpt2:layers=3,width=64,heads=2,vocab=256,context=64", DType::bf16, 0, Recompute::all, 4, 2,
     Overlap::never},
    {"mixtral:layers=2,width=64,heads=4,kv_heads=2,ffn=96,vocab=256,context=64,experts=4,top=2", DType::bf16,
     1, std::nullopt, 4, 1},
};

TestRun run_of(const Setting& s, const DriveDirectory& directory) {
  write_bytes(directory / "train.txt", sample_text(6000));
  TestRun run;
  run.options = short_run(directory, s.model, directory / "train.txt");
  run.options.batch = {s.batch, std::nullopt, s.micro_batch, 3};
  run.options.optimizer.clip = s.clip;
  run.options.numbers.precision = s.precision;
  run.options.memory.recompute = s.recompute;
  run.options.memory.overlap = s.overlap;
  return run;
}

enum class Tiers { host, device_host, host_nvme, all };
constexpr Tiers kTierSets[] = {Tiers::host, Tiers::device_host, Tiers::host_nvme, Tiers::all};

// Capacities by tier, in the order in which an infeasible plan lists them.
TierCapacities capacities(Tiers tiers, const std::vector<uint64_t>& bytes) {
  const bool device = tiers == Tiers::device_host || tiers == Tiers::all;
  const bool nvme = tiers == Tiers::host_nvme || tiers == Tiers::all;
  TierCapacities c;
  if (device) c.device = bytes.front();
  c.host = bytes[device ? 1 : 0];
  if (nvme) c.nvme = bytes.back();
  return c;
}
size_t tier_count(Tiers tiers) { return tiers == Tiers::host ? 1 : tiers == Tiers::all ? 3 : 2; }

bool feasible(TestRun run, const TierCapacities& arenas) {
  run.arenas = arenas;
  return std::holds_alternative<Plan>(plan_of(run));
}
// `arenas` are the least budgets that a plan named. A run of three steps trains with them, but not with one
// percent less of a tier.
TestResult expect_enough(TestRun run, const TierCapacities& arenas) {
  run.arenas = arenas;
  TestResult result = train(run);
  EXPECT_EQ(result.steps.size(), 3u);
  figures.holds("smallest budgets, trained with", result.steps.size() == 3);
  return result;
}
void expect_too_little(const TestRun& run, Tiers tiers, std::vector<uint64_t> bytes, size_t tier) {
  bytes[tier] -= bytes[tier] / 100 + 1;
  const bool refused = !feasible(run, capacities(tiers, bytes));
  EXPECT_TRUE(refused) << "tier " << tier;
  figures.holds("one percent less in one tier, refused", refused);
}
Infeasible infeasible(TestRun run, const TierCapacities& arenas) {
  run.arenas = arenas;
  const auto result = plan_of(run);
  EXPECT_TRUE(std::holds_alternative<Infeasible>(result));
  return std::holds_alternative<Infeasible>(result) ? std::get<Infeasible>(result) : Infeasible{};
}

TEST(TrainingBudgets, TheJointLeastWorksAndOnePercentLessDoesNot) {
  for (const Setting& s : kSettings)
    for (const Tiers tiers : kTierSets) {
      SCOPED_TRACE(std::string(s.model) + " tiers " + std::to_string(static_cast<int>(tiers)));
      const DriveDirectory directory;
      const TestRun run = run_of(s, directory);
      const Infeasible why = infeasible(run, capacities(tiers, std::vector<uint64_t>(tier_count(tiers), 0)));
      ASSERT_EQ(why.least_together.size(), tier_count(tiers));
      for (const uint64_t bytes : why.least_together) EXPECT_GT(bytes, 0u);
      const TestResult result = expect_enough(run, capacities(tiers, why.least_together));
      EXPECT_EQ(result.plan.program.arena_bytes.size(), tier_count(tiers));
      for (size_t t = 0; t < tier_count(tiers); ++t) {
        EXPECT_LE(result.plan.program.arena_bytes[t], why.least_together[t]);
        expect_too_little(run, tiers, why.least_together, t);
      }
    }
}

// If one tier is too small, its own least budget helps and those of others do not. If two are too small, none
// alone helps.
TEST(TrainingBudgets, TheLeastOfEachTierWorksAndOnePercentLessDoesNot) {
  for (const Setting& s : kSettings) {
    SCOPED_TRACE(s.model);
    const DriveDirectory directory;
    const TestRun run = run_of(s, directory);
    const auto joint = infeasible(run, capacities(Tiers::all, {0, 0, 0})).least_together;
    for (size_t t = 0; t < 3; ++t) {
      std::vector<uint64_t> given{joint[0] * 3 / 2, joint[1] * 3 / 2, kRoomy};
      if (t == 2) given[1] = joint[1] * 11 / 10;  // otherwise the host could hold everything
      given[t] = t == 2 ? uint64_t{1} << 20 : joint[t] / 3;
      const Infeasible why = infeasible(run, capacities(Tiers::all, given));
      ASSERT_TRUE(why.least.at(t)) << "tier " << t;
      given[t] = *why.least[t];
      expect_enough(run, capacities(Tiers::all, given));
      expect_too_little(run, Tiers::all, given, t);
    }
    const Infeasible both = infeasible(run, capacities(Tiers::all, {joint[0] / 2, joint[1] / 2, kRoomy}));
    EXPECT_FALSE(both.least[0]);
    EXPECT_FALSE(both.least[1]);
    EXPECT_FALSE(both.least[2]);
  }
}

// The activations of many micro-batches take more than accumulators. So the least budgets that are named are
// for several waves.
TEST(TrainingBudgets, TheLeastMayBeThatOfSeveralWaves) {
  const Setting s{
      "gpt2:layers=2,width=32,heads=2,vocab=256,context=64", DType::bf16, 1, std::nullopt, 128, 1};
  for (const Tiers tiers : {Tiers::host, Tiers::device_host}) {
    const DriveDirectory directory;
    TestRun run = run_of(s, directory);
    const TierCapacities none = capacities(tiers, std::vector<uint64_t>(tier_count(tiers), 0));
    run.options.batch.waves = 1;
    const auto least_of_one = infeasible(run, none).least_together;
    run.options.batch.waves.reset();
    const auto least = infeasible(run, none).least_together;
    EXPECT_LT(least.at(least.size() - 1), least_of_one.at(least.size() - 1));
    const TestResult result = expect_enough(run, capacities(tiers, least));
    EXPECT_GT(result.plan.lowering.waves, 1u);
    for (size_t t = 0; t < tier_count(tiers); ++t) expect_too_little(run, tiers, least, t);
  }
}

TEST(TrainingBudgets, MoreThanEnoughIsEnough) {
  std::mt19937_64 random(3);
  const auto grown = [&](uint64_t bytes) {
    return bytes + random() % (random() % 4 == 0 ? 3 * bytes : bytes / 4);
  };
  for (const Setting& s : kSettings) {
    const DriveDirectory directory;
    const TestRun run = run_of(s, directory);
    for (const Tiers tiers : kTierSets) {
      const auto least =
          infeasible(run, capacities(tiers, std::vector<uint64_t>(tier_count(tiers), 0))).least_together;
      for (int i = 0; i < 6; ++i) {
        std::vector<uint64_t> more;
        for (const uint64_t bytes : least) more.push_back(grown(bytes));
        EXPECT_TRUE(feasible(run, capacities(tiers, more)))
            << s.model << " tiers " << static_cast<int>(tiers) << ": " << ::testing::PrintToString(more);
      }
    }
  }
}

// At their least, device and host hold the operands of the largest task, one transfer, and little else.
TEST(TrainingBudgets, TheLeastIsCloseToTheLargestTask) {
  for (const Setting& s : kSettings) {
    SCOPED_TRACE(s.model);
    const DriveDirectory directory;
    TestRun run = run_of(s, directory);
    run.arenas = capacities(Tiers::all, infeasible(run, capacities(Tiers::all, {0, 0, 0})).least_together);
    const auto result = plan_of(run);
    ASSERT_TRUE(std::holds_alternative<Plan>(result));
    const Program& p = std::get<Plan>(result).program;
    for (TierId t = 0; t < 2; ++t) {
      const uint64_t alignment = placement_alignment(p.machine, t);
      uint64_t task_bytes = 0, fetch_bytes = 0;
      for (const Body& body : p.bodies)
        for (const Instruction& in : body.instructions) {
          uint64_t here = 0;
          for (size_t k = 0; k < in.operands.size(); ++k)
            if (in.places[k].tier == t)
              here += round_up(operand_bytes(p.buffers[in.operands[k].buffer], in.operands[k]), alignment);
          auto& largest = in.task == kNoTask ? fetch_bytes : task_bytes;
          largest = std::max(largest, here);
        }
      EXPECT_LE(static_cast<double>(p.arena_bytes[t]),
                1.15 * static_cast<double>(task_bytes) + static_cast<double>(fetch_bytes))
          << "tier " << int{t};
    }
  }
}

// The arenas are exactly as large as the highest address that any instruction or permanent buffer uses. The
// metrics report what was reached: from the third step on, when all ring slots have been in use, the end of
// the highest range in the bodies that ran.
TEST(TrainingBudgets, HighWaterMarksEqualThePlan) {
  for (const Setting& s : kSettings) {
    const DriveDirectory directory;
    TestRun run = run_of(s, directory);
    const auto least = infeasible(run, capacities(Tiers::all, {0, 0, 0})).least_together;
    run.arenas = {least[0] * 5 / 4, least[1] * 5 / 4, kRoomy};
    const TestResult result = train(run);
    const Program& p = result.plan.program;
    const BodyIds& ids = result.plan.lowering.bodies();
    std::set<BodyId> ran{*ids.load, *ids.first};
    for (const StepMetrics& m : result.steps)
      if (m.step > 1)
        ran.insert(m.order == StepOrder::guessed    ? *ids.guess
                   : m.order == StepOrder::repaired ? *ids.repair
                                                    : *ids.step);
    std::vector<uint64_t> highest(p.arena_bytes.size()), reached(p.arena_bytes.size());
    for (const Buffer& b : p.buffers)
      if (b.permanent)
        highest[b.home] = std::max(
            highest[b.home], b.home_offset + (b.ring == kNoRing ? b.bytes() : 2 * b.slot_stride + b.bytes()));
    for (BodyId id = 0; id < p.bodies.size(); ++id)
      for (const Instruction& in : p.bodies[id].instructions)
        for (size_t k = 0; k < in.operands.size(); ++k) {
          const Buffer& b = p.buffers[in.operands[k].buffer];
          const Place& place = in.places[k];
          const uint64_t slots = b.ring != kNoRing && place.tier == b.home ? 2 * b.slot_stride : 0;
          const uint64_t end = place.offset + slots + operand_bytes(b, in.operands[k]);
          highest[place.tier] = std::max(highest[place.tier], end);
          if (ran.contains(id)) reached[place.tier] = std::max(reached[place.tier], end);
        }
    for (size_t t = 0; t < highest.size(); ++t) {
      EXPECT_LE(highest[t], p.arena_bytes[t]) << s.model << " tier " << t;
      EXPECT_GT(highest[t] + placement_alignment(p.machine, static_cast<TierId>(t)), p.arena_bytes[t])
          << s.model << " tier " << t;
    }
    for (const StepMetrics& m : result.steps) {
      ASSERT_EQ(m.peak_bytes.size(), p.arena_bytes.size());
      for (size_t t = 0; t < p.arena_bytes.size(); ++t) {
        EXPECT_EQ(m.peak_bytes[t].first, p.machine.tiers[t].name);
        EXPECT_LE(m.peak_bytes[t].second, reached[t]);
        if (m.step < 3) continue;
        EXPECT_EQ(m.peak_bytes[t].second, reached[t]) << s.model << " tier " << t;
      }
    }
  }
}

}  // namespace
}  // namespace sluice
