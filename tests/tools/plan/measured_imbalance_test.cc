// `sluice plan --resume` assumes the imbalance of experts that the run has measured, and says so.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/cli_support.h"

namespace sluice {
namespace {

constexpr const char* kMixture =
    "mixtral:layers=2,width=32,heads=2,kv_heads=2,ffn=32,vocab=256,context=32,experts=4,top=2";

class MeasuredImbalance : public Cli {
 protected:
  void train(const std::string& model) const {
    const CommandResult trained =
        run({"train", "--model", model, "--data", text, "--batch", "4", "--micro-batch", "2", "--steps", "3",
             "--out", directory / "run", "--device", "cpu", "--threads", "2"});
    ASSERT_EQ(trained.code, 0) << trained.err;
  }

  const Words plan{"plan", "--out", directory / "run", "--resume", "auto", "--no-advice"};
};

TEST_F(MeasuredImbalance, IsAssumedByAPlanThatGoesOn) {
  train(kMixture);
  const CommandResult measured = run(plan);
  ASSERT_EQ(measured.code, 0) << measured.err;
  const std::string sentence = ": as steps 1 to 3 of " + (directory / "run") + " had it.";
  EXPECT_NE(measured.out.find(sentence), std::string::npos) << measured.out;
  const CommandResult json = run(plan + Words{"--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const double imbalance = nlohmann::json::parse(json.out)["imbalance"];
  EXPECT_GT(imbalance, 1);
  EXPECT_LE(imbalance, 2);
  const CommandResult given = run(plan + Words{"--imbalance", "1.5"});
  ASSERT_EQ(given.code, 0) << given.err;
  EXPECT_EQ(given.out.find(sentence), std::string::npos) << given.out;
  EXPECT_NE(given.out.find("one of each layer had 1.5 times the mean"), std::string::npos) << given.out;
}

TEST_F(MeasuredImbalance, IsLeftOutWhereMetricsCannotBeRead) {
  train(kMixture);
  std::ofstream(directory / "run/metrics.jsonl", std::ios::app) << "{\n{\n";
  const CommandResult without = run(plan);
  ASSERT_EQ(without.code, 0) << without.err;
  EXPECT_NE(without.out.find("What the run measured of its experts is left out: "), std::string::npos)
      << without.out;
  EXPECT_NE(without.out.find("(--imbalance 1)"), std::string::npos) << without.out;
}

// The choices that a capacity drops are measured, too.
TEST_F(MeasuredImbalance, IsAtMostWhatACapacityAllows) {
  const std::string model =
      "gpt2-moe:layers=2,width=32,heads=2,vocab=256,context=32,experts=4,every=1,top=1,capacity=1";
  train(model);
  const CommandResult json = run(plan + Words{"--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  EXPECT_EQ(nlohmann::json::parse(json.out)["imbalance"], 1);
  const CommandResult said = run(plan);
  EXPECT_NE(said.out.find(" had it, choices beyond an expert's capacity included."), std::string::npos)
      << said.out;
  const CommandResult given = run({"plan", "--model", model, "--batch", "4", "--imbalance", "2"});
  EXPECT_EQ(given.code, 2);
  EXPECT_NE(given.err.find("an expert of this model takes at most 1 times the mean"), std::string::npos)
      << given.err;
}

}  // namespace
}  // namespace sluice
