// LLMQ's token files in the command: trained as other token files, masks as labels that are left out.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/support/cli_support.h"
#include "tests/support/llmq_file.h"

namespace sluice {
namespace {

class TokenFiles : public Cli {
 protected:
  static constexpr size_t kTokens = 2001;
  static constexpr int64_t kSequence = 32;

  void SetUp() override {
    Cli::SetUp();
    const std::string bytes = sample_text(kTokens);
    for (const char byte : bytes) tokens.push_back(static_cast<unsigned char>(byte));
  }
  std::string write(const std::string& name, const std::vector<bool>& masks) const {
    write_bytes(directory / name, llmq_bytes(tokens, masks, 256));
    return directory / name;
  }
  // The first 8 tokens of every 20 are trained, or the others.
  static std::vector<bool> masks(bool first) {
    std::vector<bool> all(kTokens);
    for (size_t i = 0; i < kTokens; ++i) all[i] = (i % 20 < 8) == first;
    return all;
  }
  nlohmann::json evaluated(const std::string& file) const {
    const CommandResult result =
        run({"eval", "--from", directory / "run", "--data", file, "--seq", std::to_string(kSequence),
             "--batch", "2", "--val-batches", "31", "--json"});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.code == 0 ? nlohmann::json::parse(result.out) : nlohmann::json();
  }
  // train() with these data instead of its own.
  Words train_on(const std::string& file, const std::string& out, int64_t steps,
                 const Words& more = {}) const {
    Words all = train(out, steps, more);
    *(std::find(all.begin(), all.end(), "--data") + 1) = file;
    return all;
  }
  // Losses and norms of all steps.
  std::string numbers(const std::string& out) const {
    std::string all;
    for (const std::string& line : lines_of(read_text_file(directory / out + "/metrics.jsonl", 1 << 24))) {
      const auto m = nlohmann::json::parse(line);
      all += m["loss"].dump() + " " + m["grad_norm"].dump() + "\n";
    }
    return all;
  }

  std::vector<int32_t> tokens;
};

TEST_F(TokenFiles, WithoutMasksARunHasTheBitsOfOneOnRawTokens) {
  std::string raw;
  for (const int32_t token : tokens) raw += {static_cast<char>(token), '\0'};
  write_bytes(directory / "raw.bin", raw);
  ASSERT_EQ(run(train_on(directory / "raw.bin", "raw", 3, {"--data-type", "uint16"})).code, 0);
  const CommandResult result = run(train_on(write("llmq.bin", {}), "run", 3));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(numbers("run"), numbers("raw"));
  EXPECT_EQ(result.out.find("tokens trained"), std::string::npos) << result.out;
}

TEST_F(TokenFiles, MasksSayWhichLabelsCount) {
  const std::string some = write("some.bin", masks(true)), others = write("others.bin", masks(false));
  const CommandResult result = run(train_on(some, "run", 3, {"--val-data", others, "--val-batches", "5"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("2001 tokens, 62 sequences of 32, 801 tokens trained"), std::string::npos)
      << result.out;
  // Each of two files leaves out the tokens that the other trains. Together they give the tokens and the loss
  // of a file without masks.
  const nlohmann::json a = evaluated(some), b = evaluated(others), all = evaluated(write("all.bin", {}));
  // Labels are tokens 1 to 62 * 32. Token 0, which the first file trains, is no label.
  EXPECT_EQ(a["tokens"], 99 * 8 + 5 - 1);
  EXPECT_EQ(b["tokens"], 99 * 12);
  EXPECT_EQ(all["tokens"], 62 * 32);
  const auto sum = [](const nlohmann::json& e) {
    return e["val_loss"].get<double>() * e["tokens"].get<double>();
  };
  EXPECT_NE(a["val_loss"], b["val_loss"]);
  EXPECT_NEAR(sum(a) + sum(b), sum(all), 1e-5 * sum(all));  // each loss is rounded to fp32 and printed so
  const Words other_masks{"train", "--out", directory / "run", "--resume", "auto", "--steps", "5", "--data"};
  expect_refusal(other_masks + Words{others}, 2, {"others.bin", "other tokens"});
  EXPECT_EQ(run(other_masks + Words{some}).code, 0);
}

TEST_F(TokenFiles, PlansAndProfilesTakeThem) {
  const std::string file = write("a.bin", masks(true));
  EXPECT_EQ(
      run({"plan", "--model", kTiny, "--data", file, "--batch", "4", "--device", "cpu", "--no-advice"}).code,
      0);
  Words words = train_on(file, "unused", 1, {"--device", "cpu"});
  words.erase(words.begin());
  const CommandResult profiled =
      run(Words{"profile", "--steps", "4", "--out", directory / "profile", "--"} + words);
  EXPECT_EQ(profiled.code, 0) << profiled.err;
  EXPECT_TRUE(std::filesystem::exists(directory / "profile/report.html"));
}

// An option that is given is used, or a line says that it is not used.
TEST_F(TokenFiles, OptionsOfTextsAreUsedOrTold) {
  const std::string file = write("a.bin", masks(true)), jinja = directory / "own.jinja";
  expect_refusal(train_on(file, "refused", 2, {"--chat-template", jinja}), 2,
                 {"--chat-template " + jinja + " is neither a file nor a template of the tokenizer.",
                  "Give a file with a Jinja template."});
  expect_refusal(
      train_on(file, "refused", 2, {"--tokenizer", directory / "nowhere"}), 2,
      {"There is no tokenizer in " + std::string(directory / "nowhere"), "Check the path of --tokenizer"});
  expect_refusal(train_on(file, "refused", 2,
                          {"--tokenizer", "tests/fixtures/fine_tuning/model", "--eos-token", "<|none|>"}),
                 2, {"--eos-token <|none|> is no token of the tokenizer."});
  write_bytes(jinja, "{% for %}");
  expect_refusal(train_on(file, "refused", 2, {"--chat-template", jinja}), 5, {jinja, "line 1"});
  EXPECT_FALSE(std::filesystem::exists(directory / "refused"));
  write_bytes(jinja, "{{ messages[0].content }}");
  const CommandResult trained =
      run(train_on(file, "run", 2, {"--chat-template", jinja, "--train-on", "all", "--packing", "none"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.out.find("The data are tokens already: --train-on, --packing mean nothing for them.\n"),
            std::string::npos)
      << trained.out;
  EXPECT_EQ(read_text_file(directory / "run/chat_template.jinja", 1 << 10), "{{ messages[0].content }}");
  const CommandResult evaluated =
      run({"eval", "--from", directory / "run", "--data", file, "--chat-template", jinja});
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_NE(evaluated.out.find("The data are tokens already: --chat-template means nothing for them.\n"),
            std::string::npos)
      << evaluated.out;
}

TEST_F(TokenFiles, BadOnesAreRefused) {
  const auto refused = [&](const std::string& bytes, const Words& parts) {
    write_bytes(directory / "bad.bin", bytes);
    expect_refusal(train_on(directory / "bad.bin", "refused", 2), 5, Words{"bad.bin"} + parts);
    EXPECT_FALSE(std::filesystem::exists(directory / "refused"));
  };
  const std::string good = llmq_bytes(tokens, masks(true), 256);
  refused(good.substr(0, 1000), {"less than the 1024"});
  refused(good.substr(0, good.size() - 1), {"with masks"});
  refused(llmq_bytes(tokens, std::vector<bool>(kTokens), 256), {"trains no token"});
  refused(llmq_bytes(tokens, {}, 50257), {"vocabulary of 50257", "256"});
}

}  // namespace
}  // namespace sluice
