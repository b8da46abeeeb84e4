// Tokens by expert in a profile: its facts, the text and the page.
#include "tools/profile/experts.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/cli_support.h"

namespace sluice {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::vector<StepMetrics> two_steps() {
  std::vector<StepMetrics> steps(2);
  steps[0].expert_tokens = {{1, {6, 2, 0, 0}}, {3, {2, 2, 2, 2}}};
  steps[1].expert_tokens = {{1, {4, 3, 1, 0}}, {3, {2, 2, 2, 2}}};
  return steps;
}

TEST(ProfileExperts, CountsTheTokensOfAllSteps) {
  const ordered_json f = expert_facts(two_steps());
  EXPECT_EQ(f["steps"], 2);
  EXPECT_EQ(f["imbalance"], (3 + 1 + 2 + 1) / 4.0);
  EXPECT_EQ(
      f["layers"][0],
      ordered_json({{"layer", 1}, {"imbalance", 2.5}, {"without_tokens", 1}, {"tokens", {10, 5, 1, 0}}}));
  EXPECT_EQ(f["layers"][1]["tokens"], ordered_json({4, 4, 4, 4}));
  const std::string line = experts_line(f);
  EXPECT_NE(
      line.find("1.75 times the mean of its tokens (mean over layers; 2.50 in layer 1). 1 expert had no"),
      std::string::npos)
      << line;
  EXPECT_NE(experts_markdown(f).find("\n| 1 | 0 | 4.0 | 10 | 2.50 | 1 |\n| 3 | 4 | 4.0 | 4 | 1.00 | 0 |\n"),
            std::string::npos)
      << experts_markdown(f);
  const std::string page = experts_section(f);
  for (const char* square : {"<i class=\"e8\" title=\"layer 1, expert 0: 10 tokens\"></i>",
                             "<i class=\"e5\" title=\"layer 1, expert 1: 5 tokens\"></i>",
                             "<i class=\"e1\" title=\"layer 1, expert 2: 1 tokens\"></i>",
                             "<i class=\"e0\" title=\"layer 1, expert 3: 0 tokens\"></i>",
                             "<i class=\"e4\" title=\"layer 3, expert 3: 4 tokens\"></i>"})
    EXPECT_NE(page.find(square), std::string::npos) << square << "\n" << page;
}

TEST(ProfileExperts, SaysHowManyChoicesWereDropped) {
  std::vector<StepMetrics> steps = two_steps();
  EXPECT_FALSE(expert_facts(steps).contains("dropped_choices"));
  for (StepMetrics& step : steps)
    for (LayerTokens& layer : step.expert_tokens) layer.dropped = layer.layer;  // 1 and 3 of 8
  const ordered_json f = expert_facts(steps);
  EXPECT_EQ(f["dropped_choices"], 8.0 / 32);
  EXPECT_NE(experts_line(f).find(" No expert took 25.0 % of all choices."), std::string::npos)
      << experts_line(f);
}

TEST(ProfileExperts, AModelWithoutExpertsHasNoSection) {
  const ordered_json f = expert_facts(std::vector<StepMetrics>(2));
  EXPECT_TRUE(f.is_null());
  EXPECT_EQ(experts_line(f) + experts_markdown(f) + experts_section(f), "");
  EXPECT_TRUE(expert_facts({}).is_null());
}

TEST_F(Cli, AProfileShowsTokensByExpert) {
  const Words command{
      "profile",
      "--steps",
      "4",
      "--out",
      directory / "report",
      "--",
      "--model",
      "mixtral:layers=2,width=32,heads=2,kv_heads=2,ffn=32,vocab=256,context=32,experts=4,top=2",
      "--data",
      text,
      "--batch",
      "4",
      "--micro-batch",
      "2",
      "--threads",
      "2",
      "--device",
      "cpu"};
  const CommandResult result = run(command);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("the largest expert of a layer has "), std::string::npos) << result.out;
  const json f = json::parse(read_text_file(directory / "report/profile.json", 1 << 26));
  ASSERT_EQ(f["experts"]["layers"].size(), 2u);
  for (const json& layer : f["experts"]["layers"]) {
    uint64_t tokens = 0;
    for (const json& of : layer["tokens"]) tokens += of.get<uint64_t>();
    EXPECT_EQ(tokens, 4u * 4 * 32 * 2) << "steps, sequences, tokens, choices";
  }
  EXPECT_NE(read_text_file(directory / "report/profile.md", 1 << 26).find("\n## Experts\n"),
            std::string::npos);
  EXPECT_NE(read_text_file(directory / "report/report.html", 1 << 26).find("<h2>Tokens by expert</h2>"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice
