// Plans of ranks with a GPU each: they have the units and figures of `sluice train`, with NCCL and without.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/emulation/emulated_command.h"

namespace sluice {
namespace {

class NcclPlan : public EmulatedRun {
 protected:
  // Options that give plenty of memory, and `more`.
  static Words roomy(const Words& more) {
    return Words{"--device", "cuda", "--gpu-mem", "2GiB", "--host-mem", "1GiB"} + more;
  }
  Ended plan(const Words& more) const {
    return run_command(Words{"plan", "--model", kTiny, "--batch", "4", "--micro-batch", "2"} + roomy(more));
  }
  // The plan's one line about how ranks exchange bytes.
  static std::string note(const Ended& planned) {
    std::string found;
    for (const std::string& line : lines_of(planned.out))
      if (line.find("NCCL") != std::string::npos) found += line;
    return found;
  }
  // The lines that predict a step, in a plan's output or train's.
  static Words predicted(const Ended& ended) {
    Words found;
    for (const std::string& line : lines_of(ended.out))
      for (const char* what : {"  moved a step:", "  predicted:"})
        if (line.starts_with(what)) found.push_back(line);
    return found;
  }
  static std::string exchange_tier(const Ended& json) {
    return nlohmann::json::parse(json.out)["ranks_exchange_in"];
  }
};

TEST_F(NcclPlan, SaysWhatTrainWillDo) {
  const std::string assumed =
      " connects the GPUs and takes 512 MiB of --gpu-mem; where it cannot, train goes through host memory, "
      "and "
      "says so.";
  struct Case {
    int version;
    std::string note, tier;
  };
  for (const Case& c :
       {Case{22809, "It is assumed that NCCL 2.28.9" + assumed, "device"},
        Case{0, "Ranks exchange through host memory, not by NCCL: the emulated machine has none.", "host"}}) {
    emulation::set_up({.count = 2, .nccl_version = c.version});
    const Ended planned = plan({"--gpus", "2"});
    ASSERT_EQ(planned.code, ExitCode::done) << planned.what;
    EXPECT_EQ(note(planned), c.note);
    EXPECT_EQ(exchange_tier(plan({"--gpus", "2", "--json"})), c.tier);
    const Ended trained = run_command(train("of" + c.tier, 1, roomy({"--gpus", "2"})));
    ASSERT_EQ(trained.code, ExitCode::done) << trained.what;
    EXPECT_EQ(predicted(planned).size(), 2u) << planned.out;
    EXPECT_EQ(predicted(planned), predicted(trained));
  }
  const Ended alone = plan({});
  EXPECT_EQ(note(alone), "");
  expect_nothing_on_the_gpu();
}

// It is not known whether another machine has NCCL, nor whether this one would have it with more GPUs.
TEST_F(NcclPlan, ElsewhereItIsAssumed) {
  const Words ranks{"--ranks", "2", "--machine", "a100-cluster"};
  for (const int gpus : {1, 0}) {
    emulation::set_up({.count = gpus, .nccl_version = 0});
    const Ended planned = plan(ranks);
    ASSERT_EQ(planned.code, ExitCode::done) << planned.what;
    EXPECT_TRUE(note(planned).starts_with("It is assumed that NCCL connects the GPUs")) << planned.out;
    EXPECT_EQ(exchange_tier(plan(ranks + Words{"--json"})), "device");
  }
  EXPECT_EQ(exchange_tier(plan({"--gpus", "2", "--json"})), "device") << "of GPUs that are not here";
}

// What NCCL is assumed to take lies outside the arena.
TEST_F(NcclPlan, MemoryOfNcclIsSetAside) {
  const auto facts = [&](int version) {
    emulation::set_up({.count = 2, .nccl_version = version});
    return nlohmann::json::parse(plan({"--gpus", "2", "--json"}).out);
  };
  const nlohmann::json with = facts(22809), without = facts(0);
  EXPECT_EQ(with["device_reserve"].get<uint64_t>(), without["device_reserve"].get<uint64_t>() + (512u << 20));
  EXPECT_EQ(with["budgets"], without["budgets"]);
}

}  // namespace
}  // namespace sluice
