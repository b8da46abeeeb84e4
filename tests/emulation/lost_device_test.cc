// A GPU is lost at any piece of its work, and the drive may fail as well. The run ends with two sentences and
// leaves nothing half-written. The last checkpoint is whole, and --resume auto goes on from it to the bits of
// a run that nothing disturbed.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/emulation/emulated_command.h"
#include "tests/support/fault_queue.h"
#include "tests/support/figures.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

const std::string kModel = "gpt2:layers=1,width=16,heads=1,vocab=256,context=16";

// What a GPU that is lost returns, and how the run then ends.
struct Loss {
  cudaError_t error;
  ExitCode code;
};
constexpr Loss kLosses[] = {{cudaErrorUnknown, ExitCode::environment},
                            {cudaErrorDevicesUnavailable, ExitCode::environment},
                            {cudaErrorECCUncorrectable, ExitCode::environment},
                            {cudaErrorIllegalAddress, ExitCode::bug}};  // the fault of a kernel

class LostDevice : public EmulatedRun {
 protected:
  // Validates, and saves a checkpoint, after every second step.
  Words validated(const std::string& out, int64_t steps) const {
    return Words{"train",
                 "--model",
                 kModel,
                 "--data",
                 text,
                 "--batch",
                 "2",
                 "--micro-batch",
                 "1",
                 "--steps",
                 std::to_string(steps),
                 "--checkpoint-every",
                 "2",
                 "--val-data",
                 validation,
                 "--val-every",
                 "2",
                 "--val-batches",
                 "1",
                 "--threads",
                 "2",
                 "--device",
                 "cuda",
                 "--gpu-mem",
                 "400MiB",
                 "--lr-schedule",
                 "constant",
                 "--out",
                 directory / out};
  }
  // The run's metrics of every step and validation, to the bit.
  std::vector<std::string> lines(const std::string& out) const {
    std::vector<std::string> found;
    const std::string file = directory / out + "/metrics.jsonl";
    if (!std::filesystem::exists(file)) return found;
    for (const std::string& line : lines_of(read_text_file(file, 1 << 20))) {
      const auto m = nlohmann::json::parse(line);
      found.push_back(m["step"].dump());
      for (const char* key : {"loss", "grad_norm", "val_loss"})
        if (m.contains(key)) found.back() += " " + m[key].dump();
    }
    return found;
  }
  // Counts complete checkpoints; there must be nothing beside them.
  size_t checkpoints(const std::string& out) const {
    size_t count = 0;
    const std::string path = directory / out + "/checkpoints";
    if (!std::filesystem::exists(path)) return count;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      EXPECT_TRUE(entry.path().filename().string().starts_with("step-")) << entry.path();
      CheckpointReader::open(entry.path().string());
      ++count;
    }
    return count;
  }
  uint64_t works_of(const std::string& out, int64_t steps) {
    emulation::set_up({});
    EXPECT_EQ(run_command(validated(out, steps)).code, ExitCode::done);
    return emulation::counts().works;
  }
};

TEST_F(LostDevice, AnywhereTheLastCheckpointGoesOn) {
  constexpr int64_t kSteps = 4;
  // Up to step 2, the last work is the validation's, and before it comes the checkpoint's.
  const uint64_t half = works_of("half", 2), all = works_of("whole", kSteps);
  const std::vector<std::string> whole = lines("whole");
  ASSERT_EQ(whole.size(), 6u);
  const Tensors tensors = newest_tensors(directory / "whole");
  std::vector<uint64_t> places{half - 1, half - 2, half - 12, half - 24, half - 40, half - 44};
  for (uint64_t at = 1; at < all; at += all / 16) places.push_back(at);
  bool in_set_up = false, in_first_step = false, in_second = false, in_evaluation = false;
  bool in_checkpoint = false, after_both = false;
  for (size_t i = 0; i < places.size(); ++i) {
    SCOPED_TRACE("at work " + std::to_string(places[i]));
    const Loss& loss = kLosses[i % std::size(kLosses)];
    const std::string out = "lost-" + std::to_string(i);  // places may coincide
    emulation::set_up({.seed = static_cast<uint32_t>(i),
                       .delay_microseconds_max = 20,
                       .work_that_is_lost = places[i],
                       .lost_with = loss.error});
    const Ended lost = run_command(validated(out, kSteps));
    expect_sentences(lost);
    expect_nothing_on_the_gpu();
    const bool started = std::filesystem::exists(directory / out);
    EXPECT_EQ(lost.code, started ? loss.code : ExitCode::environment) << lost.what;
    const char* const next = checkpoints(out) > 0
                                 ? ", then go on with --resume auto."
                                 : ", then start again with --resume auto, since there is no checkpoint yet.";
    EXPECT_EQ(lost.remedy.ends_with(next), started && loss.code == ExitCode::environment) << lost.remedy;
    EXPECT_EQ(lost.what.find(", when `") != std::string::npos, started) << lost.what;
    const size_t reported = lines(out).size(), saved = checkpoints(out);
    in_set_up |= !started;
    in_first_step |= started && reported == 0;
    in_second |= reported == 1;
    in_checkpoint |= reported == 2 && saved == 0;
    in_evaluation |= reported == 2 && saved == 1;
    after_both |= reported >= 3 && saved == 1;
    emulation::set_up({});
    const Ended resumed = run_command(validated(out, kSteps) + Words{"--resume", "auto"});
    EXPECT_EQ(resumed.code, ExitCode::done) << resumed.what;
    const bool same = lines(out) == whole && newest_tensors(directory / out) == tensors;
    EXPECT_TRUE(same);
    figures.holds("the GPU is lost: resumed to the same bits", same);
  }
  EXPECT_TRUE(in_set_up);
  EXPECT_TRUE(in_first_step);
  EXPECT_TRUE(in_second);
  EXPECT_TRUE(in_evaluation);
  EXPECT_TRUE(in_checkpoint);
  EXPECT_TRUE(after_both);
}

TEST_F(LostDevice, EvaluationEndsTheSameWay) {
  works_of("run", 2);
  const Words evaluate{"eval",          "--from", directory / "run", "--data", validation,
                       "--val-batches", "1",      "--threads",       "2",      "--json",
                       "--gpu-mem",     "400MiB"};
  emulation::set_up({});
  const Ended whole = run_command(evaluate);
  ASSERT_EQ(whole.code, ExitCode::done) << whole.what;
  EXPECT_EQ("2 " + nlohmann::json::parse(whole.out)["val_loss"].dump(), lines("run").back());
  const uint64_t works = emulation::counts().works;
  for (uint64_t at = 0; at < works; at += works / 6) {
    emulation::set_up({.work_that_is_lost = at});
    const Ended lost = run_command(evaluate);
    EXPECT_EQ(lost.code, ExitCode::environment) << lost.what;
    EXPECT_EQ(lost.out, "");
    expect_sentences(lost);
    EXPECT_EQ(lost.remedy.find("--resume"), std::string::npos) << lost.remedy;  // eval has none
    expect_nothing_on_the_gpu();
  }
}

// A run as the verb `train` makes it, in three tiers with the least memory.
TestRun three_tiers(const DriveDirectory& directory) {
  write_bytes(directory / "train.txt", sample_text(4000));
  TestRun run;
  run.options = short_run(directory, kModel, directory / "train.txt");
  run.options.batch = {2, std::nullopt, 1, 4};
  run.options.run.checkpoint_every = {2};
  run.options.memory.device = {DeviceKind::cuda};
  run.arenas = least_arenas(run, true);
  return run;
}

// The failure that comes first says how the run ends. The other failure changes nothing.
TEST_F(LostDevice, AndTheDriveFailsTheSameMoment) {
  const DriveDirectory whole_directory;
  const TestRun whole = three_tiers(whole_directory);
  const std::vector<std::string> steps = fixed_bits(sluice::train(whole).steps);
  const uint64_t works = emulation::counts().works;
  const Tensors tensors = newest_tensors(whole.options.run.out);
  size_t by_device = 0, by_drive = 0;
  for (uint64_t i = 1; i < 10; ++i) {
    SCOPED_TRACE(i);
    const DriveDirectory run_directory;
    TestRun run = three_tiers(run_directory);
    const Fault fault{i % 2 == 0 ? FaultKind::eio : FaultKind::enospc, 2 + 5 * i, 1000000, i};
    run.executor = i % 3 == 0 ? ExecutorKind::shuffled : ExecutorKind::threaded;
    run.wrap_queue = [&](std::unique_ptr<IoQueue> inner) -> std::unique_ptr<IoQueue> {
      return std::make_unique<FaultQueue>(std::move(inner), fault);
    };
    std::vector<std::string> seen;
    run.on_step = [&](const StepMetrics& m) { seen.push_back(fixed_bits(m)); };
    emulation::set_up({.seed = static_cast<uint32_t>(i),
                       .delay_microseconds_max = 100,
                       .work_that_is_lost = works * i / 11});
    try {
      sluice::train(run);
      ADD_FAILURE() << "trained to its end";
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ExitCode::io || error.code() == ExitCode::environment) << error.what();
      (error.code() == ExitCode::io ? by_drive : by_device) += 1;
    }
    expect_nothing_on_the_gpu();
    ASSERT_LE(seen.size(), steps.size());
    EXPECT_TRUE(std::equal(seen.begin(), seen.end(), steps.begin()));
    emulation::set_up({});
    run.wrap_queue = nullptr;
    run.on_step = nullptr;
    run.options.run.resume = "auto";
    EXPECT_EQ(sluice::train(run).end.step, 4);
    const std::string different = differences(tensors, newest_tensors(run.options.run.out));
    EXPECT_EQ(different, "");
    figures.holds("GPU and drive fail together: resumed to the same bits", different.empty());
  }
  EXPECT_GT(by_device, 0u);
  EXPECT_GT(by_drive, 0u);
}

}  // namespace
}  // namespace sluice
