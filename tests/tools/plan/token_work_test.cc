// How many tokens a step needs so that weights and state are no bottleneck.
#include "tools/plan/token_work.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/cli_support.h"

namespace sluice {
namespace {

// The work of a plan: its tokens keep compute busy for `of_tokens` seconds, its state a drive for `of_state`.
TokenWork work(uint64_t tokens, double of_tokens, double of_state) {
  using Kind = Bottleneck::Kind;
  return {tokens, {Kind::lane, 0, of_tokens}, {Kind::drive, 0, of_state}, "compute", "drive nvme"};
}

TEST(TokenWork, GrowsInProportionToTokens) {
  EXPECT_EQ(tokens_to_suffice(work(1000, 2, 10)), 5000);
  EXPECT_EQ(tokens_to_suffice(work(1000, 20, 10)), 500);
  EXPECT_EQ(tokens_to_suffice(work(1000, 0, 10)), std::nullopt);
  EXPECT_EQ(tokens_to_suffice(work(1000, 10, 0)), std::nullopt);
}

using Plans = std::vector<TokenWork>;

TEST(TokenWork, SufficesBetweenTwoPlans) {
  // At 2000 tokens, state takes 4 s more than tokens; at 4000, it takes 12 s less.
  const Plans plans{work(1000, 4, 12), work(2000, 8, 12), work(4000, 26, 14)};
  EXPECT_EQ(tokens_to_suffice(plans), 2500);
  // A larger batch may move more state, as in more waves. What counts is from which number on tokens always
  // suffice.
  EXPECT_EQ(tokens_to_suffice(Plans{work(1000, 5, 4), work(2000, 10, 12), work(4000, 20, 18)}), 3000);
  EXPECT_EQ(tokens_to_suffice(Plans{work(1000, 5, 4), work(2000, 10, 4)}), std::nullopt);
  EXPECT_EQ(tokens_to_suffice(Plans{work(1000, 1, 4), work(2000, 2, 4)}), std::nullopt);
  EXPECT_EQ(tokens_to_suffice(Plans{}), std::nullopt);
}

TEST(TokenWork, SaysFromWhichBatchOn) {
  const Plans reached{work(16384, 4, 12), work(32768, 20, 12)};
  EXPECT_EQ(token_work_sentence(reached, 2048, true),
            "Weights and state are the bottleneck with --batch 8 and no longer with --batch 16: predicted, "
            "the turn "
            "is at about 25000 tokens a step.");
  const Plans before{work(16384, 14, 12), work(32768, 28, 12)};
  EXPECT_EQ(
      token_work_sentence(before, 2048, true),
      "Weights and state are nowhere the bottleneck: with 16384 tokens a step they keep drive nvme busy "
      "for 12 s, and tokens keep compute busy for 14 s (predicted).");
  const Plans beyond{work(16384, 2, 12), work(32768, 4, 12)};
  const std::string stay =
      "Weights and state stay the bottleneck: with 32768 tokens a step they keep drive nvme busy for 12 s, "
      "and tokens keep compute busy for 4 s (predicted).";
  EXPECT_EQ(token_work_sentence(beyond, 2048, true), stay);
  EXPECT_EQ(token_work_sentence(beyond, 2048, false), stay + " More do not fit.");
  EXPECT_EQ(token_work_sentence({}, 2048, false), "");
}

// What a plan says of its own work agrees with its JSON and with its bottleneck.
TEST_F(Cli, PlanSaysHowManyTokensAStepNeeds) {
  const Words plan{"plan", "--no-advice", "--model", kTiny,        "--device", "cpu",       "--batch",
                   "4",    "--seq",       "32",      "--host-mem", "128MiB",   "--threads", "1"};
  const CommandResult json = run(plan + Words{"--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const nlohmann::json facts = nlohmann::json::parse(json.out);
  EXPECT_EQ(facts["tokens"], 4 * 32);
  const double of_tokens = facts["work_of_tokens"]["seconds"], of_state = facts["work_of_state"]["seconds"];
  EXPECT_GT(of_tokens, 0);
  EXPECT_GT(of_state, 0);
  const double busiest = facts["bottleneck"]["seconds"];
  EXPECT_LE(std::max(of_tokens, of_state), busiest * (1 + 1e-9));
  EXPECT_GE(of_tokens + of_state, busiest * (1 - 1e-9));
  const CommandResult people = run(plan);
  ASSERT_EQ(people.code, 0) << people.err;
  EXPECT_NE(people.out.find("\n  tokens         weights and state keep "), std::string::npos) << people.out;
  EXPECT_EQ(people.out.find("(--batch "), std::string::npos) << "a batch that was not planned";
}

TEST_F(Cli, PlanAssumesAnImbalanceOfExperts) {
  const Words plan{"plan", "--no-advice",   "--device", "cpu",        "--batch", "8",         "--seq",
                   "64",   "--micro-batch", "8",        "--host-mem", "256MiB",  "--threads", "1"};
  const Words mixture{
      "--model", "mixtral:layers=2,width=64,heads=2,kv_heads=2,ffn=128,vocab=256,context=64,experts=8,top=2"};
  const auto facts = [&](const Words& more) {
    const CommandResult result = run(plan + mixture + more + Words{"--json"});
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out);
  };
  const nlohmann::json even = facts({}), uneven = facts({"--imbalance", "2.75"});
  EXPECT_EQ(even["imbalance"], 1);
  EXPECT_EQ(uneven["imbalance"], 2.75);
  // 128 rows are two tiles for each of 8 experts. If one has 352 rows and seven have 96, one has six tiles
  // and seven have two: 20 tiles in place of 16.
  EXPECT_GT(uneven["lane_busy"]["compute"].get<double>(), even["lane_busy"]["compute"].get<double>());
  const CommandResult people = run(plan + mixture + Words{"--imbalance", "2.75"});
  EXPECT_NE(people.out.find("one of each layer had 2.75 times the mean of rows"), std::string::npos)
      << people.out;
  expect_refusal(plan + mixture + Words{"--imbalance", "4.5"}, 2,
                 {"--imbalance 4.5 is not possible", "at most 4."});
  expect_refusal(plan + mixture + Words{"--imbalance", "0.5"}, 2, {"--imbalance"});
  expect_refusal(
      plan + Words{"--model", "gpt2:layers=2,width=32,heads=2,vocab=256,context=64", "--imbalance", "2"}, 2,
      {"this one has none"});
}

}  // namespace
}  // namespace sluice
