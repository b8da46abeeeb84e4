// A run that was stopped and resumed leaves exactly what a run that never stopped leaves: losses, norms,
// validation losses, weights and moments, to the bit. Also: checkpoints on the way, how many stay, and what a
// resume may change.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "tests/support/figures.h"
#include "tests/support/format_test_support.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

constexpr int64_t kSteps = 9;

TestRun run_of(const DriveDirectory& directory, DType precision = DType::bf16, double clip = 1) {
  write_bytes(directory / "train.txt",
              sample_text(1000));  // 31 windows: the data starts over, in a new order
  write_bytes(directory / "val.txt", sample_text(400, 5));
  TestRun run;
  run.options =
      short_run(directory, "gpt2:layers=2,width=32,heads=2,vocab=256,context=32", directory / "train.txt");
  run.options.memory.nvme_directories.clear();
  run.options.numbers.precision = precision;
  run.options.optimizer.clip = clip;
  run.options.optimizer.warmup.steps = 2;
  run.options.batch.steps = kSteps;
  return run;
}

std::vector<std::string> checkpoint_names(const std::string& out) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(out + "/checkpoints"))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

struct Whole {
  std::vector<std::string> steps;
  Tensors tensors;
};
// The run that never stops, trained once for each precision and clip.
const Whole& whole_run(DType precision, double clip) {
  static std::map<std::pair<DType, double>, Whole> all;
  if (const auto it = all.find({precision, clip}); it != all.end()) return it->second;
  const DriveDirectory directory;
  const TestRun run = run_of(directory, precision, clip);
  Whole w;
  w.steps = fixed_bits(train(run).steps);
  w.tensors = newest_tensors(run.options.run.out);
  return all[{precision, clip}] = std::move(w);
}

void expect_bits(const Whole& whole, const std::vector<std::string>& steps, const std::string& out,
                 const std::string& what) {
  const std::string different = differences(whole.tensors, newest_tensors(out));
  EXPECT_EQ(steps, whole.steps);
  EXPECT_EQ(different, "");
  figures.holds(what, steps == whole.steps && different.empty());
}

// Each resumed run has the least memory in all tiers.
TEST(TrainingResume, StoppedAnywhereItGoesOnUnderOtherBudgetsToTheSameBits) {
  struct Kind {
    DType precision;
    double clip;
  };
  for (const Kind& k : {Kind{DType::bf16, 1}, Kind{DType::f32, 0}, Kind{DType::f16, 0.5}}) {
    const Whole& whole = whole_run(k.precision, k.clip);
    ASSERT_EQ(whole.steps.size(), static_cast<size_t>(kSteps));
    for (const int64_t stop_after : {1, 4, 6}) {
      SCOPED_TRACE(std::string(dtype_name(k.precision)) + " stopped after " + std::to_string(stop_after));
      const DriveDirectory directory;
      TestRun run = run_of(directory, k.precision, k.clip);
      run.stop_after = stop_after;
      run.options.memory.overlap = stop_after % 2 ? Overlap::never : Overlap::always;
      run.options.batch.waves = 1;
      const TestResult first = train(run);
      EXPECT_TRUE(first.end.stopped);
      EXPECT_EQ(first.end.step, stop_after + 2);  // two steps run ahead of what is read
      EXPECT_EQ(first.steps.size(), static_cast<size_t>(first.end.step));
      run.stop_after = 0;
      run.options.run.resume = "auto";
      run.options.memory.nvme_directories = {directory.path()};
      run.options.memory.overlap = stop_after % 2 ? Overlap::always : Overlap::never;
      run.options.batch.waves = 2;
      run.arenas = least_arenas(run, true);
      const TestResult second = train(run);
      EXPECT_FALSE(second.end.stopped);
      EXPECT_EQ(second.end.step, kSteps);
      std::vector<std::string> steps = fixed_bits(first.steps);
      for (const std::string& line : fixed_bits(second.steps)) steps.push_back(line);
      expect_bits(whole, steps, run.options.run.out, "stopped, and resumed under other budgets: same bits");
    }
  }
}

// A stop for which no time is left drops what is under way, wherever lanes are. With `overlap` always, steps
// update in their own backward by guesses.
TEST(TrainingResume, WhatAStopDropsIsTrainedAgainToTheSameBits) {
  int64_t dropped = 0;
  for (const bool is_tight : {false, true})
    for (const Overlap overlap : {Overlap::never, Overlap::always})
      for (const DType precision : {DType::bf16, DType::f32}) {
        const int64_t stop_after = is_tight ? 1 : 3;
        const double clip = precision == DType::f32 ? 0 : 1;
        const Whole& whole = whole_run(precision, clip);
        SCOPED_TRACE(fmt::format("{} {} {} {}", is_tight, static_cast<int>(overlap), dtype_name(precision),
                                 stop_after));
        const DriveDirectory directory;
        TestRun run = run_of(directory, precision, clip);
        run.options.memory.overlap = overlap;
        run.options.batch.waves = 1;
        if (is_tight) {
          run.options.memory.nvme_directories = {directory.path()};
          run.arenas = least_arenas(run, true);
        }
        run.options.run.stop_within = {0, 1};
        StopForecast forecast({.step = 1, .drain = 0, .save = 1e9});
        run.forecast = &forecast;
        run.stop_after = stop_after;
        const TestResult first = train(run);
        EXPECT_TRUE(first.end.stopped);
        EXPECT_GE(first.end.step, stop_after);
        EXPECT_LE(first.end.step, stop_after + 2);
        EXPECT_EQ(first.steps.size(), static_cast<size_t>(first.end.step));
        dropped += stop_after + 2 - first.end.step;
        const auto saved = newest_checkpoint(run.options.run.out);
        ASSERT_TRUE(saved);
        EXPECT_EQ(CheckpointReader::open(*saved).state().step, first.end.step);
        run.stop_after = 0;
        run.options.run.resume = "auto";
        const TestResult second = train(run);
        EXPECT_EQ(second.end.step, kSteps);
        std::vector<std::string> steps = fixed_bits(first.steps);
        for (const std::string& line : fixed_bits(second.steps)) steps.push_back(line);
        expect_bits(whole, steps, run.options.run.out, "steps that a stop drops: same bits");
      }
  EXPECT_GT(dropped, 0);
}

// The run is stopped after every step, and a new trainer takes each step.
TEST(TrainingResume, OneStepAtATime) {
  const Whole& whole = whole_run(DType::bf16, 1);
  const DriveDirectory directory;
  std::vector<std::string> steps;
  for (int64_t step = 1; step <= kSteps; ++step) {
    TestRun run = run_of(directory);
    run.options.run.resume = "auto";  // a fresh start when there is none
    run.options.run.checkpoint_every = {1};
    run.options.optimizer.schedule = Schedule::cosine;
    std::vector<std::string> seen;
    run.on_step = [&](const StepMetrics& m) {
      if (m.step == step) throw Error(ExitCode::rank_lost, "The test ends the run here.", "Resume.");
      seen.push_back(fixed_bits(m));
    };
    try {
      train(run);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::rank_lost);
    }
    for (const std::string& line : seen) steps.push_back(line);
  }
  TestRun run = run_of(directory);
  run.options.run.resume = "auto";
  for (const std::string& line : fixed_bits(train(run).steps)) steps.push_back(line);
  expect_bits(whole, steps, run.options.run.out, "ended without a stop, and resumed: same bits");
}

TEST(TrainingResume, CheckpointsOnTheWayAndHowManyStay) {
  const Whole& whole = whole_run(DType::bf16, 1);
  const DriveDirectory directory;
  TestRun run = run_of(directory);
  run.options.run.checkpoint_every = {2};
  run.options.run.keep = 3;
  const TestResult result = train(run);
  EXPECT_EQ(result.checkpoints, 5u);  // after 2, 4, 6, 8 and the last
  EXPECT_EQ(fixed_bits(result.steps), whole.steps);
  EXPECT_EQ(checkpoint_names(run.options.run.out),
            (std::vector<std::string>{"step-000000006", "step-000000008", "step-000000009"}));
  EXPECT_EQ(differences(whole.tensors, newest_tensors(run.options.run.out)), "");
  for (const char* name : {"step-000000006", "step-000000008"}) {  // each is a place to go on from
    const DriveDirectory other;
    TestRun again = run;
    again.options.run.out = other / "out";
    again.options.run.resume = run.options.run.out + "/checkpoints/" + name;
    const TestResult rest = train(again);
    std::vector<std::string> expected(whole.steps.end() - static_cast<std::ptrdiff_t>(rest.steps.size()),
                                      whole.steps.end());
    EXPECT_EQ(rest.steps.size(), name[13] == '6' ? 3u : 1u);
    EXPECT_EQ(fixed_bits(rest.steps), expected);
    EXPECT_EQ(differences(whole.tensors, newest_tensors(again.options.run.out)), "") << name;
  }
}

TEST(TrainingResume, ValidationDoesNotChangeBits) {
  const Whole& whole = whole_run(DType::bf16, 1);
  const DriveDirectory directory;
  TestRun run = run_of(directory);
  run.options.data.validation = {directory / "val.txt"};
  run.options.data.val_every = 4;
  run.options.data.val_batches = 3;
  const TestResult result = train(run);
  EXPECT_EQ(fixed_bits(result.steps), whole.steps);
  EXPECT_EQ(differences(whole.tensors, newest_tensors(run.options.run.out)), "");
  ASSERT_EQ(result.validations.size(), 3u);  // after 4, 8 and the last
  EXPECT_EQ(result.validations[0].step, 4);
  EXPECT_EQ(result.validations[1].step, 8);
  EXPECT_EQ(result.validations[2].step, 9);
  EXPECT_LT(result.validations[2].val_loss, result.validations[0].val_loss);

  // A run that stops in between and is resumed has the same validation losses.
  const DriveDirectory other;
  TestRun parts = run_of(other);
  parts.options.data = run.options.data;
  parts.options.data.train = {other / "train.txt"};
  parts.stop_after = 5;
  const TestResult first = train(parts);
  EXPECT_EQ(first.end.step, 7);
  parts.stop_after = 0;
  parts.options.run.resume = "auto";
  const TestResult second = train(parts);
  std::vector<std::string> lines = fixed_bits(first.validations);
  for (const std::string& line : fixed_bits(second.validations)) lines.push_back(line);
  EXPECT_EQ(lines, fixed_bits(result.validations));
}

TEST(TrainingResume, OptionsThatFixBitsComeFromTheManifest) {
  const DriveDirectory directory;
  TestRun run = run_of(directory);
  run.options.batch.steps = 3;
  train(run);
  run.options.run.resume = "auto";
  const TestRun base = run;

  const auto refused = [&](const char* option, const std::function<void(Options&)>& change) {
    TestRun other = base;
    change(other.options);
    other.options.given = {option};
    expect_error(ExitCode::usage, {option}, [&] { train(other); });
  };
  refused("clip", [](Options& o) { o.optimizer.clip = 0.25; });
  refused("batch", [](Options& o) { o.batch.batch = 8; });
  refused("micro-batch", [](Options& o) { o.batch.micro_batch = 4; });
  refused("seed", [](Options& o) { o.numbers.seed = 9; });
  refused("precision", [](Options& o) { o.numbers.precision = DType::f32; });
  refused("order", [](Options& o) { o.data.order = RowOrder::sequential; });

  TestRun silent = base;  // not given: the manifest's value holds, whatever the default is
  silent.options.optimizer.clip = 0.25;
  silent.options.batch.micro_batch = 4;
  silent.options.batch.steps = 5;
  silent.options.given = {"steps"};
  const TestResult more = train(silent);
  EXPECT_EQ(more.end.step, 5);
  ASSERT_EQ(more.steps.size(), 2u);
  EXPECT_EQ(more.steps[0].step, 4);
  EXPECT_EQ(more.steps[0].micro_batch, 2);
}

// A constant rate does not depend on the number of steps, so a run that is made longer equals one that was
// long from the start.
TEST(TrainingResume, MoreSteps) {
  const DriveDirectory one, two;
  TestRun whole = run_of(one), parts = run_of(two);
  for (TestRun* run : {&whole, &parts}) run->options.optimizer.schedule = Schedule::constant;
  std::vector<std::string> expected = fixed_bits(train(whole).steps);
  parts.options.batch.steps = 4;
  std::vector<std::string> steps = fixed_bits(train(parts).steps);
  parts.options.run.resume = "auto";
  parts.options.batch.steps = kSteps;
  parts.options.given = {"steps"};
  for (const std::string& line : fixed_bits(train(parts).steps)) steps.push_back(line);
  EXPECT_EQ(steps, expected);
  EXPECT_EQ(differences(newest_tensors(whole.options.run.out), newest_tensors(parts.options.run.out)), "");
}

}  // namespace
}  // namespace sluice
