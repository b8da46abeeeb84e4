// Adapters trained on several ranks give the losses of one rank, and the same bits at every stage and under
// any budgets.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/fixtures.h"
#include "tests/support/ranks_support.h"

namespace sluice {
namespace {

class RanksLoraTest : public RanksTest {
 protected:
  TestRun lora_on(int64_t ranks, const std::string& out) const {
    TestRun run = run_on(ranks, out);
    run.options.model.model = std::filesystem::absolute(kFixtureFolder + "gpt2").string();
    run.options.data.train = {std::filesystem::absolute(kFixtureTokens).string()};
    run.options.batch.sequence = 37;
    run.options.batch.steps = 5;
    run.options.lora.rank = 4;
    run.options.optimizer.learning_rate = 1e-2;
    run.options.memory.overlap = Overlap::never;
    return run;
  }

  // Every factor of the newest checkpoint, from however many files.
  static std::vector<float> newest_adapters(const TestResult& result, const std::string& out) {
    const CheckpointReader reader = CheckpointReader::open(newest_checkpoint(out).value());
    std::vector<float> values;
    for (const Group& group : result.plan.model.groups)
      for (const Parameter& p : group.parameters) {
        if (!group.adapter) continue;
        const auto elements = static_cast<uint64_t>(element_count(p.shape));
        const size_t begin = values.size();
        values.resize(begin + elements);
        EXPECT_TRUE(reader.read(p.name, kMasterWeights, 0, elements, values.data() + begin));
      }
    return values;
  }
};

TEST_F(RanksLoraTest, LossesAreThoseOfOneRank) {
  const TestResult one = train_on(lora_on(1, "one")), two = train_on(lora_on(2, "two"));
  ASSERT_EQ(two.steps.size(), one.steps.size());
  EXPECT_NE(one.steps.front().loss, one.steps.back().loss);
  for (size_t i = 0; i < one.steps.size(); ++i)  // sums of fp32 gradients are rounded in another order
    EXPECT_NEAR(two.steps[i].loss, one.steps[i].loss, 1e-6 * std::abs(one.steps[i].loss)) << i;
}

TEST_F(RanksLoraTest, BitsDoNotDependOnTheStageAndBudgets) {
  for (const DType precision : {DType::f32, DType::bf16}) {
    TestRun run = lora_on(2, "wanted");
    run.options.numbers.precision = precision;
    run.options.batch.waves = 1;
    const TestResult wanted = train_on(run);
    const std::vector<float> state = newest_adapters(wanted, run.options.run.out);
    for (const int64_t stage : {0, 1, 2, 3})
      for (const int64_t waves : {1, 3}) {
        TestRun other = run;
        other.options.ranks.zero = stage;
        other.options.batch.waves = waves;
        other.options.run.out = directory_ / "stage";
        if (waves > 1) other.options.memory.overlap = Overlap::always;
        if (waves > 1) other.arenas = least_arenas(other, true);
        const TestResult found = train_on(other);
        EXPECT_EQ(fixed_bits(found.steps), fixed_bits(wanted.steps)) << stage << ", waves " << waves;
        EXPECT_EQ(newest_adapters(found, other.options.run.out), state) << stage << ", waves " << waves;
        std::filesystem::remove_all(other.options.run.out);
      }
    std::filesystem::remove_all(run.options.run.out);
  }
}

// Two ranks wrote the checkpoint, and one rank goes on.
TEST_F(RanksLoraTest, GoesOnWithAnotherNumberOfRanks) {
  TestRun whole = lora_on(1, "whole");
  whole.options.optimizer.schedule = Schedule::constant;
  const TestResult wanted = train_on(whole);
  TestRun part = whole;
  part.options.ranks.gpus = part.options.ranks.count = 2;
  part.options.run.out = directory_ / "part";
  part.options.batch.steps = 3;
  train_on(part);
  part.options.ranks.gpus = part.options.ranks.count = 1;
  part.options.batch.steps = 5;
  part.options.given = {"steps"};
  part.options.run.resume = "auto";
  const TestResult rest = train_on(part);
  EXPECT_EQ(rest.steps.size(), 2u);
  for (const StepMetrics& m : rest.steps) {
    const double loss = wanted.steps.at(static_cast<size_t>(m.step - 1)).loss;
    EXPECT_NEAR(m.loss, loss, 1e-6 * std::abs(loss)) << m.step;
  }
}

}  // namespace
}  // namespace sluice
