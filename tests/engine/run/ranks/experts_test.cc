// Experts that are divided over ranks give the losses of one rank, and the same bits at every stage and under
// any budgets.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/ranks_support.h"

namespace sluice {
namespace {

constexpr const char* kMixtral =
    "mixtral:layers=2,width=64,heads=4,kv_heads=2,ffn=96,vocab=256,context=32,experts=4,top=2";
// kShared has an expert of all tokens. kCapacity has drawn second choices, a capacity, and fewer experts in
// the first layer that has any.
constexpr const char* kShared =
    "qwen2_moe:layers=2,width=64,heads=4,kv_heads=2,vocab=256,context=32,experts=8,top=2,expert_ffn=32,"
    "shared_ffn=64";
constexpr const char* kCapacity =
    "gpt2-moe:layers=4,width=64,heads=4,vocab=256,context=32,experts=4/8,every=2,top=2,capacity=1.25,"
    "second=random,noise=yes";

class RanksExpertsTest : public RanksTest {
 protected:
  TestRun experts_on(int64_t ranks, int64_t over, const std::string& out,
                     const char* model = kMixtral) const {
    TestRun run = run_on(ranks, out);
    run.options.model.model = model;
    run.options.batch.steps = 5;
    run.options.ranks.experts_over = over;
    run.options.given.push_back("experts-over");
    return run;
  }
  static std::string same_sequences() {
    std::string text;
    for (int i = 0; i < 40'000; ++i) text += static_cast<char>('a' + i % 32 * 7 % 26);
    return text;
  }
  static void expect_near(const std::vector<StepMetrics>& found, const std::vector<StepMetrics>& wanted,
                          const std::string& name) {
    ASSERT_EQ(found.size(), wanted.size()) << name;
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_NEAR(found[i].loss, wanted[i].loss, 2e-6 * wanted[i].loss) << name << ", step " << i + 1;
      EXPECT_EQ(found[i].router_loss.has_value(), wanted[i].router_loss.has_value()) << name;
      const double of_routers = wanted[i].router_loss.value_or(0);
      EXPECT_NEAR(found[i].router_loss.value_or(0), of_routers, 1e-5 * of_routers) << name;
      EXPECT_NEAR(found[i].grad_norm, wanted[i].grad_norm, 1e-4 * wanted[i].grad_norm) << name;
      ASSERT_EQ(found[i].expert_tokens.size(), wanted[i].expert_tokens.size()) << name;
      for (size_t l = 0; l < wanted[i].expert_tokens.size(); ++l) {
        EXPECT_EQ(found[i].expert_tokens[l].tokens, wanted[i].expert_tokens[l].tokens) << name;
        EXPECT_EQ(found[i].expert_tokens[l].dropped, wanted[i].expert_tokens[l].dropped) << name;
      }
    }
  }
};

TEST_F(RanksExpertsTest, LossesAreThoseOfOneRank) {
  for (const char* model : {kMixtral, kShared, kCapacity}) {
    const TestResult one = train_on(experts_on(1, 1, "one", model));
    const std::vector<float> wanted = newest_masters(directory_ / "one", model);
    for (const auto& [ranks, over] : {std::pair{2, 2}, {4, 2}, {4, 4}}) {
      const std::string name = fmt::format("{} over {} of {}", model, over, ranks);
      const TestResult divided = train_on(experts_on(ranks, over, "divided", model));
      expect_near(divided.steps, one.steps, name);
      const std::vector<float> found = newest_masters(directory_ / "divided", model);
      ASSERT_EQ(found.size(), wanted.size()) << name;
      double difference = 0;
      for (size_t i = 0; i < wanted.size(); ++i)
        difference = std::max<double>(difference, std::abs(found[i] - wanted[i]));
      EXPECT_LT(difference, 2e-4) << name;
      std::filesystem::remove_all(directory_ / "divided");
    }
    std::filesystem::remove_all(directory_ / "one");
  }
}

TEST_F(RanksExpertsTest, BitsDoNotDependOnBudgetsExecutorsAndStages) {
  for (const DType precision : {DType::f32, DType::bf16}) {
    TestRun run = experts_on(4, 2, "bits");
    run.options.numbers.precision = precision;
    run.options.batch.steps = 4;
    validate(run);
    const TestResult wanted = train_on(run);
    const std::vector<float> state = newest_masters(run.options.run.out, kMixtral);
    const auto expect_same = [&](TestRun other, const std::string& name) {
      other.options.run.out = directory_ / "bits." + name;
      const TestResult found = train_on(other);
      EXPECT_EQ(fixed_bits(found.steps), fixed_bits(wanted.steps)) << name;
      EXPECT_EQ(fixed_bits(found.validations), fixed_bits(wanted.validations)) << name;
      EXPECT_EQ(newest_masters(other.options.run.out, kMixtral), state) << name;
      std::filesystem::remove_all(other.options.run.out);
    };
    with_other_budgets_and_executors(run, expect_same);
    TestRun waves = run;
    waves.options.batch.waves = 3;
    expect_same(waves, "waves");
    for (const int64_t stage : {0, 1, 2}) {
      TestRun other = run;
      other.options.ranks.zero = stage;
      expect_same(other, "stage " + std::to_string(stage));
    }
    std::filesystem::remove_all(run.options.run.out);
  }
}

// On several nodes, rows travel within nodes first, then across. They arrive where they do on one node.
TEST_F(RanksExpertsTest, BitsDoNotDependOnNodes) {
  for (const auto& [model, ranks] : {std::pair{kCapacity, 4}, {kMixtral, 8}}) {
    TestRun run = experts_on(ranks, 4, "one node", model);
    run.options.numbers.precision = DType::bf16;
    run.options.batch.batch = 16;
    run.options.batch.steps = 3;
    const TestResult wanted = train_on(run);
    const std::vector<float> masters = newest_masters(run.options.run.out, model);
    for (const int64_t per_node : {1, 2, 4}) {
      TestRun nodes = run;
      nodes.options.ranks.per_node = per_node;
      nodes.options.run.out = directory_ / "nodes";
      nodes.arenas = least_arenas(nodes, per_node == 2);
      const TestResult found = train_on(nodes);
      const auto in_nodes = std::ranges::count_if(found.plan.model.segments, [](const Segment& segment) {
        return segment.is_between_ranks() && segment.among().count == 2;
      });
      EXPECT_EQ(in_nodes > 0, per_node == 2) << per_node;
      EXPECT_EQ(fixed_bits(found.steps), fixed_bits(wanted.steps)) << model << ", nodes of " << per_node;
      EXPECT_EQ(newest_masters(nodes.options.run.out, model), masters) << per_node;
      std::filesystem::remove_all(nodes.options.run.out);
    }
    std::filesystem::remove_all(run.options.run.out);
  }
}

// The data repeat one sequence, so the tokens of all ranks choose alike, and what a rank sends is known. It
// sends rows whose experts are elsewhere, in forward and again in backward, and the gradients of what came
// back. To other ranks it returns what its experts made of their rows, and the rows' gradients. It tells all
// ranks which experts its tokens chose.
TEST_F(RanksExpertsTest, RanksSendTheRowsThatWereChosen) {
  write_bytes(directory_ / "same.txt", same_sequences());
  for (const DType precision : {DType::f32, DType::bf16})
    for (const uint64_t ranks : {2, 4}) {
      TestRun run = experts_on(static_cast<int64_t>(ranks), static_cast<int64_t>(ranks), "sent");
      run.options.data.train = {directory_ / "same.txt"};
      run.options.batch.waves = 1;
      run.options.numbers.precision = precision;
      const TestResult result = train_on(run);
      const Plan& plan = result.plan;
      const BodyId body = plan.lowering.bodies().usual().front();
      ASSERT_EQ(plan.lowering.bodies().usual().size(), 1u);
      const uint64_t micro_batches = plan.lowering.slices, row = 64 * dtype_bytes(precision);
      uint64_t told = 0;
      for (const Activation& a : plan.model.activations) {
        if (!a.name.ends_with("_of_all")) continue;
        const uint64_t bytes = 4 * static_cast<uint64_t>(element_count(a.shape)) / ranks * (ranks - 1);
        told += micro_batches * bytes * (a.name.ends_with("weights_of_all") ? 2 : 1);
      }
      ASSERT_GT(told, 0u);
      for (const StepMetrics& m : result.steps) {
        uint64_t wanted = fixed_bytes(plan, {&body, 1})[kCollectiveLane] + told;
        for (const LayerTokens& layer : m.expert_tokens)
          for (size_t e = 0; e < layer.tokens.size(); ++e) {
            const uint64_t own = layer.tokens[e] / ranks;
            const bool here = e < layer.tokens.size() / ranks;  // the metrics show the first rank's bytes
            wanted += row * own * (here ? 2 * (ranks - 1) : 3);
          }
        const auto lane = std::find_if(m.moved_bytes.begin(), m.moved_bytes.end(),
                                       [](const auto& entry) { return entry.first == "collective"; });
        ASSERT_NE(lane, m.moved_bytes.end());
        EXPECT_EQ(lane->second, wanted) << ranks << " ranks, step " << m.step;
      }
      std::filesystem::remove_all(run.options.run.out);
    }
}

// A run is stopped and resumed on another number of ranks, with experts divided otherwise.
TEST_F(RanksExpertsTest, ResumesOnOtherNumbersOfRanks) {
  TestRun all = experts_on(1, 1, "whole");
  all.options.optimizer.schedule = Schedule::constant;
  all.options.batch.steps = 10;
  const TestResult whole = train_on(all);
  int64_t step = 0;
  for (const auto& [ranks, over] : {std::pair{4, 4}, {2, 2}, {1, 1}, {3, 1}, {4, 2}}) {
    TestRun part = experts_on(ranks, over, "part");
    part.options.optimizer.schedule = Schedule::constant;
    part.options.batch.steps = step + 2;
    part.options.given = {"steps", "experts-over"};
    part.options.run.resume = "auto";
    const TestResult result = train_on(part);
    ASSERT_EQ(result.steps.size(), 2u);
    for (const StepMetrics& m : result.steps) {
      const double wanted = whole.steps.at(static_cast<size_t>(m.step - 1)).loss;
      EXPECT_NEAR(m.loss, wanted, 2e-6 * std::abs(wanted)) << over << " of " << ranks << ", step " << m.step;
    }
    step = result.end.step;
  }
  EXPECT_EQ(step, 10);
}

}  // namespace
}  // namespace sluice
