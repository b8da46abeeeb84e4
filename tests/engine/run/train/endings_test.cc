// While all lanes work, a run ends on all ranks after a checkpoint, whether data cannot be read, a validation
// fails or a stop is asked for. Weights that are not finite are not saved.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <limits>

#include "tests/support/ranks_support.h"

namespace sluice {
namespace {

// The sequences of a run in order, as nanoGPT tokens.
class Endings : public RanksTest {
 protected:
  TestRun tokens_run(int64_t ranks, const std::string& out) const {
    TestRun run = run_on(ranks, out);
    run.options.data.order = RowOrder::sequential;
    run.options.data.train = {directory_ / "tokens.bin"};
    return run;
  }
  void write_data(const std::string& name, std::optional<uint64_t> bad_token = std::nullopt) const {
    constexpr size_t kTokens = 10 * 12 * 32 + 1;  // of ten steps
    std::string bytes;
    for (const char c : sample_text(kTokens)) bytes += {c, '\0'};
    if (bad_token) bytes[2 * *bad_token + 1] = '\x7f';  // an id above the vocabulary
    write_bytes(directory_ / name, bytes);
  }
  // Trains, and returns the error.
  static Error error_of(const TestRun& run) {
    try {
      train_on(run);
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "nothing was thrown";
    return {ExitCode::done, "", ""};
  }
};

// The token is in the sixth step, which begins at token 5 * 12 * 32; of two ranks, the second one reads it.
TEST_F(Endings, ATokenThatIsNoneEndsARunAfterItsCheckpoint) {
  constexpr uint64_t kBad = (5 * 12 + 8) * 32 + 7;
  for (const int64_t ranks : {1, 2}) {
    const std::string name = "run" + std::to_string(ranks);
    write_data("tokens.bin");
    TestRun whole = tokens_run(ranks, "whole" + name);
    const TestResult expected = train_on(whole);
    write_data("tokens.bin", kBad);
    TestRun run = tokens_run(ranks, name);
    const Error error = error_of(run);
    EXPECT_EQ(error.code(), ExitCode::malformed_file) << error.what();
    EXPECT_NE(std::string(error.what()).find(std::to_string(kBad)), std::string::npos) << error.what();
    EXPECT_TRUE(error.remedy().ends_with(" Step 5 is saved: then go on with --resume auto."))
        << error.remedy();
    const auto saved = newest_checkpoint(run.options.run.out);
    ASSERT_TRUE(saved);
    EXPECT_EQ(CheckpointReader::open(*saved).state().step, 5);
    // Once the token is mended, the run goes on to the same bits.
    write_data("tokens.bin");
    run.options.run.resume = "auto";
    EXPECT_EQ(train_on(run).steps.size(), 5u);
    EXPECT_EQ(differences(newest_tensors(whole.options.run.out), newest_tensors(run.options.run.out)), "");
  }
}

// A run directory is moved or removed while the run goes on. What takes its name stays as it is.
TEST_F(Endings, ARunWhoseDirectoryMovesIsSavedWhereItIs) {
  namespace fs = std::filesystem;
  write_data("tokens.bin");
  struct Case {
    bool moved, replaced;
    int64_t ranks;
    const char* ending = "";  // of the path --out
    bool by_link = false;     // a link to itself replaces the directory
  };
  for (const Case c : {Case{true, true, 1}, Case{true, false, 1}, Case{false, false, 1}, Case{false, true, 1},
                       Case{false, true, 1, "/"}, Case{true, true, 2}, Case{false, false, 2},
                       Case{false, true, 2}, Case{true, true, 1, "", true}}) {
    SCOPED_TRACE(c.ranks);
    TestRun run = tokens_run(c.ranks, "run");
    const std::string out = run.options.run.out, elsewhere = out + ".elsewhere";
    run.options.run.out += c.ending;
    std::atomic<bool> is_done{false};  // each rank is told of each step
    run.on_step = [&](const StepMetrics& m) {
      if (m.step != 3 || is_done.exchange(true)) return;
      if (c.moved)
        fs::rename(out, elsewhere);
      else
        fs::remove_all(out);
      if (c.replaced && !c.by_link) fs::create_directory(out);
      if (c.by_link) fs::create_symlink(out, out);
    };
    const Error error = error_of(run);
    EXPECT_EQ(error.code(), ExitCode::environment);
    const std::string happened = c.moved ? "was moved to " + elsewhere : "was removed";
    EXPECT_EQ(error.what(), "--out " + out + " " + happened + " while the run went on.");
    const std::string place = c.moved ? elsewhere : c.replaced ? out + ".2" : out;
    const auto saved = newest_checkpoint(place);
    ASSERT_TRUE(saved.has_value());
    EXPECT_GE(CheckpointReader::open(*saved).state().step, 3);
    const auto is_saved =
        place == out ? " is saved: then go on with --resume auto."
                     : " is saved in " + place + ": then go on with --out " + place + " --resume auto.";
    EXPECT_TRUE(error.remedy().ends_with(is_saved)) << error.remedy();
    if (c.by_link)
      EXPECT_TRUE(fs::is_symlink(out));
    else
      EXPECT_EQ(c.replaced, fs::exists(out) && fs::is_empty(out));
    for (const std::string& path : {out, out + ".2", elsewhere}) fs::remove_all(path);
  }
}

// The drive to which `checkpoints` is a link is away for a while: the checkpoint waits, and the run goes on.
TEST_F(Endings, ACheckpointWaitsForADriveThatIsAway) {
  namespace fs = std::filesystem;
  write_data("tokens.bin");
  for (const int64_t ranks : {1, 2}) {
    TestRun run = tokens_run(ranks, "run");
    const std::string out = run.options.run.out, link = out + "/checkpoints", drive = directory_ / "drive";
    run.options.run.checkpoint_every = {4};
    run.options.batch.waves = 1;  // so that step 8 is issued before step 7 is read
    std::atomic<int> told{0};
    fs::create_directories(out);
    fs::create_directory(drive);
    fs::create_directory_symlink(drive, link);
    run.on_trouble = [&](const std::string& sentences) {
      EXPECT_NE(sentences.find(link + " is a link to a place that is not there"), std::string::npos)
          << sentences;
      ++told;
    };
    std::atomic<bool> away{false}, back{false};  // each rank is told of each step
    run.on_step = [&](const StepMetrics& m) {
      if (m.step == 5 && !away.exchange(true)) fs::rename(drive, drive + ".away");
      if (m.step == 7 && !back.exchange(true)) fs::rename(drive + ".away", drive);
    };
    train_on(run);
    EXPECT_EQ(told, 1);
    EXPECT_TRUE(fs::is_symlink(link));
    EXPECT_FALSE(list_checkpoints(drive).empty());
    fs::remove_all(out);
    fs::remove_all(drive);
  }
}

// From the third step on, only the descriptors are left that the run has set aside for its checkpoints.
TEST_F(Endings, DescriptorsOfACheckpointAreHeldFromTheStart) {
  write_data("tokens.bin");
  TestRun run = tokens_run(1, "run");
  run.options.run.checkpoint_every = {5};
  struct Limit {
    rlimit before{};
    Limit() { EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0); }
    ~Limit() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0); }
  } limit;
  run.on_step = [&](const StepMetrics& m) {
    if (m.step != 3) return;
    const FileDescriptor free(open("/dev/null", O_RDONLY | O_CLOEXEC));
    const rlimit none{static_cast<rlim_t>(free.get()), limit.before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    EXPECT_LT(open("/dev/null", O_RDONLY | O_CLOEXEC), 0);
  };
  const TestResult result = train_on(run);
  EXPECT_EQ(result.checkpoints, 2u);
  EXPECT_EQ(result.end.step, 10);
}

// Where the checkpoint fails too, what ended the run is still told first.
TEST_F(Endings, WhatEndedARunIsToldAlsoWithoutACheckpoint) {
  constexpr uint64_t kBad = 5 * 12 * 32 + 7;
  write_data("tokens.bin", kBad);
  const TestRun run = tokens_run(1, "run");
  const std::string checkpoints = checkpoints_directory(run.options.run.out);
  std::filesystem::create_directories(checkpoints);
  const DirectoryLock other(checkpoints, "testing");
  const Error error = error_of(run);
  EXPECT_EQ(error.code(), ExitCode::malformed_file);
  EXPECT_NE(std::string(error.what()).find(std::to_string(kBad)), std::string::npos) << error.what();
  EXPECT_NE(error.remedy().find(" The checkpoint could not be written: "), std::string::npos)
      << error.remedy();
  EXPECT_TRUE(error.remedy().ends_with(", start again with --resume auto, since there is no checkpoint yet."))
      << error.remedy();
}

// What has the name of the directory of checkpoints keeps its content under another name.
TEST_F(Endings, CheckpointsFindTheirPlaceTaken) {
  write_data("tokens.bin");
  const TestRun run = tokens_run(1, "run");
  const std::string checkpoints = checkpoints_directory(run.options.run.out);
  std::filesystem::create_directory(run.options.run.out);
  write_bytes(checkpoints, "no directory");
  EXPECT_EQ(train_on(run).checkpoints, 1u);
  std::ifstream moved(checkpoints + ".moved");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(moved), {}), "no directory");
}

// The validation fails at the end of a run, or in the middle.
TEST_F(Endings, AValidationThatFailsEndsARunAfterItsCheckpoint) {
  write_data("tokens.bin");
  write_data("validation.bin", 12 * 32 + 3);  // in the second batch
  for (const int64_t every : {0, 4}) {
    TestRun run = tokens_run(2, "run" + std::to_string(every));
    run.options.data.validation = {directory_ / "validation.bin"};
    run.options.data.val_batches = 3;
    run.options.data.val_every = every;
    const int64_t step = every == 0 ? 10 : 4;
    const Error error = error_of(run);
    EXPECT_EQ(error.code(), ExitCode::malformed_file) << error.what();
    EXPECT_TRUE(error.remedy().ends_with(
        every == 0 ? " All 10 steps are done and saved; then sluice eval gives the loss."
                   : " Step 4 is saved: then go on with --resume auto."))
        << error.remedy();
    EXPECT_EQ(CheckpointReader::open(newest_checkpoint(run.options.run.out).value()).state().step, step);
  }
}

// A stop cuts even the last validation short, when all steps are done. The resumed run makes up for it.
TEST_F(Endings, AStopCutsAValidationShort) {
  write_data("tokens.bin");
  write_data("validation.bin");
  const auto validated = [&](const std::string& name, int64_t every) {
    TestRun run = tokens_run(1, name);
    run.options.data.validation = {directory_ / "validation.bin"};
    run.options.data.val_batches = 3;
    run.options.data.val_every = every;
    return run;
  };
  const std::vector<ValidationMetrics> wanted = train_on(validated("whole", 4)).validations;
  ASSERT_EQ(wanted.size(), 3u);  // after steps 4, 8 and 10
  for (const int64_t step : {4, 10}) {
    TestRun run = validated("run" + std::to_string(step), step);
    std::string trouble;
    run.on_trouble = [&](const std::string& sentence) { trouble += sentence; };
    run.stop_after = step;  // set when the step's loss is read, just before it is validated
    const TestResult result = train_on(run);
    EXPECT_TRUE(result.end.stopped);
    EXPECT_EQ(result.end.step, step);
    EXPECT_TRUE(result.validations.empty());
    EXPECT_EQ(
        trouble,
        fmt::format("The validation after step {} is left to --resume auto, since the run stops.", step));
    const CheckpointState owing =
        CheckpointReader::open(newest_checkpoint(run.options.run.out).value()).state();
    EXPECT_EQ(owing.step, step);
    EXPECT_TRUE(owing.pending_validation);
    run.stop_after = -1;
    run.options.run.resume = "auto";
    run.options.batch.steps = step;
    run.options.given = {"steps"};
    const TestResult again = train_on(run);
    EXPECT_TRUE(again.end.stopped);
    EXPECT_EQ(again.checkpoints, 0u) << "nothing came after the one that is there";
    run.stop_after = 0;
    const TestResult rest = train_on(run);
    EXPECT_FALSE(rest.end.stopped);
    ASSERT_EQ(rest.validations.size(), 1u);
    EXPECT_EQ(fixed_bits(rest.validations), fixed_bits(std::vector{step == 4 ? wanted[0] : wanted[2]}));
    EXPECT_EQ(rest.checkpoints, 0u) << "the checkpoint is there already";
    const CheckpointState paid =
        CheckpointReader::open(newest_checkpoint(run.options.run.out).value()).state();
    EXPECT_FALSE(paid.pending_validation);
    EXPECT_EQ(paid.validation.value().loss, rest.validations[0].val_loss);
  }
}

// A validation may take hours, so a checkpoint precedes it. If the run dies meanwhile, no step is lost.
TEST_F(Endings, ACheckpointComesBeforeTheValidationOfItsStep) {
  write_data("tokens.bin");
  write_data("validation.bin");
  for (const int64_t ranks : {1, 2}) {
    TestRun run = tokens_run(ranks, "run" + std::to_string(ranks));
    run.options.data.validation = {directory_ / "validation.bin"};
    run.options.data.val_batches = 3;
    run.options.data.val_every = 4;
    run.options.run.checkpoint_every = {4};
    for (const int64_t step : {4, 10}) {
      run.on_validation = [&](const ValidationMetrics& v) {
        if (v.step == step) throw Error(ExitCode::rank_lost, "The test ends the run here.", "Resume.");
      };
      EXPECT_THROW(train_on(run), Error);
      const CheckpointState left =
          CheckpointReader::open(newest_checkpoint(run.options.run.out).value()).state();
      EXPECT_EQ(left.step, step);
      EXPECT_TRUE(left.pending_validation);
      run.options.run.resume = "auto";
    }
    run.on_validation = nullptr;
    const TestResult rest = train_on(run);
    EXPECT_TRUE(rest.steps.empty());
    ASSERT_EQ(rest.validations.size(), 1u);
    EXPECT_EQ(best_checkpoint(run.options.run.out)->validation.loss, rest.validations[0].val_loss);
  }
}

// The first checkpoint of a new step removes checkpoints that were set aside. A stop before it does not.
TEST_F(Endings, WhatIsSetAsideStaysUntilThereIsANewStep) {
  write_data("tokens.bin");
  TestRun run = tokens_run(1, "run");
  run.options.batch.steps = 2;
  train_on(run);
  const std::string aside = run.options.run.out + "/checkpoints/step-000000009.set-aside";
  std::filesystem::create_directory(aside);
  std::filesystem::create_directory(aside + ".mine");  // a name that the user gave
  run.options.run.resume = "auto";
  run.options.batch.steps = 4;
  run.options.given = {"steps"};
  run.stop_after = -1;
  const TestResult stopped = train_on(run);
  EXPECT_TRUE(stopped.end.stopped);
  EXPECT_EQ(stopped.end.step, 2);
  EXPECT_TRUE(std::filesystem::exists(aside));
  run.stop_after = 0;
  EXPECT_EQ(train_on(run).end.step, 4);
  EXPECT_FALSE(std::filesystem::exists(aside));
  EXPECT_TRUE(std::filesystem::exists(aside + ".mine"));
}

// With an interval of a nanosecond, a checkpoint is due after every step.
TEST_F(Endings, CheckpointsByTime) {
  write_data("tokens.bin");
  for (const int64_t ranks : {1, 2}) {
    TestRun run = tokens_run(ranks, "run" + std::to_string(ranks));
    run.options.run.checkpoint_every = {0, 1e-9};
    EXPECT_EQ(train_on(run).checkpoints, 10u);
    run.options.run.out += "long";
    run.options.run.checkpoint_every = {0, 1e6};
    EXPECT_EQ(train_on(run).checkpoints, 1u);
  }
}

// A weight or moment that is no number is found when its shard is written. Of two ranks, one has it.
TEST_F(Endings, WeightsThatAreNotFiniteAreNotSaved) {
  write_data("tokens.bin");
  for (const int64_t ranks : {1, 2}) {
    TestRun run = tokens_run(ranks, "run" + std::to_string(ranks));
    run.options.run.checkpoint_every = {1};
    run.options.run.keep = 1;
    run.options.batch.steps = 2;
    ASSERT_EQ(train_on(run).end.step, 2);
    run.options.run.resume = "auto";
    run.options.batch.steps = 3;
    run.options.optimizer.learning_rate = 1e38;  // the third step's update throws weights out of range
    run.options.optimizer.min_learning_rate = 1e38;
    run.options.given = {"steps", "lr", "min-lr"};
    const Error error = error_of(run);
    EXPECT_EQ(error.code(), ExitCode::numerics);
    EXPECT_STREQ(error.what(), "The weights or moments after step 3 are not finite, so they are not saved.");
    EXPECT_NE(
        error.remedy().find("step-000000002, repeat the command with --resume auto and a smaller --lr."),
        std::string::npos)
        << error.remedy();
    EXPECT_EQ(CheckpointReader::open(newest_checkpoint(run.options.run.out).value()).state().step, 2);
  }
}

}  // namespace
}  // namespace sluice
