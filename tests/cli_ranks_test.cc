// Ranks on the command line: plans for ranks that nobody starts, and the choice of a ZeRO stage.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli_support.h"

namespace sluice {
namespace {

// One byte a nanosecond between ranks, and a tenth of that between nodes of four: slower than all else.
constexpr const char* kMachine = R"({
  "format": "sluice-machine-1",
  "name": "slow network",
  "lanes": [
    {"lane": "compute", "flops_per_second": {"fp32": 1e12, "bf16": 1e12}},
    {"lane": "optimizer", "bytes_per_second": 1e11}, {"lane": "collective"}, {"lane": "nvme_write"}
  ],
  "network": [
    {"name": "node", "ranks": 4, "bytes_per_second": 1e9, "latency_seconds": 1e-6},
    {"name": "cluster", "ranks": 64, "bytes_per_second": 1e8, "latency_seconds": 1e-6}
  ]
})";

class CliRanks : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    write_bytes(machine, kMachine);
  }
  CommandResult plan(const Words& more) const {
    return run(Words{"plan", "--model", "gpt2", "--seq", "64", "--batch", "16", "--micro-batch", "1",
                     "--machine", machine} +
               more);
  }
  nlohmann::json facts_of(const Words& more) const {
    const CommandResult result = plan(more + Words{"--json"});
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    return nlohmann::json::parse(result.out);
  }

  const std::string machine = directory / "machine.json";
};

TEST_F(CliRanks, APlanSaysWhatRanksSendOverEveryLevel) {
  const nlohmann::json facts = facts_of({"--ranks", "16", "--zero", "2", "--host-mem", "2GiB"});
  EXPECT_EQ(facts["ranks"], 16);
  EXPECT_EQ(facts["ranks_per_node"], 4);
  EXPECT_EQ(facts["zero_stage"], 2);
  EXPECT_EQ(facts["network_bytes"]["node"]["unit"], "rank");
  EXPECT_EQ(facts["network_bytes"]["cluster"]["unit"], "node");
  const double of_rank = facts["network_bytes"]["node"]["bytes"];
  EXPECT_EQ(of_rank, facts["moved_bytes"]["collective"]);
  // Of P bytes of gradients and as many of weights: a rank sends 15/16 of each. A node of four sends 4 x
  // 12/16 of gradients and 12/16 of weights. What else is sent is 8 bytes for each of 65,536 gradients.
  const double of_node = facts["network_bytes"]["cluster"]["bytes"];
  EXPECT_NEAR(of_node / of_rank, (4 * 12 + 12) / (2.0 * 15), 1e-3);
  EXPECT_GT(facts["lane_busy"]["collective"].get<double>(), of_node / 1e8);
  EXPECT_LT(facts["lane_busy"]["collective"].get<double>(),
            1.1 * of_node / 1e8);  // parts go inside nodes, too
  EXPECT_GE(facts["seconds_predicted"], facts["lane_busy"]["collective"]);

  const CommandResult people = plan({"--ranks", "16", "--zero", "2", "--host-mem", "2GiB"});
  for (const char* part : {"\n  16 ranks at ZeRO stage 2, 4 on a machine, each with:\n", "\n  sent a step: ",
                           " over node by a rank, ", " over cluster by a node\n", "\n  busy a step: "})
    EXPECT_NE(people.out.find(part), std::string::npos) << people.out;
}

TEST_F(CliRanks, FewerOnAMachineSendMoreBetweenMachines) {
  const Words more{"--ranks", "16", "--zero", "2", "--host-mem", "2GiB"};
  const nlohmann::json four = facts_of(more), two = facts_of(more + Words{"--ranks-per-node", "2"});
  EXPECT_EQ(two["ranks_per_node"], 2);
  const double of_four = four["network_bytes"]["cluster"]["bytes"],
               of_two = two["network_bytes"]["cluster"]["bytes"];
  EXPECT_NEAR(of_two / of_four, (2 * 14 + 14) / (4.0 * 12 + 12), 1e-3);
  EXPECT_EQ(two["network_bytes"]["node"], four["network_bytes"]["node"]);
  EXPECT_EQ(plan({"--ranks", "128", "--batch", "128"}).code, 2);  // the description joins 64
}

TEST_F(CliRanks, GpusAreTheRanksOfOneMachine) {
  const Words more{"--host-mem", "2GiB", "--threads", "1"};  // --gpus divides the cores that are here
  nlohmann::json gpus = facts_of(more + Words{"--gpus", "4"});
  nlohmann::json ranks = facts_of(more + Words{"--ranks", "4", "--ranks-per-node", "4"});
  EXPECT_EQ(gpus, ranks);
  EXPECT_FALSE(gpus["network_bytes"].contains("cluster"));
}

// Stage 3 sends half as much again as stage 2, and stage 0 needs the most memory for nothing.
TEST_F(CliRanks, AutoTakesTheStageThatIsPredictedToBeFastest) {
  const Words more{"--ranks", "16", "--zero", "auto"};
  EXPECT_EQ(facts_of(more + Words{"--host-mem", "3GiB"})["zero_stage"], 1);
  const CommandResult people = plan(more + Words{"--host-mem", "3GiB"});
  EXPECT_NE(people.out.find("--zero auto is 1 (a step at stage 3: "), std::string::npos) << people.out;
  const CommandResult little = plan(more + Words{"--host-mem", "480MiB"});
  EXPECT_NE(little.out.find("s, 1: does not fit, 0: does not fit)."), std::string::npos) << little.out;
  EXPECT_NE(little.out.find("16 ranks at ZeRO stage 3"), std::string::npos) << little.out;
  EXPECT_EQ(plan(more + Words{"--host-mem", "80MiB"}).code, 3);
}

// All ranks train at the stage that the first chose; a run alone has nothing to choose.
TEST_F(CliRanks, AutoTrains) {
  const Words more{"--machine", machine, "--zero", "auto"};
  const CommandResult several = run(train("several", 3, more + Words{"--gpus", "2"}));
  ASSERT_EQ(several.code, 0) << several.err;
  EXPECT_NE(several.out.find("--zero auto is "), std::string::npos) << several.out;
  ASSERT_EQ(run(train("fixed", 3, {"--gpus", "2"})).code, 0);
  EXPECT_EQ(differences(newest_tensors(directory / "several"), newest_tensors(directory / "fixed")), "");
  const CommandResult resumed = run({"train", "--resume", "auto", "--out", directory / "several", "--steps",
                                     "4", "--gpus", "2", "--zero", "auto"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  const CommandResult alone = run(train("alone", 2, more));
  EXPECT_EQ(alone.code, 0) << alone.err;
  EXPECT_EQ(alone.out.find("--zero auto"), std::string::npos) << alone.out;
}

}  // namespace
}  // namespace sluice
