// How unevenly tokens chose experts, measured from steps and from metrics files.
#include "engine/run/train/measured_imbalance.h"

#include <gtest/gtest.h>

#include "tests/support/training_support.h"

namespace sluice {
namespace {

StepMetrics step_of(int64_t step, std::vector<LayerTokens> layers) {
  StepMetrics m;
  m.step = step;
  m.expert_tokens = std::move(layers);
  return m;
}

TEST(MeasuredImbalance, IsTheLargestExpertOverTheMean) {
  EXPECT_EQ(imbalance_of({0, {2, 2, 2, 2}}), 1);
  EXPECT_EQ(imbalance_of({0, {6, 1, 1, 0}}), 3);
  EXPECT_EQ(imbalance_of({0, {8, 0, 0, 0}}), 4);
  EXPECT_EQ(imbalance_of({0, {0, 0}}), 1);
  const std::vector<StepMetrics> steps{step_of(1, {{0, {6, 1, 1, 0}}, {1, {2, 2, 2, 2}}}),
                                       step_of(2, {{0, {8, 0, 0, 0}}, {1, {4, 2, 2, 0}}})};
  EXPECT_EQ(measured_imbalance(steps), (3 + 1 + 4 + 2) / 4.0);
  EXPECT_EQ(measured_imbalance(std::vector<StepMetrics>{step_of(1, {})}), std::nullopt);
}

TEST(MeasuredImbalance, OfARunIsThatOfItsLastSteps) {
  const DriveDirectory directory;
  const std::string file = directory / "metrics.jsonl";
  EXPECT_FALSE(imbalance_of_run(file));
  std::string lines;
  for (int64_t step = 1; step <= 150; ++step)
    append_line(lines,
                step_of(step, {{0, step <= 50 ? std::vector<uint64_t>{8, 0} : std::vector<uint64_t>{5, 3}}}),
                0);
  append_line(lines, ValidationMetrics{150, 1}, 0);
  write_bytes(file, lines);
  const std::optional<ImbalanceOfRun> run = imbalance_of_run(file);
  ASSERT_TRUE(run);
  EXPECT_DOUBLE_EQ(run->imbalance, 1.25);
  EXPECT_EQ(run->first, 51);
  EXPECT_EQ(run->last, 150);
  lines.clear();
  append_line(lines, step_of(1, {}), 0);
  write_bytes(directory / "dense.jsonl", lines);
  EXPECT_FALSE(imbalance_of_run(directory / "dense.jsonl"));
}

}  // namespace
}  // namespace sluice
