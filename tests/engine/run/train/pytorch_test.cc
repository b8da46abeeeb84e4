// Whole trainings against PyTorch, and the working precisions against each other: ten steps of every fixture,
// fifty steps of every family's tiny model in bf16 and fp16, and a step whose gradients overflow.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/families.h"
#include "tests/support/figures.h"
#include "tests/support/fixtures.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

std::vector<nlohmann::json> fixture_cases() {
  std::vector<nlohmann::json> all;
  for (const Fixture& fixture : fixtures()) {
    const nlohmann::json expected = nlohmann::json::parse(fixture.expected);
    all.insert(all.end(), expected["cases"].begin(), expected["cases"].end());
  }
  return all;
}

Schedule schedule_of(const std::string& name) {
  return name == "cosine" ? Schedule::cosine : name == "linear" ? Schedule::linear : Schedule::constant;
}

TestRun run_of(const nlohmann::json& c, int64_t micro_batch, const DriveDirectory& directory) {
  TestRun run;
  Options& o = run.options;
  o.model.model = kFixtureFolder + c["model"].get<std::string>();
  o.data.train = {kFixtureTokens};
  o.data.order = RowOrder::sequential;
  o.batch = {c["batch"], c["sequence"].get<int64_t>(), micro_batch, c["steps"]};
  o.optimizer.learning_rate = c["learning_rate"];
  o.optimizer.min_learning_rate = c["min_learning_rate"].get<double>();
  o.optimizer.warmup.steps = c["warmup"];
  o.optimizer.schedule = schedule_of(c["schedule"]);
  o.optimizer.weight_decay = c["weight_decay"];
  o.optimizer.beta1 = c["beta1"];
  o.optimizer.beta2 = c["beta2"];
  o.optimizer.epsilon = c["epsilon"];
  o.optimizer.clip = c["clip"];
  if (c.contains("group_options")) o.optimizer.of_groups = c["group_options"];
  o.numbers.precision = DType::f32;
  o.run.out = directory / "out";
  return run;
}

double relative(double measured, double expected) { return std::abs(measured - expected) / expected; }

// The contract's tolerances. PyTorch's own fp32 differs from its fp64 by at most 2e-7 in losses and 2e-6 in
// norms (fixtures/README.md).
constexpr double kLossTolerance = 1e-5, kNormTolerance = 1e-4, kSixteenBitTolerance = 0.01;

void expect_agreement(const nlohmann::json& c, const std::vector<StepMetrics>& steps, size_t count,
                      const std::string& where) {
  ASSERT_EQ(steps.size(), count) << where;
  for (size_t i = 0; i < count; ++i) {
    const double loss = relative(steps[i].loss, c["loss"][i]);
    const double norm = relative(steps[i].grad_norm, c["grad_norm"][i]);
    EXPECT_LE(loss, kLossTolerance) << where << ", step " << i + 1;
    EXPECT_LE(norm, kNormTolerance) << where << ", step " << i + 1;
    figures.at_most("fp32, loss of a step against PyTorch's, relative", loss, kLossTolerance);
    figures.at_most("fp32, gradient norm of a step against PyTorch's", norm, kNormTolerance);
  }
}

// The names of the cases promise, for every model, a clip below all norms, one above all norms, and none.
// Every model has cases with each size of micro-batch. Balance losses depend on the size, so a case of a
// model with such losses has only one size.
TEST(TrainingPyTorch, CasesClipAlwaysNeverAndNotAtAll) {
  std::map<std::string, int> active, inactive, off;
  std::map<std::string, std::set<int64_t>> sizes;
  for (const auto& c : fixture_cases()) {
    const std::vector<double> norms = c["grad_norm"];
    const auto [least, most] = std::minmax_element(norms.begin(), norms.end());
    const double clip = c["clip"];
    off[c["model"]] += clip == 0;
    active[c["model"]] += clip > 0 && clip < *least;
    inactive[c["model"]] += clip > *most;
    EXPECT_EQ(c["steps"], 10);
    const std::vector<int64_t> micro_batches = c["micro_batches"];
    sizes[c["model"]].insert(micro_batches.begin(), micro_batches.end());
  }
  for (const auto& [model, found] : sizes) EXPECT_EQ(found, (std::set<int64_t>{1, 2, 4})) << model;
  for (const auto* kinds : {&active, &inactive, &off}) {
    EXPECT_EQ(kinds->size(), fixtures().size());
    for (const auto& [model, count] : *kinds) EXPECT_GE(count, 1) << model;
  }
}

TEST(TrainingPyTorch, EveryCaseOnTheCpuDevice) {
  size_t runs = 0;
  for (const auto& c : fixture_cases())
    for (const int64_t micro_batch : c["micro_batches"]) {
      const DriveDirectory directory;
      const std::string where = c["name"].get<std::string>() + ", micro-batch " + std::to_string(micro_batch);
      expect_agreement(c, train(run_of(c, micro_batch, directory)).steps, c["steps"], where);
      ++runs;
    }
  // Every model runs with clip active, inactive and off, and with micro-batches of 1, 2 and 4 rows.
  EXPECT_GE(runs, fixtures().size() * 3);
}

TEST(TrainingPyTorch, EveryModelOnTheReferenceDevice) {
  size_t runs = 0;
  constexpr int64_t kSteps = 3;  // plain loops are slow
  for (const auto& c : fixture_cases()) {
    if (c["clip"].get<double>() != 0.25) continue;
    const DriveDirectory directory;
    TestRun run = run_of(c, 4, directory);
    run.options.memory.device = {DeviceKind::reference};
    run.stop_after = kSteps - 2;  // two steps run ahead of what is read
    const TestResult result = train(run);
    const std::string where = c["name"].get<std::string>() + ", reference";
    ASSERT_GE(result.steps.size(), static_cast<size_t>(kSteps)) << where;
    expect_agreement(c, result.steps, result.steps.size(), where);
    ++runs;
  }
  EXPECT_GE(runs, fixtures().size());
}

// A tiny model on text.
TestRun tiny_run(const DriveDirectory& directory, DType precision, int64_t steps, const std::string& model) {
  write_bytes(directory / "train.txt", sample_text(20000));
  TestRun run;
  run.options = short_run(directory, model, directory / "train.txt");
  run.options.memory.nvme_directories.clear();
  run.options.batch.steps = steps;
  run.options.numbers.precision = precision;
  return run;
}

const std::string kTinySizes = "layers=2,width=64,vocab=256,context=48";
const std::string kTinyModel = "gpt2:heads=2," + kTinySizes;

TEST(TrainingPrecision, SixteenBitsStayWithinOnePercentOfFp32) {
  for (const Family* family : families()) {
    const std::string model = with_heads(*family, kTinySizes);
    double last[3] = {};
    const DType precisions[3] = {DType::f32, DType::bf16, DType::f16};
    for (int p = 0; p < 3; ++p) {
      const DriveDirectory directory;
      TestRun run = tiny_run(directory, precisions[p], 51, model);
      // OLMo norms what its branches give, which is small at first, so that gradients are large: from 2^16
      // the loss scale would be halved four times, and as many updates left out.
      if (precisions[p] == DType::f16) run.alter_start = [](CheckpointState& s) { s.loss_scale = 4096; };
      const TestResult result = train(run);
      ASSERT_EQ(result.steps.size(), 51u);
      last[p] = result.steps.back().loss;                  // after 50 updates
      EXPECT_GT(result.steps.front().loss, 5.0) << model;  // ln 256 = 5.5: it begins without knowledge
    }
    // Granite divides logits by 8, and with them their gradients.
    const bool slow = config_from_name(model).logits_divisor > 1;
    EXPECT_LT(last[0], slow ? 5.0 : 3.0) << model;
    for (int p = 1; p < 3; ++p) {
      const double difference = relative(last[p], last[0]);
      EXPECT_LE(difference, kSixteenBitTolerance) << model << " " << dtype_name(precisions[p]);
      figures.at_most(
          std::string(dtype_name(precisions[p])) + ", loss after 50 steps against fp32's, relative",
          difference, kSixteenBitTolerance);
    }
  }
}

// A loss scale of 2^40 makes every fp16 gradient overflow.
TEST(TrainingPrecision, AnOverflowIsSkippedCountedAndChangesNothingElse) {
  const DriveDirectory directory;
  TestRun run = tiny_run(directory, DType::f16, 3, kTinyModel);
  run.options.optimizer.schedule = Schedule::constant;
  run.options.run.keep = 9;
  train(run);
  const auto before_path = newest_checkpoint(run.options.run.out);
  ASSERT_TRUE(before_path);
  const CheckpointState before = CheckpointReader::open(*before_path).state();
  const Tensors weights = tensors_of(*before_path);
  EXPECT_EQ(before.t, 3);

  TestRun overflow = run;
  overflow.options.run.resume = "auto";
  overflow.options.given = {"steps"};
  overflow.options.batch.steps = 4;
  overflow.alter_start = [](CheckpointState& s) { s.loss_scale = std::ldexp(1.0, 40); };
  const TestResult skipped = train(overflow);
  ASSERT_EQ(skipped.steps.size(), 1u);
  EXPECT_TRUE(skipped.steps[0].skipped);
  EXPECT_TRUE(std::isfinite(skipped.steps[0].loss));
  EXPECT_EQ(skipped.steps[0].loss_scale, std::ldexp(1.0, 40));
  const auto after_path = newest_checkpoint(run.options.run.out);
  ASSERT_TRUE(after_path);
  ASSERT_NE(*after_path, *before_path);
  const CheckpointState after = CheckpointReader::open(*after_path).state();
  EXPECT_EQ(differences(weights, tensors_of(*after_path)), "");
  EXPECT_EQ(after.step, 4);
  EXPECT_EQ(after.t, before.t);
  EXPECT_EQ(after.loss_scale, std::ldexp(1.0, 39));
  EXPECT_EQ(after.clean_steps, 0);
  EXPECT_EQ(after.skipped_steps, before.skipped_steps + 1);
  EXPECT_EQ(after.cursor, before.cursor + 4);

  TestRun later = overflow;  // from 2^39 down: skipped until the scale fits, then the run goes on
  later.options.batch.steps = 40;
  later.alter_start = nullptr;
  const TestResult rest = train(later);
  int64_t skips = 0;
  for (const StepMetrics& m : rest.steps) skips += m.skipped;
  const CheckpointState last = CheckpointReader::open(*newest_checkpoint(run.options.run.out)).state();
  EXPECT_GT(skips, 5);
  EXPECT_LT(skips, 36);
  EXPECT_FALSE(rest.steps.back().skipped);
  EXPECT_EQ(last.t, 40 - 1 - skips);
  EXPECT_EQ(last.skipped_steps, skips + 1);
  EXPECT_EQ(last.loss_scale, std::ldexp(1.0, 39 - static_cast<int>(skips)));
  EXPECT_LT(rest.steps.back().loss, skipped.steps[0].loss);
}

// Every tier is in use, and steps are issued ahead. What was staged for a skipped step is written back
// unchanged.
TEST(TrainingPrecision, AnOverflowUnderTinyBudgetsGivesTheSameBits) {
  std::vector<std::string> bits[2];
  Tensors weights[2];
  for (const bool tiny : {false, true}) {
    const DriveDirectory directory;
    TestRun run = tiny_run(directory, DType::f16, 12, kTinyModel);
    run.alter_start = [](CheckpointState& s) { s.loss_scale = std::ldexp(1.0, 24); };
    if (tiny) {
      run.options.memory.nvme_directories = {directory.path()};
      run.arenas = least_arenas(run, true);
    }
    const TestResult result = train(run);
    bits[tiny] = fixed_bits(result.steps);
    weights[tiny] = newest_tensors(run.options.run.out);
    EXPECT_TRUE(result.steps[0].skipped);
    EXPECT_FALSE(result.steps.back().skipped);
  }
  EXPECT_EQ(bits[0], bits[1]);
  EXPECT_EQ(differences(weights[0], weights[1]), "");
}

}  // namespace
}  // namespace sluice
