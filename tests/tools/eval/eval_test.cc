// `sluice eval`: perplexity, and the share of tokens whose logit is the largest, of a model that answers
// every token with the same one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/support/cli_support.h"

namespace sluice {
namespace {

std::string repeated(const std::string& part, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += part;
  return text;
}

class Eval : public Cli {
 protected:
  // Trains a run on nothing but the letter a.
  void SetUp() override {
    Cli::SetUp();
    write_bytes(text, std::string(4000, 'a'));
    const CommandResult trained = run(train("run", 100, {"--precision", "fp32"}));
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  // An evaluation over two batches of four sequences of 32 tokens.
  Words evaluation(const std::string& content, const Words& more = {}) const {
    write_bytes(validation, content);
    Words words{"eval", "--data", validation, "--val-batches", "2"};
    if (std::ranges::find(more, "--from") == more.end()) words = words + Words{"--from", directory / "run"};
    return words + more;
  }
  nlohmann::json facts(const std::string& content, const Words& more = {}) const {
    const CommandResult result = run(evaluation(content, more + Words{"--json"}));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.code == 0 ? nlohmann::json::parse(result.out) : nlohmann::json{};
  }
};

TEST_F(Eval, TellsTheShareOfRightTokens) {
  const nlohmann::json all = facts(repeated("a", 1000));
  EXPECT_EQ(all["accuracy"], 1);
  EXPECT_EQ(all["tokens"], 256);
  EXPECT_EQ(all["perplexity"].get<double>(), std::exp(all["val_loss"].get<double>()));
  EXPECT_EQ(facts(repeated("b", 1000))["accuracy"], 0);
  // Of four tokens three are an a, whatever stands before them.
  const std::string mixed = repeated("aaab", 1000);
  const nlohmann::json most = facts(mixed);
  EXPECT_EQ(most["accuracy"], 0.75);
  // The count is the same with other micro-batches and budgets, and on the reference device.
  EXPECT_EQ(facts(mixed, {"--micro-batch", "1"})["accuracy"], 0.75);
  EXPECT_EQ(facts(mixed, {"--device", "reference"})["accuracy"], 0.75);
  const nlohmann::json moved = facts(mixed, {"--gpu-mem", "2MiB", "--host-mem", "66.1MiB", "--nvme-dir",
                                             directory.path(), "--threads", "1"});
  EXPECT_EQ(moved["accuracy"], 0.75);
  EXPECT_EQ(moved["val_loss"], most["val_loss"]);
  const CommandResult told = run(evaluation(mixed));
  EXPECT_NE(told.out.find(", accuracy 75.00 %, over 256 tokens, the first 8 of the data's 32 sequences\n"),
            std::string::npos)
      << told.out;
}

// Every label counts once. Sequences need not fill batches, and a file may be shorter than a sequence.
TEST_F(Eval, ReadsAllOfAFile) {
  const auto all_of = [&](const std::string& content, const Words& more = {}) {
    write_bytes(validation, content);
    const CommandResult result = run(Words{"eval", "--data", validation, "--from", directory / "run"} + more);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const std::string mixed = repeated("aaab", 1000);  // 999 labels, of which 250 are a b
  const nlohmann::json all = nlohmann::json::parse(all_of(mixed, {"--json"}));
  EXPECT_EQ(all["tokens"], 999);
  EXPECT_EQ(all["accuracy"].get<double>(), 749.0 / 999);
  EXPECT_EQ(all["sequences"], 32);
  EXPECT_EQ(all["sequences_of_data"], 32);
  // The last sequence is shorter, but counts for --val-batches as any other. So eight batches hold all 32
  // sequences.
  for (const char* batches : {"8", "9"}) {
    const nlohmann::json counted = nlohmann::json::parse(all_of(mixed, {"--json", "--val-batches", batches}));
    EXPECT_EQ(counted, all) << batches;
  }
  const nlohmann::json part = nlohmann::json::parse(all_of(mixed, {"--json", "--val-batches", "7"}));
  EXPECT_EQ(part["tokens"], 28 * 32);
  EXPECT_EQ(part["sequences"], 28);
  EXPECT_EQ(part["sequences_of_data"], 32);
  const nlohmann::json alone = nlohmann::json::parse(all_of(mixed, {"--json", "--batch", "1"}));
  EXPECT_EQ(alone["tokens"], 999);
  EXPECT_NEAR(alone["val_loss"].get<double>(), all["val_loss"].get<double>(), 1e-6);  // sums in another order
  EXPECT_NE(all_of("aab").find(", accuracy 50.00 %, over 2 tokens\n"), std::string::npos);
}

// `eval` names the damaged checkpoint, as `generate` and `export` do.
TEST_F(Eval, SaysWhichDamagedCheckpointItPassesOver) {
  const std::string two = directory / "two", whole = two + "/checkpoints/step-000000002",
                    newest = two + "/checkpoints/step-000000004/manifest.json";
  ASSERT_EQ(run(train("two", 4, {"--checkpoint-every", "2", "--keep", "2"})).code, 0);
  std::string manifest = read_text_file(newest, 1 << 20);
  manifest[manifest.size() / 2] ^= 1;
  write_bytes(newest, manifest);
  const auto expect_notes = [&](const std::string& said) {
    EXPECT_NE(said.find("A newer checkpoint is damaged, and passed over: " + newest), std::string::npos)
        << said;
    EXPECT_NE(said.find("\nThe newest one that is whole is " + whole + ".\n"), std::string::npos) << said;
  };
  const CommandResult evaluated = run(evaluation(repeated("a", 1000), {"--from", two}));
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  expect_notes(evaluated.out);
  expect_notes(run(evaluation(repeated("a", 1000), {"--from", two, "--json"})).err);
  expect_notes(run({"export", "--from", two, "--to", directory / "exported"}).out);
  expect_notes(run({"generate", "--from", two, "--prompt", "a", "--max-tokens", "1"}).err);
}

TEST_F(Eval, PerplexityIsThatOfTokensAlone) {
  Words words = train("experts", 2, {"--precision", "fp32"});
  words[2] = "gpt2-moe:layers=2,width=32,heads=4,vocab=256,context=32,experts=4,top=1";
  const CommandResult trained = run(words);
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.out.find("The routers' loss counts with factor 0.01."), std::string::npos) << trained.out;
  const nlohmann::json of = facts(repeated("ab", 1000), {"--from", directory / "experts"});
  words[2] = "mixtral:layers=1,width=32,heads=4,kv_heads=4,ffn=48,vocab=256,context=32,experts=4,top=1";
  for (const auto& [more, note] :
       {std::pair{Words{}, "The routers' loss does not count; in a new run with --router-loss X it does, "},
        {Words{"--router-z-loss", "0.25"}, "with factor X. Their z-loss counts with factor 0.25."},
        {Words{"--router-loss", "0.5", "--router-z-loss", "0.25"},
         "The routers' loss counts with factor 0.5. Their z-loss counts with factor 0.25."}}) {
    words[12] = directory / ("noted" + std::to_string(more.size()));
    const CommandResult noted = run(words + more);
    EXPECT_EQ(noted.code, 0) << noted.err;
    EXPECT_NE(noted.out.find(note), std::string::npos) << noted.out;
  }
  // The last sequence of a file is filled up with padding, which does not count.
  const nlohmann::json filled = facts(repeated("abcde", 21), {"--from", words[12]});
  const nlohmann::json less = facts(repeated("abcde", 21), {"--from", words[12], "--seq", "24"});
  EXPECT_GT(filled["router_loss"].get<double>(), 0.5);
  EXPECT_NEAR(filled["router_loss"].get<double>(), less["router_loss"].get<double>(), 1e-6);
  EXPECT_NEAR(filled["val_loss"].get<double>(), less["val_loss"].get<double>(), 1e-6);
  const double loss = of["val_loss"], routers = of["router_loss"];
  EXPECT_GE(routers, 0.01);  // where experts are chosen evenly
  EXPECT_LT(routers, 0.04);  // where all tokens choose one
  EXPECT_EQ(of["perplexity"].get<double>(), std::exp(loss - routers));
  const CommandResult told = run(evaluation(repeated("ab", 1000), {"--from", directory / "experts"}));
  EXPECT_NE(told.out.find(" of it the routers'), perplexity "), std::string::npos) << told.out;
}

}  // namespace
}  // namespace sluice
