// --data with weights, as a user has them: shares, ranks, budgets, resumes, what is said, and refusals.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/cli_support.h"

namespace sluice {
namespace {

class MixedData : public Cli {
 protected:
  void SetUp() override {
    write_bytes(a, sample_text(1000));
    write_bytes(b, sample_text(5000, 3));
  }
  Words train(const std::string& out, const Words& data, const Words& more = {}) const {
    return Words{"train", "--model",       kTiny,           "--batch",     "4",    "--micro-batch",
                 "2",     "--out",         directory / out, "--threads",   "2",    "--lr",
                 "2e-3",  "--lr-schedule", "constant",      "--precision", "fp32", "--data"} +
           data + more;
  }
  // Losses and norms of all steps.
  std::string numbers(const std::string& out) const {
    std::string all;
    for (const std::string& line : lines_of(read_text_file(directory / out + "/metrics.jsonl", 1 << 24))) {
      const auto m = nlohmann::json::parse(line);
      all += m.contains("val_loss") ? "val " + m["val_loss"].dump() + "\n"
                                    : m["loss"].dump() + " " + m["grad_norm"].dump() + "\n";
    }
    return all;
  }

  const std::string a = directory / "a.txt", b = directory / "b.txt";
  const Words mix{a + "=0.7", b + "=0.3"};
  const std::string chats = kFixtures + "fine_tuning/chats.jsonl",
                    fifty = kFixtures + "fifty_chats/chats.jsonl", model = kFixtures + "fifty_chats/model";
};

TEST_F(MixedData, SharesAreSaid) {
  const CommandResult result = run(train("run", mix, {"--epochs", "1"}));
  ASSERT_EQ(result.code, 0) << result.err;
  // 31 + 156 sequences of 32; an epoch reads 130.9 of the first and 56.1 of the second.
  EXPECT_NE(result.out.find("data: 6000 tokens, 187 sequences of 32 from 2 sources; 47 steps read as many as "
                            "1.01 epochs have\n"
                            "  70 % of all sequences are of " +
                            a +
                            ", each 4.22 times an epoch: 1000 tokens, "
                            "31 sequences of 32\n"
                            "  30 % of all sequences are of " +
                            b +
                            ", each 0.36 times an epoch: 5000 tokens, "
                            "156 sequences of 32\n"),
            std::string::npos)
      << result.out;
}

TEST_F(MixedData, BudgetsRanksAndStopsChangeNothing) {
  const CommandResult whole = run(train("whole", mix, {"--steps", "30"}));
  ASSERT_EQ(whole.code, 0) << whole.err;
  const std::string expected = numbers("whole");
  ASSERT_EQ(
      run(train("small", mix,
                {"--steps", "30", "--gpu-mem", "2MiB", "--host-mem", "80MiB", "--nvme-dir", directory / ""}))
          .code,
      0);
  EXPECT_EQ(numbers("small"), expected);
  // The same sources as equal shares of another unit.
  ASSERT_EQ(run(train("unit", {a + "=7", b + "=3"}, {"--steps", "30"})).code, 0);
  EXPECT_EQ(numbers("unit"), expected);
  ASSERT_EQ(run(train("first", mix, {"--steps", "11"})).code, 0);
  ASSERT_EQ(run({"train", "--out", directory / "first", "--resume", "auto", "--steps", "30"}).code, 0);
  EXPECT_EQ(numbers("first"), expected);
  // Two ranks read the same rows; sums of gradients are rounded in another order.
  ASSERT_EQ(run(train("ranks", mix, {"--steps", "30", "--gpus", "2"})).code, 0);
  const std::vector<std::string> one = lines_of(expected), two = lines_of(numbers("ranks"));
  ASSERT_EQ(one.size(), two.size());
  for (size_t i = 0; i < one.size(); ++i)
    EXPECT_NEAR(std::stod(one[i]), std::stod(two[i]), 1e-5 * std::stod(one[i])) << i;
  // Other shares give other data.
  ASSERT_EQ(run(train("other", {a + "=0.6", b + "=0.4"}, {"--steps", "30"})).code, 0);
  EXPECT_NE(numbers("other"), expected);
}

TEST_F(MixedData, AResumeKeepsToTheShares) {
  ASSERT_EQ(run(train("run", mix, {"--steps", "2"})).code, 0);
  const Words resume{"train", "--out", directory / "run", "--resume", "auto", "--steps", "3"};
  expect_refusal(resume + Words{"--data", a + "=0.6", b + "=0.4"}, 2,
                 {"The mix of 2 sources holds other tokens than those the run trained on, or the same in "
                  "other shares.",
                  "Give the run's own --data"});
  expect_refusal(resume + Words{"--data", b + "=0.3", a + "=0.7"}, 2, {"in other shares"});
  expect_refusal(resume + Words{"--data", a, b}, 2, {" holds other tokens than those the run trained on"});
  const CommandResult same = run(resume + Words{"--data", a + "=1.4", b + "=0.6"});
  EXPECT_EQ(same.code, 0) << same.err;
}

TEST_F(MixedData, WithoutWeightsFilesAreJoined) {
  write_bytes(directory / "joined.txt", read_text_file(a, 1 << 20) + read_text_file(b, 1 << 20));
  ASSERT_EQ(run(train("several", {a, b}, {"--steps", "5"})).code, 0);
  ASSERT_EQ(run(train("joined", {directory / "joined.txt"}, {"--steps", "5"})).code, 0);
  EXPECT_EQ(numbers("several"), numbers("joined"));
  // A single source with a weight is read as if it had no weight.
  ASSERT_EQ(run(train("one", {directory / "joined.txt=2"}, {"--steps", "5"})).code, 0);
  EXPECT_EQ(numbers("one"), numbers("joined"));
}

TEST_F(MixedData, ChatsAreHeldOutOfEachSource) {
  const Words words{"train",       "--model",    model,         "--data",
                    chats + "=3",  fifty + "=1", "--out",       directory / "run",
                    "--seq",       "128",        "--batch",     "2",
                    "--steps",     "6",          "--val-split", "20%",
                    "--val-every", "3",          "--cache",     directory / "cache",
                    "--threads",   "2"};
  const CommandResult result = run(words);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("  75 % of all sequences are of " + chats), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("  25 % of all sequences are of " + fifty), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("held out by --val-split: "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find(" from 2 sources; each reads all of these sequences"), std::string::npos)
      << result.out;
  EXPECT_NE(numbers("run").find("val "), std::string::npos);
}

TEST_F(MixedData, PrepareShowsEachSource) {
  const Words words{"prepare", "--data", chats + "=3", fifty + "=1",
                    "--model", model,    "--cache",    directory / "cache"};
  const CommandResult shown = run(words + Words{"--show", "1"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_TRUE(shown.out.starts_with(chats + ", 75 % of all sequences:\n")) << shown.out;
  EXPECT_NE(shown.out.find("\n" + fifty +
                           ", 25 % of all sequences:\n50 samples of 50 records: 1800 tokens, "
                           "650 of them trained"),
            std::string::npos)
      << shown.out;
  const CommandResult told = run(words + Words{"--json"});
  ASSERT_EQ(told.code, 0) << told.err;
  const auto facts = nlohmann::json::parse(told.out);
  ASSERT_EQ(facts.size(), 2u);
  EXPECT_EQ(facts[0]["data"], chats);
  EXPECT_EQ(facts[0]["share"], 0.75);
  EXPECT_EQ(facts[1]["share"], 0.25);
  EXPECT_EQ(facts[1]["tokens"], 1800);
  // A source that is prepared alone gives the same set.
  const CommandResult alone =
      run({"prepare", "--data", fifty, "--model", model, "--cache", directory / "cache", "--json"});
  EXPECT_EQ(nlohmann::json::parse(alone.out)["directory"], facts[1]["directory"]);
}

TEST_F(MixedData, WeightsThatMeanNothingAreRefused) {
  expect_refusal(
      train("refused", {a + "=0.7", b}), 2,
      {"--data gives " + a + " a weight, and " + b + " none.", "Give all of them weights, as in "});
  expect_refusal(train("refused", {a + "=0.7", b + "=0"}), 2, {"`0` is no weight for " + b + " of --data."});
  expect_refusal(train("refused", {a + "=nan", b + "=1"}), 2, {"`nan` is no weight for "});
  expect_refusal(train("refused", {directory / "none.txt=1", b + "=1"}), 2, {directory / "none.txt"});
  expect_refusal(train("refused", {a}, {"--val-data", b + "=0.5"}), 2,
                 {"--val-data " + b + "=0.5 has a weight, and a validation reads all data alike."});
  expect_refusal({"eval", "--from", model, "--data", chats + "=1"}, 2,
                 {"--data " + chats + "=1 has a weight", "validate on each of the files by itself"});
  expect_refusal(train("refused", mix, {"--interleave-probs", "0.7,0.3"}), 2,
                 {"Give each file of --data its weight, as in --data a.jsonl=0.7 b.jsonl=0.3."});
}

}  // namespace
}  // namespace sluice
