// Training mixtures of experts: the least memory is that of one expert, and all tokens may choose one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/figures.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

Figures& figures = Figures::print_at_end();

TestRun run_of(const std::string& model, const DriveDirectory& directory) {
  write_tokens(directory / "train.bin", 6000);
  TestRun run;
  run.options = short_run(directory, model, directory / "train.bin");
  return run;
}

// Experts are large beside the rest of a layer, so the largest task is that of an expert.
double least_device_bytes(int experts, int ffn, const DriveDirectory& directory) {
  const std::string model = fmt::format(
      "mixtral:layers=1,width=256,heads=4,kv_heads=4,ffn={},vocab=256,context=64,top=2,experts={}", ffn,
      experts);
  return static_cast<double>(*least_arenas(run_of(model, directory), true).device);
}

TEST(Experts, TheLeastDeviceMemoryGrowsWithOneExpertAndNotWithAll) {
  const DriveDirectory directory;
  const double few = least_device_bytes(8, 1024, directory), many = least_device_bytes(64, 1024, directory);
  EXPECT_LE(many, 1.05 * few);
  // It is an expert's: one twice as wide has 2 bytes of weights and 4 of gradient more for each parameter.
  EXPECT_GE(least_device_bytes(8, 2048, directory) - few, 3 * 256 * 1024 * (2 + 4));
  figures.at_most("least device memory of a layer with 64 experts / with 8 of the same size", many / few,
                  1.05);
}

// The router's weights are such that every token chooses expert 0 and 1: nothing is dropped, and memory
// holds.
TEST(Experts, AllTokensMayChooseOneExpert) {
  const DriveDirectory directory;
  TestRun run = run_of(
      "mixtral:layers=2,width=64,heads=4,kv_heads=2,ffn=96,vocab=300,context=64,experts=4,top=1", directory);
  run.alter_model = [](Model model) {
    for (Group& group : model.groups)
      for (Parameter& p : group.parameters)
        if (p.name.ends_with("gate.weight"))
          p.initializer = Initializer::zeros;  // the lower expert wins ties
    return model;
  };
  run.arenas = least_arenas(run, true);
  const TestResult result = train(run);
  ASSERT_EQ(result.steps.size(), 4u);
  for (const StepMetrics& m : result.steps) EXPECT_TRUE(std::isfinite(m.loss));
  EXPECT_LT(result.steps.back().loss, result.steps.front().loss);
}

}  // namespace
}  // namespace sluice
