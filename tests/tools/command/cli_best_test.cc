// The `sluice` command and the best checkpoint: --keep-best of train, --best of eval, export and generate.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/support/cli_support.h"

namespace sluice {
namespace {

class CliBest : public Cli {
 protected:
  // The validation data have letters that the training data lack, so the validation loss rises every step.
  void SetUp() override {
    Cli::SetUp();
    std::string letters;
    for (uint64_t state = 1; letters.size() < 1000;) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      letters += static_cast<char>('A' + (state >> 40) % 26);
    }
    write_bytes(validation, letters);
  }
  Words validates() const { return {"--val-data", validation, "--val-every", "2", "--val-batches", "2"}; }
  // The validation losses of a run, by step.
  std::map<int64_t, double> losses(const std::string& name) const {
    std::map<int64_t, double> found;
    for (const std::string& line : lines_of(read_text_file(directory / name + "/metrics.jsonl", 1 << 20)))
      if (const auto json = nlohmann::json::parse(line); json.contains("val_loss"))
        found[json["step"]] = json["val_loss"];
    return found;
  }
  double evaluated(const std::string& from, const Words& more) const {
    const CommandResult result =
        run(Words{"eval", "--from", from, "--data", validation, "--val-batches", "2", "--json"} + more);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.code == 0 ? nlohmann::json::parse(result.out)["val_loss"].get<double>() : 0;
  }
};

TEST_F(CliBest, TheBestOfARunIsEvaluatedAndExported) {
  const std::string out = directory / "run", best = out + "/checkpoints/step-000000002";
  const CommandResult trained = run(train("run", 6, validates() + Words{"--keep-best", "--keep", "1"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  std::map<int64_t, double> by_step = losses("run");
  ASSERT_EQ(by_step.size(), 3u);
  ASSERT_LT(by_step[2], by_step[4]);
  ASSERT_LT(by_step[2], by_step[6]);
  const std::string sentence =
      fmt::format("The best checkpoint is {}, with a validation loss of {:.4f}.\n", best, by_step[2]);
  EXPECT_TRUE(trained.out.ends_with(sentence)) << trained.out;
  EXPECT_NE(trained.out.find("\ncheckpoint " + best + "\n"), std::string::npos) << trained.out;
  EXPECT_EQ(evaluated(out, {"--best"}), by_step[2]);
  EXPECT_EQ(evaluated(out, {}), by_step[6]);
  EXPECT_EQ(evaluated(best, {}), by_step[2]);
  const CommandResult told =
      run({"eval", "--from", out, "--best", "--data", validation, "--val-batches", "2"});
  EXPECT_TRUE(told.out.starts_with(sentence)) << told.out;
  const CommandResult exported = run({"export", "--from", out, "--best", "--to", directory / "exported"});
  EXPECT_EQ(exported.code, 0) << exported.err;
  EXPECT_TRUE(exported.out.starts_with(sentence + "Exported step 2 of " + best)) << exported.out;
  // The best checkpoint stays when the run goes on.
  const CommandResult resumed = run({"train", "--out", out, "--resume", "auto", "--steps", "8"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_TRUE(resumed.out.ends_with(sentence)) << resumed.out;
  EXPECT_EQ(evaluated(out, {"--best"}), by_step[2]);
}

TEST_F(CliBest, WhatCannotBeTheBestIsRefused) {
  expect_refused_training({"--keep-best"}, 2,
                          {"sluice: --keep-best needs --val-data or --val-split.",
                           "Add --val-split 2%, or --val-data FILE..., or leave out"});
  ASSERT_EQ(run(train("run", 2)).code, 0);
  const auto refused = [&](const std::string& from, const Words& parts) {
    expect_refusal({"eval", "--from", from, "--best", "--data", validation}, 2, parts);
    expect_refusal({"export", "--from", from, "--best", "--to", directory / "exported"}, 2, parts);
    expect_refusal({"generate", "--from", from, "--best", "--prompt", "a"}, 2, parts);
  };
  const std::string out = directory / "run";
  refused(out, {"No checkpoint of " + out + " has a validation loss.", "Leave out --best"});
  refused(out + "/checkpoints/step-000000002", {"step-000000002 is one already.", "Name the run directory"});
  refused(kFixtures + "gpt2", {"gpt2 holds none.", "Name a run directory, or leave out --best."});
}

// The room is for --keep checkpoints, the best one, and one that is being written, but for no more than the
// run writes.
TEST_F(CliBest, ItsRoomIsCounted) {
  const std::string small = directory / "small";
  std::filesystem::create_directory(small);
  if (mount("tmpfs", small.c_str(), "tmpfs", 0, "size=4m") != 0)
    GTEST_SKIP() << "a small file system cannot be mounted here";
  struct Unmount {
    const std::string& path;
    ~Unmount() { umount2(path.c_str(), MNT_DETACH); }
  } unmount{small};
  expect_refusal(train("small/run", 200, validates() + Words{"--keep-best", "--keep", "50"}), 4,
                 {"52 checkpoints of ", "Free some space, lower --keep, leave out --keep-best, or name "});
  EXPECT_EQ(run(train("small/short", 2, validates() + Words{"--keep-best", "--keep", "50"})).code, 0);
  // A run that is validated only at its end writes one checkpoint.
  EXPECT_EQ(run(train("small/run", 2,
                      {"--val-data", validation, "--val-batches", "2", "--keep-best", "--keep", "50"}))
                .code,
            0);
}

}  // namespace
}  // namespace sluice
