// How a resumed run merges the options of its manifest with those given, and which options eval takes over.
#include <gtest/gtest.h>

#include "engine/run/options/options.h"
#include "tests/support/command_line_support.h"

namespace sluice {
namespace {

// The options of a run as its manifest keeps them.
std::vector<ManifestOption> manifest_of(const std::string& line) {
  Options options = options_of(line);
  options.batch.sequence = 1024;
  options.batch.micro_batch = 2;
  return manifest_options(options);
}

TEST(Resume, TheManifestBringsWhatFixesBits) {
  const auto manifest = manifest_of(
      "train --model llama-1b --data a b --out d --batch 6 --lr 0.1 --beta2 0.3 --eps 1.1e-9 "
      "--seed 7 --precision fp32 --steps 30 --warmup 3 --order sequential --host-mem 3GiB");
  Options o = options_of("train --out d --resume auto --host-mem 2GiB");
  EXPECT_TRUE(apply_manifest(o, manifest).empty());
  EXPECT_EQ(o.model.model, "llama-1b");
  EXPECT_EQ(o.data.train, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(o.batch.batch, 6);
  EXPECT_EQ(o.batch.sequence, 1024);
  EXPECT_EQ(o.batch.micro_batch, 2);
  EXPECT_EQ(o.batch.steps, 30);
  EXPECT_EQ(o.optimizer.learning_rate, 0.1);
  EXPECT_FALSE(o.optimizer.min_learning_rate);
  EXPECT_EQ(o.optimizer.beta2, 0.3);
  EXPECT_EQ(o.optimizer.epsilon, 1.1e-9);
  EXPECT_EQ(o.optimizer.warmup_steps, 3);
  EXPECT_EQ(o.numbers.seed, 7u);
  EXPECT_EQ(o.numbers.precision, DType::f32);
  EXPECT_EQ(o.data.order, RowOrder::sequential);
  EXPECT_EQ(o.memory.host.bytes, uint64_t{2} << 30);  // budgets are free to change
  EXPECT_NO_THROW(check_options(o, Verb::train, false));
}

TEST(Resume, StepsAndLearningRateTakeEffectWithALine) {
  const auto manifest = manifest_of(kTrain + "--steps 100 --lr 1e-3");
  Options o =
      options_of("train --out run --resume auto --steps 200 --lr 1e-3 --lr-schedule linear --min-lr 0");
  EXPECT_EQ(apply_manifest(o, manifest),
            (std::vector<std::string>{"--steps is now 200; it was 100.", "--min-lr is now 0; it was auto.",
                                      "--lr-schedule is now linear; it was cosine."}));
  EXPECT_EQ(o.batch.steps, 200);
  EXPECT_EQ(o.optimizer.schedule, Schedule::linear);
  EXPECT_EQ(o.optimizer.min_learning_rate, 0);
}

TEST(Resume, OtherDifferencesAreRefused) {
  const auto manifest = manifest_of(kTrain + "--seed 7");
  for (const char* given : {"--seed 8", "--batch 4", "--precision fp32", "--beta1 0.8", "--clip 0",
                            "--weight-decay 0", "--eps 1e-7", "--model gpt2-xl", "--device reference",
                            "--order sequential", "--seq 512", "--micro-batch 4", "--from-scratch"}) {
    Options o = options_of(std::string("train --out run --resume auto ") + given);
    try {
      apply_manifest(o, manifest);
      ADD_FAILURE() << "accepted " << given;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_NE(std::string(error.what()).find(words(given).front()), std::string::npos) << error.what();
    }
  }
  Options same = options_of(kTrain + "--resume auto --seed 7 --micro-batch auto --clip 1.0");
  EXPECT_TRUE(apply_manifest(same, manifest).empty());
  EXPECT_EQ(same.batch.micro_batch, 2);  // auto agrees with what was resolved
}

TEST(Resume, EvalAdoptsWhatWasNotGiven) {
  const auto manifest = manifest_of(kTrain + "--batch 6 --precision fp32");
  Options o = options_of("eval --from run --data other.bin --batch 3");
  adopt_manifest(o, manifest);
  EXPECT_EQ(o.batch.batch, 3);
  EXPECT_EQ(o.data.train, std::vector<std::string>{"other.bin"});
  EXPECT_EQ(o.batch.sequence, 1024);
  EXPECT_EQ(o.numbers.precision, DType::f32);
  EXPECT_THROW(check_options(o, Verb::eval, false), Error);  // 3 is no multiple of the run's micro-batch, 2
  auto damaged = manifest;
  damaged.pop_back();  // a default would stand in for it
  EXPECT_THROW(adopt_manifest(o, damaged), Error);
  damaged.push_back(damaged.front());
  EXPECT_THROW(adopt_manifest(o, damaged), Error);
}

TEST(Resume, ADamagedManifestIsAMalformedFile) {
  for (const ManifestOption& bad :
       {ManifestOption{"no-such", {"1"}}, ManifestOption{"host-mem", {"1"}}, ManifestOption{"zero", {"1"}},
        ManifestOption{"batch", {"-1"}}, ManifestOption{"batch", {}}, ManifestOption{"beta1", {"nan"}},
        ManifestOption{"order", {"random"}}}) {
    Options o = options_of("train --out run --resume auto");
    try {
      apply_manifest(o, {bad});
      ADD_FAILURE() << "accepted " << bad.name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::malformed_file) << error.what();
    }
  }
}

TEST(Resume, WithNothingToResumeTheUsualIsDemanded) {
  const Options o = options_of("train --out run --resume auto");
  EXPECT_THROW(check_options(o, Verb::train, false), Error);
  EXPECT_NO_THROW(check_options(o, Verb::train, true));
}

}  // namespace
}  // namespace sluice
