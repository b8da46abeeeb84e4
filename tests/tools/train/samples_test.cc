// Samples as a user meets them: in the metrics and on the page of `sluice report`, as `sluice generate` would
// write them, after a resume and from adapters; what a plan says of them, and what is refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "tests/support/cli_support.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

class SamplesCli : public Cli {
 protected:
  void SetUp() override {
    write_bytes(
        prompts,
        "{\"prompt\": \"Hello there\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"<Hi>\"}]}\n");
  }
  Words tuned(const std::string& out, int64_t steps, const Words& more = {}) const {
    return Words{"train",
                 "--model",
                 model,
                 "--data",
                 kFixtures + "fine_tuning/chats.jsonl",
                 "--out",
                 directory / out,
                 "--steps",
                 std::to_string(steps),
                 "--batch",
                 "4",
                 "--micro-batch",
                 "2",
                 "--seq",
                 "64",
                 "--precision",
                 "fp32",
                 "--threads",
                 "2",
                 "--lr",
                 "2e-2",
                 "--cache",
                 directory / "cache"} +
           more;
  }
  Words sampled() const {
    return {"--sample-every", "2", "--sample-prompts", prompts, "--sample-tokens", "9"};
  }
  void train_to_end(const Words& words) const {
    const CommandResult result = run(words);
    ASSERT_EQ(result.code, 0) << result.err;
  }
  // The lines of the run's metrics that have samples.
  std::vector<Json> samples_of(const std::string& out) const {
    std::vector<Json> lines;
    for (const std::string& line : lines_of(read_text_file(directory / out + "/metrics.jsonl", 1 << 26)))
      if (Json one = Json::parse(line); one.contains("samples")) lines.push_back(std::move(one));
    return lines;
  }
  // What `sluice generate` answers to the prompts.
  Words answers_of(const std::string& from, const Words& more = {}) const {
    const CommandResult result =
        run(Words{"generate", "--from", from, "--prompts", prompts, "--max-tokens", "9", "--threads", "2"} +
            more);
    EXPECT_EQ(result.code, 0) << result.err;
    Words answers;
    for (const std::string& line : lines_of(result.out)) answers.push_back(Json::parse(line)["answer"]);
    return answers;
  }
  static Words texts_of(const Json& line) {
    Words texts;
    for (const Json& sample : line["samples"]) texts.push_back(sample["text"]);
    return texts;
  }

  const std::string model = kFixtures + "fine_tuning/model", prompts = directory / "prompts.jsonl";
};

TEST_F(SamplesCli, AreWhatTheVerbGenerateAnswers) {
  const CommandResult trained = run(tuned("run", 5, sampled()));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.out.find("  samples every 2 steps: 2 sequences of up to "), std::string::npos)
      << trained.out;
  EXPECT_NE(trained.out.find("sample after step 4: Hello there | "), std::string::npos) << trained.out;
  const std::vector<Json> lines = samples_of("run");
  ASSERT_EQ(lines.size(), 3u);
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i]["step"], std::min<int64_t>(2 * (i + 1), 5));
  EXPECT_EQ(lines[0]["samples"][0]["prompt"], "Hello there");
  EXPECT_NE(lines[0]["samples"][1]["prompt"].get<std::string>().find("<Hi>"), std::string::npos);
  EXPECT_EQ(texts_of(lines[2]), answers_of(directory / "run"));
  EXPECT_NE(texts_of(lines[0]), texts_of(lines[2])) << "the model has changed";

  train_to_end(tuned("without", 5));
  EXPECT_EQ(differences(newest_tensors(directory / "run"), newest_tensors(directory / "without")), "");

  ASSERT_EQ(run({"report", directory / "run", "--out", directory / "report.html"}).code, 0);
  const std::string page = read_text_file(directory / "report.html", 1 << 26);
  EXPECT_NE(page.find("<h2>Samples</h2>"), std::string::npos);
  EXPECT_NE(page.find("<div class=\"sample\">Hello there</div>"), std::string::npos);
  EXPECT_NE(page.find("&lt;Hi&gt;"), std::string::npos);
}

TEST_F(SamplesCli, AResumeGoesOnWithThem) {
  train_to_end(tuned("whole", 5, sampled()));
  train_to_end(tuned("parts", 3, sampled()));
  ASSERT_EQ(samples_of("parts").size(), 2u);  // after step 2, and after the last
  const CommandResult more = run({"train", "--out", directory / "parts", "--resume", "auto", "--steps", "5"});
  ASSERT_EQ(more.code, 0) << more.err;
  const std::vector<Json> lines = samples_of("parts");
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[2]["step"], 4);
  EXPECT_EQ(lines[3]["step"], 5);
  std::filesystem::remove(prompts);
  const CommandResult gone = run({"train", "--out", directory / "parts", "--resume", "auto", "--steps", "6"});
  ASSERT_EQ(gone.code, 0) << gone.err;
  EXPECT_NE(gone.out.find("prompts.jsonl of the run is gone: no more samples."), std::string::npos)
      << gone.out;
  EXPECT_EQ(samples_of("parts").size(), 4u);
}

TEST_F(SamplesCli, AdaptersSpeak) {
  train_to_end(tuned("adapted", 4, Words{"--lora", "4"} + sampled()));
  EXPECT_EQ(texts_of(samples_of("adapted").back()), answers_of(directory / "adapted"));
  EXPECT_NE(texts_of(samples_of("adapted").back()), answers_of(model, {"--precision", "fp32"}));
}

TEST_F(SamplesCli, SeveralRanksWriteOneLine) {
  for (const char* stage : {"0", "3"}) {
    const std::string out = std::string("ranks") + stage;
    train_to_end(tuned(out, 2, Words{"--gpus", "2", "--zero", stage} + sampled()));
    ASSERT_EQ(samples_of(out).size(), 1u);
    EXPECT_EQ(texts_of(samples_of(out).front()), answers_of(directory / out));
  }
}

TEST_F(SamplesCli, PlansNameThem) {
  const Words plan = {"plan", "--model", model, "--seq", "64", "--batch", "4", "--no-advice"};
  const CommandResult told = run(plan + sampled());
  ASSERT_EQ(told.code, 0) << told.err;
  EXPECT_NE(told.out.find("  samples every 2 steps: 2 sequences of up to "), std::string::npos) << told.out;
  EXPECT_NE(told.out.find("\n  caches "), std::string::npos) << told.out;
  const CommandResult json = run(plan + Words{"--json"} + sampled());
  ASSERT_EQ(json.code, 0) << json.err;
  const Json facts = Json::parse(json.out);
  EXPECT_EQ(facts["samples"]["sequences"], 2);
  EXPECT_GT(facts["samples"]["readings"]["decode"]["seconds_predicted"], 0);
  EXPECT_GT(facts["body_peaks"]["prefill"]["host"], 0);
  EXPECT_EQ(facts["homes"]["caches"]["host"].get<int64_t>() % 4096, 0);
  const Json without = Json::parse(run(plan + Words{"--json"}).out);
  EXPECT_FALSE(without.contains("samples"));
  EXPECT_EQ(without["recompute"].size(), facts["recompute"].size());
}

TEST_F(SamplesCli, WhatCannotBeSampledIsRefused) {
  const int usage = static_cast<int>(ExitCode::usage);
  const auto refused = [&](const Words& more, int code, const Words& parts) {
    expect_refusal(tuned("refused", 2, more), code, parts);
  };
  refused({"--sample-every", "2"}, usage, {"--sample-every needs --sample-prompts."});
  refused({"--sample-prompts", prompts}, usage, {"--sample-prompts needs --sample-every."});
  refused({"--sample-tokens", "3"}, usage, {"--sample-tokens needs --sample-every."});
  refused(sampled() + Words{"--tokenizer", kFixtures + "llama"}, usage, {"There is no tokenizer"});
  write_bytes(prompts, "{\"prompt\": \"" + std::string(2000, 'x') + "\"}\n");
  refused(sampled(), usage,
          {"Prompt 1 of --sample-prompts has ", "the model's context is 256", "Shorten it."});
  std::string many;
  for (int i = 0; i < 65; ++i) many += "{\"prompt\": \"a\"}\n";
  write_bytes(prompts, many);
  refused(sampled(), usage, {"has 65 prompts", "Give 64 at most."});
  write_bytes(prompts, "{\"prompt\": 1}\n");
  refused(sampled(), static_cast<int>(ExitCode::malformed_file), {"line 1", "no string"});
}

}  // namespace
}  // namespace sluice
