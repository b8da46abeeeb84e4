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
  EXPECT_EQ(apply_manifest(o, manifest), std::vector<std::string>{"--host-mem is now 2GiB; it was 3GiB."});
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
  EXPECT_EQ(o.optimizer.warmup.steps, 3);
  EXPECT_EQ(o.numbers.seed, 7u);
  EXPECT_EQ(o.numbers.precision, DType::f32);
  EXPECT_EQ(o.data.order, RowOrder::sequential);
  EXPECT_EQ(o.memory.host.bytes, uint64_t{2} << 30);  // budgets may change
  EXPECT_FALSE(o.memory.host.of_run);
  EXPECT_NO_THROW(check_options(o, Verb::train, ManifestUse::applied));
}

TEST(Resume, OptionsOfGroupsAreThoseOfTheRun) {
  const std::string line = "train --model mixtral-8x7b --data a --out d";
  const auto manifest = manifest_of(line + " --group-options experts:lr=0.5,decay=0 routers:frozen=yes");
  const std::vector<std::string> entries = {"experts:lr=0.5,decay=0", "routers:frozen=yes"};
  Options o = options_of("train --out d --resume auto");
  apply_manifest(o, manifest);
  EXPECT_EQ(o.optimizer.of_groups, entries);
  Options same =
      options_of("train --out d --resume auto --group-options experts:lr=0.5,decay=0 routers:frozen=yes");
  EXPECT_NO_THROW(apply_manifest(same, manifest));
  const auto refusal = [&](const std::string& options, const std::vector<ManifestOption>& of_run) {
    Options given = options_of("train --out d --resume auto --group-options " + options);
    try {
      apply_manifest(given, of_run);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refusal("experts:lr=1", manifest),
            "--group-options experts:lr=1 differs from the run's own, which is experts:lr=0.5,decay=0 "
            "routers:frozen=yes.");
  EXPECT_EQ(refusal("none", manifest),
            "--group-options none differs from the run's own, which is experts:lr=0.5,decay=0 "
            "routers:frozen=yes.");
  EXPECT_EQ(refusal("experts:lr=1", manifest_of(line)),
            "--group-options experts:lr=1 differs from the run's own, which is none.");
}

TEST(Resume, LayersThatShareWeightsHaveNoOptionsOfTheirOwn) {
  EXPECT_EQ(sluice::refusal({"plan", "--model", "gpt2", "--ranks", "2", "--share-layers-until", "5",
                             "--group-options", "norms:decay=0.1"}),
            "--group-options and --share-layers-until exclude each other.");
}

// A run keeps its batch, so a refusal proposes no other --batch.
TEST(Resume, ABatchThatNoLongerDivides) {
  const auto refusal = [&](const std::string& more, ManifestUse manifest) {
    Options o = options_of("train --out run --resume auto" + more);
    if (manifest == ManifestUse::applied)
      apply_manifest(o, manifest_of("train --model gpt2 --data d --out run --batch 8"));
    o.ranks.count = o.ranks.gpus;
    try {
      check_options(o, Verb::train, manifest);
    } catch (const Error& error) {
      return std::string(error.what()) + " " + error.remedy();
    }
    return std::string();
  };
  EXPECT_EQ(
      refusal(" --gpus 3", ManifestUse::applied),
      "--batch 8 is not a multiple of --micro-batch 2 on 3 ranks. A run that goes on keeps its batch: give a "
      "--micro-batch and ranks whose product divides it.");
  EXPECT_EQ(refusal(" --model gpt2 --data d --batch 8 --micro-batch 3", ManifestUse::none),
            "--batch 8 is not a multiple of --micro-batch 3. The nearest multiple is --batch 9.");
}

TEST(Resume, WhatTheRunHadNotIsTold) {
  Options o = options_of("train --out run --resume auto --nvme-dir a,b --val-data v --stop-within 5m");
  EXPECT_EQ(
      apply_manifest(o, manifest_of(kTrain)),
      (std::vector<std::string>{"--val-data is now v; it was none.", "--nvme-dir is now a b; it was none.",
                                "--stop-within is now 300s; it was none."}));
}

// Options that never change bits are taken over, too: what the run validates on, what it keeps, its budgets.
TEST(Resume, OptionsThatChangeNoBitsAreTheRunsUnlessTheyAreGiven) {
  const auto manifest = manifest_of(
      kTrain +
      "--val-data v w --val-every 10 --checkpoint-every 10 --keep 9 --keep-best --host-mem 80% --gpu-mem "
      "1.5GiB "
      "--nvme-dir a,b --nvme-mem 1000001 --threads 3 --io threads --zero 1 --metrics m");
  Options o = options_of("train --out run --resume auto --keep 3 --threads 3");
  EXPECT_EQ(
      apply_manifest(o, manifest),
      (std::vector<std::string>{
          "--keep is now 3; it was 9.",
          "As the run had it: --val-data v w --val-every 10 --gpu-mem 1536MiB --host-mem 80% --nvme-mem "
          "1000001 --nvme-dir a b --io threads --zero 1 --metrics m --checkpoint-every 10 --keep-best"}));
  EXPECT_EQ(o.data.validation, (std::vector<std::string>{"v", "w"}));
  EXPECT_EQ(o.data.val_every, 10);
  EXPECT_EQ(o.run.checkpoint_every.steps, 10);
  EXPECT_EQ(o.run.keep, 3);
  EXPECT_TRUE(o.run.keep_best);
  EXPECT_EQ(o.memory.host, (Size{Size::Kind::percent, 0, 80, true}));
  EXPECT_EQ(o.memory.gpu, (Size{Size::Kind::bytes, 3ull << 29, 0, true}));
  EXPECT_EQ(o.memory.nvme.bytes, 1000001u);
  EXPECT_EQ(o.memory.nvme_directories, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(o.ranks.zero, 1);
  EXPECT_NO_THROW(check_options(o, Verb::train, ManifestUse::applied));
  Options evaluated = options_of("eval --from run --data d");
  adopt_manifest(evaluated, manifest);
  EXPECT_EQ(evaluated.memory.host, Size{});  // weights may be evaluated under any budgets
}

// Saving a run only at its end is not the default. So the manifest says it, and a resume keeps it.
TEST(Resume, CheckpointsOnTheWayThatAreTurnedOffStayOff) {
  for (const char* every : {"", "0", "90s"}) {
    const std::string given = *every ? std::string("--checkpoint-every ") + every : "";
    Options o = options_of("train --out run --resume auto");
    apply_manifest(o, manifest_of(kTrain + given));
    EXPECT_EQ(o.run.checkpoint_every.is_auto, !*every);
    EXPECT_EQ(o.run.checkpoint_every.seconds, std::string(every) == "90s" ? 90 : 0);
    Options again = options_of("train --out run --resume auto --checkpoint-every auto");
    apply_manifest(again, manifest_of(kTrain + given));
    EXPECT_TRUE(again.run.checkpoint_every.is_auto);
  }
}

// Manifests of version 3 have none of these options.
TEST(Resume, OptionsThatChangeNoBitsMayBeMissing) {
  std::vector<ManifestOption> manifest = manifest_of(kTrain + "--keep 9");
  std::erase_if(manifest, [](const ManifestOption& option) {
    return find_option(option.name)->on_resume == OnResume::kept;
  });
  Options o = options_of("train --out run --resume auto");
  EXPECT_TRUE(apply_manifest(o, manifest).empty());
  EXPECT_EQ(o.run.keep, 2);
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
  EXPECT_THROW(check_options(o, Verb::eval, ManifestUse::applied),
               Error);  // 3 is no multiple of the run's micro-batch, 2
  auto damaged = manifest;
  std::erase_if(damaged, [](const ManifestOption& m) { return m.name == "clip"; });  // no default stands in
  EXPECT_THROW(adopt_manifest(o, damaged), Error);
  damaged.push_back(damaged.front());
  EXPECT_THROW(adopt_manifest(o, damaged), Error);
}

TEST(Resume, ADamagedManifestIsAMalformedFile) {
  for (const ManifestOption& bad :
       {ManifestOption{"no-such", {"1"}}, ManifestOption{"host-mem", {"much"}}, ManifestOption{"out", {"d"}},
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
  EXPECT_THROW(check_options(o, Verb::train, ManifestUse::applied), Error);
  EXPECT_NO_THROW(check_options(o, Verb::train, ManifestUse::awaited));
}

}  // namespace
}  // namespace sluice
