// Plans for other machines: `sluice plan --machine` with a description that has sizes.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/rates/machine_rates.h"
#include "tests/support/cli_support.h"
#include "tests/support/units.h"

namespace sluice {
namespace {

class CliElsewhere : public Cli {
 protected:
  // Runs plan with the default of --device, by which the machine decides. run() would add --device cpu.
  CommandResult plan(const Words& more) const {
    return run(Words{"plan", "--no-advice", "--device", "auto"} + more);
  }
  nlohmann::json facts_of(const Words& more) const {
    const CommandResult result = plan(more + Words{"--json"});
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    return nlohmann::json::parse(result.out);
  }
  // A description whose tiers have these sizes.
  std::string described(const std::string& memory) const {
    const std::string file = directory / "described.json";
    const std::string shipped = read_text_file("engine/rates/machines/rtx-4090.json", 1 << 20);
    const size_t begin = shipped.find("  \"memory\""), end = shipped.find('\n', begin) + 1;
    write_bytes(file, shipped.substr(0, begin) + memory + shipped.substr(end));
    return file;
  }
};

TEST_F(CliElsewhere, AMachineThatIsNotKnownIsSuggested) {
  for (const char* name : {"rtx4090", "RTX-4090"})
    expect_refusal({"plan", "--model", "llama-70b", "--machine", name}, 2, {name, "Did you mean rtx-4090?"});
  expect_refusal({"plan", "--model", "llama-70b", "--machine", "4090"}, 2,
                 {"Did you mean rtx-4090 or rtx-4090-4nvme?"});
  expect_refusal({"plan", "--model", "llama-70b", "--machine", "a100"}, 2,
                 {"Did you mean a100-40gb, a100-80gb, a100-40gb-x4, a100-40gb-x8 or a100-cluster?"});
  expect_refusal({"plan", "--model", "llama-70b", "--machine", "nothere.json"}, 2,
                 {"nothere.json, and no such file", "Known are a100", "docs/machine.md"});
}

// The README asks what it takes to train Llama-70B on one 4090.
TEST_F(CliElsewhere, Llama70BOnOne4090) {
  const Words words{"--model", "llama-70b", "--machine", "rtx-4090", "--host-mem", "64GiB", "--seq", "2048"};
  const nlohmann::json facts = facts_of(words);
  EXPECT_EQ(facts["feasible"], true);
  EXPECT_EQ(facts["device"], "cuda");
  EXPECT_EQ(facts["machine"], "rtx-4090, data sheets");
  EXPECT_EQ(facts["parameters"], 70553706496);
  EXPECT_EQ(facts["budgets"]["host"], 64 * kGiB);
  // Budgets are the described sizes less a twentieth, as they are for the machine at hand.
  const uint64_t device = 24564 * kMiB, disk = 2'000'000'000'000;
  EXPECT_EQ(facts["budgets"]["device"], device - device / 20);
  EXPECT_EQ(facts["budgets"]["nvme"], disk - disk / 20);
  // Master weights and moments take 12 bytes a parameter, most of them on the drive.
  const double state = facts["homes"]["state"]["nvme"];
  EXPECT_NEAR(state / (12 * 70553706496.0), 1, 0.02);
  // The drive is busier than everything else: most of the 14 bytes a parameter pass through it.
  for (const char* lane : {"compute", "h2d", "d2h", "optimizer"})
    EXPECT_GT(facts["lane_busy"]["nvme_write"].get<double>(), facts["lane_busy"][lane].get<double>()) << lane;

  const CommandResult people = plan(words);
  for (const char* part :
       {"A plan for another machine, rtx-4090, data sheets: desktop with one RTX 4090 on PCIe 4 x16, ",
        "; 24.0 GiB of device memory, 64.0 GiB of host memory, 1.82 TiB of NVMe.\n",
        "\n  on the cuda device, at the rates of rtx-4090, data sheets\n", "\n  predicted: "})
    EXPECT_NE(people.out.find(part), std::string::npos) << people.out;
}

// The README shows the command's output word for word. Times follow the cost model, so those of the README
// may be off by a tenth.
TEST_F(CliElsewhere, TheReadmeShowsIt) {
  const std::string page = read_text_file("README.md", 1 << 20);
  const std::string command = "$ sluice plan --model llama-70b --machine rtx-4090 ";
  const size_t begin = page.find(command);
  ASSERT_NE(begin, std::string::npos) << "run the tests in the repository root";
  const std::string shown = page.substr(begin, page.find("```", begin) - begin);
  Words words{"--model", "llama-70b", "--machine", "rtx-4090"};
  std::istringstream rest(shown.substr(command.size(), shown.find('\n') - command.size()));
  for (std::string word; rest >> word;) words.push_back(word);
  const CommandResult result = run(Words{"plan", "--device", "auto"} + words);
  ASSERT_EQ(result.code, 0) << result.err;
  const auto line = [](const std::string& all, const std::string& start) {
    const size_t at = all.find("\n" + start) + 1;
    return at == 0 ? start + " is not there" : all.substr(at, all.find('\n', at) - at);
  };
  for (const char* start : {"70553706496 parameters", "  permanent", "  weights", "  state", "  arena",
                            "  allowed", "  a checkpoint takes"})
    EXPECT_EQ(line(shown, start), line(result.out, start));
  for (const char* start : {"  bottleneck     drive nvme", "  drive wear     "})
    EXPECT_TRUE(line(result.out, start).starts_with(line(shown, start).substr(0, 40))) << result.out;
  for (const char* start : {"  faster         ", "                 --host-mem "}) {
    const std::string in_readme = line(shown, start);
    EXPECT_TRUE(line(result.out, start).starts_with(in_readme.substr(0, in_readme.find(": ")))) << result.out;
  }
  const auto seconds = [&](const std::string& all) {
    return std::stod(line(all, "  predicted: ").substr(std::string("  predicted: ").size()));
  };
  EXPECT_NEAR(seconds(shown) / seconds(result.out), 1, 0.1);
}

// Each rank copies its own part of weights in host memory over its bus, and the GPUs gather the parts.
TEST_F(CliElsewhere, WeightsInHostMemoryCrossTheBusOfTheirRank) {
  const std::string shipped = read_text_file("engine/rates/machines/h100-cluster.json", 1 << 20);
  const auto facts_at = [&](const std::string& bus) {
    const std::string file = directory / ("bus-" + bus + ".json"),
                      old = "\"bytes_per_second\": 50e9, \"latency";
    std::string machine = shipped;
    for (size_t at = machine.find(old); at != std::string::npos; at = machine.find(old))
      machine.replace(at, old.size(), "\"bytes_per_second\": " + bus + ", \"latency");
    write_bytes(file, machine);
    return facts_of({"--model", "gpt2", "--machine", file, "--ranks", "16", "--batch", "16", "--seq", "16",
                     "--shard-weights", "all", "--placement", "lowest", "--recompute", "none", "--clip",
                     "0"});
  };
  const nlohmann::json fast = facts_at("49e9"), slow = facts_at("2e9");
  // Each rank has its own sixteenth of 124,439,808 parameters of 2 bytes each.
  const double part = 124439808 * 2.0 / 16;
  for (const nlohmann::json* facts : {&fast, &slow}) {
    EXPECT_GE((*facts)["homes"]["weights"]["host"].get<double>(), 0.99 * part);
    EXPECT_GE((*facts)["moved_bytes"]["h2d"].get<double>(), 0.99 * part);
  }
  EXPECT_GE(slow["lane_busy"]["h2d"].get<double>(), 0.99 * part / 2e9);
  EXPECT_GE(slow["seconds_predicted"].get<double>(), slow["lane_busy"]["h2d"].get<double>());
  EXPECT_GT(slow["seconds_predicted"].get<double>(), 1.5 * fast["seconds_predicted"].get<double>());
}

// Ten machines with a card of 9.4 GB/s each write to a directory that they share.
TEST_F(CliElsewhere, CheckpointsOfAClusterTakeWhatItsCardsCarry) {
  const nlohmann::json facts = facts_of({"--model", "gpt2-xl", "--machine", "a100-cluster", "--ranks", "80",
                                         "--batch", "80", "--seq", "128", "--zero", "3"});
  EXPECT_GE(facts["checkpoint_seconds"].get<double>(),
            facts["checkpoint_bytes"].get<double>() / (10 * 9.4e9));
}

TEST_F(CliElsewhere, EveryMachineThatComesAlongIsPlannedFor) {
  int planned = 0;
  for (const auto& entry : std::filesystem::directory_iterator("engine/rates/machines")) {
    const std::string name = entry.path().stem().string();
    if (!built_in_machine(name).value().memory) continue;  // it stands for the machine at hand
    const nlohmann::json facts = facts_of({"--model", kTiny, "--machine", name});
    EXPECT_EQ(facts["machine"], name + ", data sheets");
    EXPECT_EQ(facts["device"], "cuda");
    EXPECT_GT(facts["budgets"]["device"], 14 * kGiB) << name;
    ++planned;
  }
  EXPECT_EQ(planned, 21);
}

// A node of eight GPUs has 2 TiB of host memory, however many ranks share it.
TEST_F(CliElsewhere, RanksShareTheMachine) {
  const auto host = [&](const Words& ranks) {
    const Words words{"--model", kTiny, "--machine", "h100-cluster", "--batch", "8"};
    return facts_of(words + ranks)["budgets"]["host"].get<uint64_t>();
  };
  EXPECT_EQ(host({"--ranks", "8"}), 256 * kGiB - 256 * kGiB / 20);
  EXPECT_EQ(host({"--ranks", "8", "--ranks-per-node", "4"}), 512 * kGiB - 512 * kGiB / 20);
}

// The note has the sizes of one rank, and says so.
TEST_F(CliElsewhere, SizesAreThoseOfEachRank) {
  const CommandResult four =
      plan({"--model", kTiny, "--machine", "a100-40gb", "--gpus", "4", "--batch", "4", "--nvme-mem", "1TB"});
  EXPECT_EQ(four.code, 0) << four.err;
  EXPECT_NE(
      four.out.find("; for each of 4 ranks 40.0 GiB of device memory, 64.0 GiB of host memory, 3.49 TiB "
                    "of NVMe.\n"),
      std::string::npos)
      << four.out;
  EXPECT_EQ(plan({"--model", kTiny, "--machine", "a100-40gb"}).out.find("for each of"), std::string::npos);
  // The description of a node has the sizes of one rank already.
  const CommandResult node =
      plan({"--model", kTiny, "--machine", "a100-40gb-x4", "--gpus", "4", "--batch", "4"});
  EXPECT_NE(node.out.find("; for each of 4 ranks 40.0 GiB of device memory, 128 GiB of host memory, 1.75 TiB "
                          "of NVMe.\n"),
            std::string::npos)
      << node.out;
}

// Two directories count as two drives, in rate and in capacity.
TEST_F(CliElsewhere, EveryDirectoryIsADrive) {
  const auto budget = [&](const std::string& machine, const std::string& directories) {
    const Words words{"--model", kTiny, "--machine", machine, "--nvme-dir", directories};
    return facts_of(words)["budgets"]["nvme"].get<uint64_t>();
  };
  const uint64_t drive = 2'000'000'000'000;
  EXPECT_EQ(budget("rtx-4090", "/nowhere/a"), drive - drive / 20);
  EXPECT_EQ(budget("rtx-4090", "/nowhere/a,/nowhere/b"), 2 * drive - 2 * drive / 20);
  EXPECT_EQ(budget("rtx-4090-4nvme", "/nowhere/a"), drive - drive / 20);
  const CommandResult two =
      plan({"--model", kTiny, "--machine", "rtx-4090", "--nvme-dir", "/nowhere/a,/nowhere/b"});
  EXPECT_NE(two.out.find(", 3.64 TiB of NVMe.\n"), std::string::npos) << two.out;
}

// Four drives move four times as many bytes a second.
TEST_F(CliElsewhere, FourDrivesAreFasterThanOne) {
  const auto bytes_per_second = [&](const char* machine) {
    const nlohmann::json facts = facts_of(
        {"--model", "llama-13b", "--seq", "512", "--machine", machine, "--host-mem", "32GiB", "--clip", "0"});
    return facts["moved_bytes"]["nvme_write"].get<double>() / facts["lane_busy"]["nvme_write"].get<double>();
  };
  EXPECT_NEAR(bytes_per_second("rtx-4090-4nvme") / bytes_per_second("rtx-4090"), 4,
              0.8);  // plans differ a little
}

TEST_F(CliElsewhere, OwnDescriptionsHaveSizesToo) {
  const std::string file = described(R"("memory": {"device": 4e9, "host": 4e9},)");
  const nlohmann::json facts = facts_of({"--model", "gpt2", "--seq", "128", "--machine", file});
  EXPECT_EQ(facts["budgets"]["device"], 4'000'000'000 - 512 * kMiB);
  EXPECT_EQ(facts["budgets"]["host"], 4'000'000'000 - 512 * kMiB);
  EXPECT_FALSE(facts["budgets"].contains("nvme"));
  EXPECT_EQ(facts_of({"--model", "gpt2", "--seq", "128", "--machine", file, "--host-mem", "50%", "--nvme-mem",
                      "3GB"})["budgets"],
            (nlohmann::json{{"device", 4'000'000'000 - 512 * kMiB}, {"host", 2e9}, {"nvme", 3e9}}));

  // A machine without a GPU.
  const nlohmann::json none =
      facts_of({"--model", "gpt2", "--seq", "128", "--machine", described(R"("memory": {"host": 8e9},)")});
  EXPECT_EQ(none["device"], "cpu");
  EXPECT_EQ(none["budgets"], (nlohmann::json{{"host", 8'000'000'000 - 512 * kMiB}}));
}

// The plan counts on the most threads that --threads allows, with a MiB of reserve for each.
TEST_F(CliElsewhere, MoreCoresThanThereAreThreads) {
  nlohmann::json machine =
      nlohmann::json::parse(read_text_file("engine/rates/machines/cpu-2core.json", 1 << 20));
  machine["memory"] = {{"host", 8e9}};
  machine["pools"]["cores"] = 1e30;
  write_bytes(directory / "many.json", machine.dump());
  const nlohmann::json facts = facts_of({"--model", kTiny, "--machine", directory / "many.json"});
  EXPECT_EQ(facts["runtime_reserve"], (64 + 1024) * kMiB);
}

// A description with rates alone changes nothing of what is planned for.
TEST_F(CliElsewhere, WithoutSizesThePlanIsForThisMachine) {
  const Words words{"--model", "gpt2", "--seq", "128", "--machine", described(""), "--device", "cpu"};
  const CommandResult here = run(Words{"plan"} + words);
  EXPECT_EQ(here.code, 0) << here.err;
  EXPECT_EQ(here.out.find("another machine"), std::string::npos) << here.out;
  EXPECT_NE(here.out.find("of what is free"), std::string::npos) << here.out;
}

TEST_F(CliElsewhere, WhatItCannotHoldIsRefusedWithWhatWould) {
  const CommandResult refused =
      plan({"--model", "llama-70b", "--machine", "rtx-4090", "--nvme-mem", "200GB", "--seq", "2048"});
  EXPECT_EQ(refused.code, 3) << refused.out;
  EXPECT_NE(refused.err.find("--nvme-mem "), std::string::npos) << refused.err;
  EXPECT_TRUE(refused.out.starts_with("A plan for another machine, rtx-4090")) << refused.out;
}

// More pinned memory takes larger page tables from the device, which has room for them here.
TEST_F(CliElsewhere, MoreHostMemoryAloneIsNamedWhereItSuffices) {
  const Words little{"--model", kTiny, "--machine", "rtx-3090", "--host-mem"};
  const CommandResult refused = plan(little + Words{"1MiB"});
  EXPECT_EQ(refused.code, 3) << refused.out;
  const std::string enough = "Enough with the other budgets as given: --host-mem ";
  const size_t at = refused.err.find(enough);
  ASSERT_NE(at, std::string::npos) << refused.err;
  const std::string bytes =
      refused.err.substr(at + enough.size(), refused.err.find(' ', at + enough.size()) - at - enough.size());
  EXPECT_EQ(plan(little + Words{bytes}).code, 0) << bytes;
}

TEST_F(CliElsewhere, BudgetsThatTheMachineLacksAreToldOf) {
  const Words more{"--model", kTiny, "--machine", "rtx-4090", "--host-mem", "100GiB"};
  EXPECT_NE(plan(more).out.find("--host-mem 100 GiB is more than what that machine has: 64.0 GiB."),
            std::string::npos);
}

TEST_F(CliElsewhere, AV100HasNoBf16) {
  const Words words{"--model", "gpt2", "--seq", "128", "--machine", "v100-dgx2"};
  const CommandResult planned = plan(words);
  EXPECT_EQ(planned.code, 0) << planned.err;
  EXPECT_NE(planned.out.find("v100-dgx2, data sheets has no rate for bf16: --precision is fp16.\n"),
            std::string::npos)
      << planned.out;
  expect_refusal(Words{"plan", "--device", "cuda", "--precision", "bf16"} + words, 4,
                 {"bf16", "--precision fp16"});
  EXPECT_EQ(plan(words + Words{"--precision", "fp32"}).code, 0);
}

// The directory is needed only to see how much is free there.
TEST_F(CliElsewhere, APlanWithADiskInBytesNeedsNoDirectory) {
  const Words words{"plan", "--model", "gpt2", "--seq", "128"};
  const CommandResult facts = run(words + Words{"--nvme-mem", "5GB", "--json"});
  EXPECT_EQ(facts.code, 0) << facts.err;
  EXPECT_EQ(nlohmann::json::parse(facts.out)["budgets"]["nvme"], 5'000'000'000);
  expect_refusal(words + Words{"--nvme-mem", "50%"}, 2, {"--nvme-dir"});
  expect_refused_training({"--nvme-mem", "5GB"}, 2, {"--nvme-dir"});
}

// The search has larger shards than the plan. With 400 GiB it finds a candidate that takes five times as long
// once it has the plan's shards. So another candidate must become the plan.
TEST_F(CliElsewhere, MoreMemoryIsNotSlower) {
  const auto seconds = [&](const char* host) {
    return facts_of({"--model", "gpt2:layers=40,width=5120,heads=40,context=1024", "--batch", "32", "--clip",
                     "0", "--machine", "rtx-4090", "--host-mem", host})["seconds_predicted"]
        .get<double>();
  };
  EXPECT_LT(seconds("400GiB"), 1.03 * seconds("300GiB"));
}

}  // namespace
}  // namespace sluice
