// A run's first steps beside the prediction: the median counts, the lane that exceeds it most is named.
#include "tools/train/comparison.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/base/units.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

class Comparisons : public ::testing::Test {
 protected:
  void SetUp() override {
    write_bytes(directory_ / "train.txt", sample_text(6000));
    TestRun run;
    run.options = short_run(directory_, "gpt2:layers=2,width=32,heads=2,vocab=256,context=32",
                            directory_ / "train.txt");
    run.arenas.device = kRoomy;
    options_ = run.options;
    plan_ = std::get<Plan>(plan_of(run));
  }
  // Adds twenty steps, each of which takes `times` the predicted time and keeps `lane` busy throughout. The
  // first and the last take a hundred times as long. Returns the sentence after the last one.
  std::string told(double times, const std::string& lane) {
    Comparison comparison(plan_, facts_of(plan_, options_), options_);
    if (loss_) comparison.tell_loss(*loss_);
    StepMetrics m;
    for (const Lane& l : plan_.program.machine.lanes) m.lane_busy.emplace_back(l.name, 0);
    for (int step = 1; step <= 20; ++step) {
      m.seconds = (step == 1 || step == 20 ? 100 : 1) * times * plan_.step_seconds;
      for (auto& [name, busy] : m.lane_busy) busy = name == lane ? m.seconds : 0;
      const auto sentence = comparison.add(m);
      if (step == 20) return sentence.value();
      EXPECT_FALSE(sentence);
    }
    return "";
  }
  std::string seconds(double times) const { return readable_seconds(times * plan_.step_seconds); }

  const DriveDirectory directory_;
  Options options_;
  Plan plan_;
  std::optional<KillLoss> loss_;
};

TEST_F(Comparisons, AsPredicted) {
  EXPECT_EQ(told(1, "compute"),
            fmt::format("After 20 steps: {} a step, 1.00 times the predicted {}.", seconds(1), seconds(1)));
}

TEST_F(Comparisons, SlowerNamesTheLane) {
  const std::string sentence = told(1.2, "optimizer");
  EXPECT_TRUE(sentence.starts_with(
      fmt::format("After 20 steps: {} a step, 1.20 times the predicted {}. Lane optimizer is busy for {}; ",
                  seconds(1.2), seconds(1), seconds(1.2))))
      << sentence;
  EXPECT_TRUE(sentence.ends_with(" were predicted.")) << sentence;
}

TEST_F(Comparisons, AnotherMachinesRatesAreNamed) {
  for (const double times : {0.5, 2.0})
    EXPECT_NE(told(times, "compute").find("Predictions are at another machine's rates: sluice bench"),
              std::string::npos);
  options_.memory.machine = "mine.json";
  EXPECT_EQ(told(2, "compute").find("bench"), std::string::npos);
}

TEST_F(Comparisons, OtherStepsSayAnewWhatAKillLoses) {
  loss_ = {.every = {.is_auto = true}, .save_seconds = 1, .steps = 60};
  EXPECT_EQ(told(1.2, "compute").find("kill"), std::string::npos);
  const std::string anew = loss_->time(3 * plan_.step_seconds);
  EXPECT_NE(told(3, "compute").find(" A kill loses up to " + anew + " at this speed."), std::string::npos);
}

}  // namespace
}  // namespace sluice
