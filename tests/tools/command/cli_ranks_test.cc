// Ranks on the command line: plans for ranks that nobody starts, and the choice of a ZeRO stage.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/cli_support.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

// Ranks send one byte a nanosecond within nodes of four, and a tenth of that between nodes. All else is
// faster.
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
  CommandResult plan(const Words& more) const { return plan_batch("16", more); }
  CommandResult plan_batch(const char* batch, const Words& more) const {
    return run(Words{"plan", "--model", "gpt2", "--seq", "64", "--batch", batch, "--micro-batch", "1",
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
  // With P bytes of gradients and as many of weights, a node of four sends 3/4 of its fp32 sums (2 P) and 3/4
  // of the weights. A rank sends 3/4 of both within the node, and a quarter of what its node sends. Besides,
  // 8 bytes are sent for each block of 65,536 gradients.
  const double of_node = facts["network_bytes"]["cluster"]["bytes"];
  EXPECT_NEAR(of_node / of_rank, (3 * 0.75) / (2 * 0.75 + 3 * 0.75 / 4), 1e-3);
  EXPECT_GT(facts["lane_busy"]["collective"].get<double>(), of_node / 1e8);
  EXPECT_LT(facts["lane_busy"]["collective"].get<double>(),
            1.1 * of_node / 1e8);  // parts also travel within nodes
  EXPECT_GE(facts["seconds_predicted"], facts["lane_busy"]["collective"]);

  const CommandResult people = plan({"--ranks", "16", "--zero", "2", "--host-mem", "2GiB"});
  for (const char* part : {"\n  16 ranks at ZeRO stage 2, 4 on a node, each with:\n", "\n  sent a step: ",
                           " over node by a rank, ", " over cluster by a node\n", "\n  a step  "})
    EXPECT_NE(people.out.find(part), std::string::npos) << people.out;
}

TEST_F(CliRanks, FewerOnAMachineSendMoreBetweenMachines) {
  const Words more{"--ranks", "16", "--zero", "2", "--host-mem", "2GiB"};
  const nlohmann::json four = facts_of(more), two = facts_of(more + Words{"--ranks-per-node", "2"});
  EXPECT_EQ(two["ranks_per_node"], 2);
  const double of_four = four["network_bytes"]["cluster"]["bytes"],
               of_two = two["network_bytes"]["cluster"]["bytes"];
  EXPECT_NEAR(of_two / of_four, (7 / 8.0) / (3 / 4.0), 1e-3);
  EXPECT_EQ(plan({"--ranks", "128", "--batch", "128"}).code, 2);  // the description joins 64
}

TEST_F(CliRanks, GpusAreTheRanksOfOneMachine) {
  const Words more{"--host-mem", "2GiB", "--threads", "1"};  // --gpus divides the cores that are here
  nlohmann::json gpus = facts_of(more + Words{"--gpus", "4"});
  nlohmann::json ranks = facts_of(more + Words{"--ranks", "4", "--ranks-per-node", "4"});
  EXPECT_EQ(gpus, ranks);
  EXPECT_FALSE(gpus["network_bytes"].contains("cluster"));
}

// Stage 3 sends half as much again as stage 2. Where weights are shared within nodes, no more than at stage 2
// goes from node to node. Stage 0 needs the most memory and gains nothing.
TEST_F(CliRanks, AutoTakesWhatIsPredictedToBeFastest) {
  const Words more{"--ranks", "16", "--zero", "auto"};
  const Words all = more + Words{"--host-mem", "3GiB", "--shard-weights", "all"};
  EXPECT_EQ(facts_of(all)["zero_stage"], 1);
  const CommandResult of_all = plan(all);
  EXPECT_NE(of_all.out.find("Ranks share at ZeRO stage 1 (a step at stage 3: "), std::string::npos)
      << of_all.out;
  const nlohmann::json open = facts_of(more + Words{"--host-mem", "3GiB"});
  EXPECT_EQ(open["zero_stage"], 3);
  EXPECT_EQ(open["weights_in_machines"], true);
  const CommandResult stage = plan({"--ranks", "16", "--host-mem", "3GiB"});  // --zero 3 is the default
  EXPECT_NE(stage.out.find("Ranks share at ZeRO stage 3 within nodes (a step at stage 3: "),
            std::string::npos)
      << stage.out;
  EXPECT_NE(stage.out.find("16 ranks at ZeRO stage 3 within nodes, 4 on a node"), std::string::npos);
  const CommandResult little = plan(more + Words{"--host-mem", "580MiB"});
  EXPECT_NE(little.out.find("s, 3 within nodes: does not fit, 1: does not fit, 0: does not fit)."),
            std::string::npos)
      << little.out;
  EXPECT_NE(little.out.find("16 ranks at ZeRO stage 3, 4 on a node"), std::string::npos) << little.out;
  EXPECT_EQ(plan(more + Words{"--host-mem", "80MiB"}).code, 3);
}

// Compute takes nearly all of the step, and no sharding makes less of it.
TEST_F(CliRanks, WhatCannotBeFasterByEnoughIsNotPlanned) {
  const CommandResult bound = run({"plan", "--model", "gpt2", "--machine", "cpu-2core", "--ranks", "2",
                                   "--batch", "64", "--seq", "256", "--zero", "auto", "--no-advice"});
  EXPECT_EQ(bound.code, 0) << bound.err;
  for (const char* part :
       {"Ranks share at ZeRO stage 3 (a step at stage 3: ", " s, 1: at least ", " s, 0: at least "})
    EXPECT_NE(bound.out.find(part), std::string::npos) << bound.out;
}

// --shard-weights node needs an even number of ranks on a node: one rank has none to share with, and three
// cannot share in a way that keeps the bits.
TEST_F(CliRanks, MachinesWithoutAnEvenNumberOfRanksShareAmongAll) {
  const Words node{"--host-mem", "2GiB", "--ranks", "12", "--shard-weights", "node", "--ranks-per-node"};
  for (const char* odd : {"1", "3"}) {
    const CommandResult refused = plan_batch("12", node + Words{odd});
    EXPECT_EQ(refused.code, 2);
    EXPECT_NE(refused.err.find("--shard-weights node is for an even number of ranks on every machine, not " +
                               std::string(odd)),
              std::string::npos)
        << refused.err;
  }
  EXPECT_NE(plan_batch("12", node + Words{"2"}).out.find("ZeRO stage 3 within nodes, 2 on a node"),
            std::string::npos);
  EXPECT_NE(plan_batch("12", node + Words{"12"}).out.find("ZeRO stage 3, 12 on a node"), std::string::npos);
  // Where every rank has all weights, they are not shared within nodes either.
  EXPECT_NE(plan_batch("12", node + Words{"2", "--zero", "2"}).out.find("ZeRO stage 2, 2 on a node"),
            std::string::npos);
}

TEST_F(CliRanks, GpusAreThoseOfOneMachine) {
  expect_refusal({"plan", "--model", kTiny, "--machine", "a100-cluster", "--gpus", "16", "--batch", "16"}, 2,
                 {"--gpus 16 are those of one machine", "has 8.", "--ranks 16"});
}

// The description has four ranks on a node. So the last node has two of six ranks, or one of five.
TEST_F(CliRanks, TheLastMachineMayHaveFewerRanks) {
  const Words more{"--host-mem", "2GiB", "--json", "--ranks"};
  const auto sent = [&](const char* ranks) {
    const CommandResult result = plan_batch(ranks, more + Words{ranks, "--zero", "2"});
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out)["moved_bytes"]["collective"].get<double>();
  };
  // Each rank has P bytes of gradients and as many of weights. With node groups of two it sends 1/2 of each
  // within, and 2/6 of the fp32 sums and of the weights across. Without node groups it sends 4/5 of each.
  // Besides, 8 bytes are sent for each block of 65,536 gradients.
  EXPECT_NEAR(sent("6") / sent("5"), (1 / 2.0 + 1 / 2.0 + (2 + 1) * 2 / 6.0) / (4 / 5.0 + 4 / 5.0), 1e-3);
  const CommandResult refused = plan_batch("5", more + Words{"5", "--shard-weights", "node"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("an even number of ranks on every machine, not 1."), std::string::npos)
      << refused.err;
}

TEST_F(CliRanks, ExpertsAreDividedEvenly) {
  const auto words = [&](const char* ranks, const char* over, const Words& more = {}) {
    return Words{"plan", "--model", kExperts, "--batch", "12", "--ranks", ranks, "--experts-over", over} +
           more;
  };
  expect_refusal(words("3", "3"), 2, {"--experts-over 3 does not divide the 4 experts of layer 0."});
  expect_refusal(words("3", "2"), 2, {"--experts-over 2 does not divide the 3 ranks of the run."});
  expect_refusal(words("1", "2"), 2, {"--experts-over 2 needs several ranks, and the run has one."});
  expect_refusal({"plan", "--model", kTiny, "--batch", "12", "--ranks", "2", "--experts-over", "2"}, 2,
                 {"--experts-over 2: the model has no experts."});
  const std::string prompts = directory / "prompts.jsonl";
  write_bytes(prompts, "{\"prompt\": \"a\"}\n");
  expect_refusal(words("2", "2",
                       {"--sample-every", "5", "--sample-prompts", prompts, "--tokenizer",
                        kFixtures + "fifty_chats/model"}),
                 2, {"--experts-over 2 excludes --sample-every"});
  const CommandResult divided = run(words("4", "2", {"--json"})), whole = run(words("4", "1", {"--json"}));
  ASSERT_EQ(divided.code, 0) << divided.err;
  ASSERT_EQ(whole.code, 0) << whole.err;
  const auto parameters = [](const CommandResult& result) {
    return nlohmann::json::parse(result.out)["parameters"].get<uint64_t>();
  };
  EXPECT_EQ(parameters(divided), parameters(whole)) << "those of all ranks";
  EXPECT_EQ(nlohmann::json::parse(divided.out)["experts_over"], 2);
  EXPECT_NE(run(words("4", "2")).out.find(" on a node, experts divided over 2, each with:"),
            std::string::npos);
}

// A run's --experts-over that does not suit other ranks is replaced. If it is given again, it is refused.
TEST_F(CliRanks, ExpertsAreDividedAnewOnOtherRanks) {
  const std::string out = directory / "experts";
  const CommandResult two = run({"train", "--model", kExperts, "--data", text, "--batch", "12", "--steps",
                                 "1", "--out", out, "--threads", "1", "--gpus", "2", "--experts-over", "2"});
  ASSERT_EQ(two.code, 0) << two.err;
  const Words resume{"train", "--resume", "auto", "--out", out, "--gpus", "3", "--steps"};
  const CommandResult three = run(resume + Words{"2"});
  EXPECT_EQ(three.code, 0) << three.err;
  EXPECT_NE(three.out.find("Experts were divided over 2 ranks, which does not suit 3: now over 1.\n"),
            std::string::npos)
      << three.out;
  expect_refusal(resume + Words{"3", "--experts-over", "2"}, 2,
                 {"--experts-over 2 does not divide the 3 ranks of the run."});
}

// All ranks train at the stage that the first rank chose. A run on one rank has nothing to choose.
TEST_F(CliRanks, AutoTrains) {
  const Words more{"--machine", machine, "--zero", "auto"};
  const CommandResult several = run(train("several", 3, more + Words{"--gpus", "2"}));
  ASSERT_EQ(several.code, 0) << several.err;
  EXPECT_NE(several.out.find("Ranks share at ZeRO stage "), std::string::npos) << several.out;
  ASSERT_EQ(run(train("fixed", 3, {"--gpus", "2"})).code, 0);
  EXPECT_EQ(differences(newest_tensors(directory / "several"), newest_tensors(directory / "fixed")), "");
  const CommandResult resumed = run({"train", "--resume", "auto", "--out", directory / "several", "--steps",
                                     "4", "--gpus", "2", "--zero", "auto"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  const CommandResult alone = run(train("alone", 2, more));
  EXPECT_EQ(alone.code, 0) << alone.err;
  EXPECT_EQ(alone.out.find("Ranks share"), std::string::npos) << alone.out;
}

// When a run goes on with other ranks, its waves need not divide the micro-batches of a rank.
TEST_F(CliRanks, WavesThatDoNotFitAreChosenAnew) {
  const CommandResult four =
      run({"train", "--model", kTiny, "--data", text, "--batch", "4", "--micro-batch", "1", "--steps", "1",
           "--out", directory / "waves", "--threads", "1", "--waves", "4"});
  ASSERT_EQ(four.code, 0) << four.err;
  const Words resume{"train", "--resume", "auto", "--out", directory / "waves", "--gpus", "2", "--steps"};
  const CommandResult resumed = run(resume + Words{"2"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.out.find("--waves 4 of the run does not fit here: the planner chooses."),
            std::string::npos)
      << resumed.out;
  expect_refusal(resume + Words{"3", "--waves", "4"}, 2, {"--waves 4", "leave out --waves"});
}

}  // namespace
}  // namespace sluice
