// `sluice plan --sweep`: its points, its knees, and what it refuses.
#include "tools/plan/sweep.h"

#include <gtest/gtest.h>

#include <bit>
#include <nlohmann/json.hpp>

#include "tests/support/cli_support.h"

namespace sluice {
namespace {

std::vector<SweepPoint> points(const std::vector<double>& token_seconds) {
  std::vector<SweepPoint> out;
  for (const double seconds : token_seconds)
    out.push_back({.value = 1ull << out.size(), .feasible = seconds > 0, .token_seconds = seconds});
  mark_knees(out);
  return out;
}

std::vector<int> knees(const std::vector<double>& token_seconds) {
  std::vector<int> at;
  for (const SweepPoint& p : points(token_seconds))
    if (p.knee) at.push_back(std::countr_zero(p.value));
  return at;
}

TEST(PlanSweep, KneesAreWhereGainsEnd) {
  EXPECT_EQ(knees({10, 8, 6, 6, 6}), std::vector<int>({2}));
  EXPECT_EQ(knees({10, 9, 8, 7, 6}), std::vector<int>());          // gains do not end
  EXPECT_EQ(knees({10, 8, 8, 6, 5.9}), std::vector<int>({1, 3}));  // two stairs
  EXPECT_EQ(knees({10, 9.6, 9.6, 9.6}), std::vector<int>());       // a gain of 4 % does not count
  EXPECT_EQ(knees({0, 8, 6, 5.4, 5.4}), std::vector<int>({3}));    // 0.6 after 2 is more than a quarter
  EXPECT_EQ(knees({0, 8, 8, 8}), std::vector<int>());              // the first that fits is no knee
}

class Sweep : public Cli {
 protected:
  CommandResult sweep(const std::string& range, const Words& more = {}) const {
    return run(Words{"plan", "--model", kTiny, "--seq", "32", "--device", "cpu", "--threads", "1", "--sweep",
                     range} +
               more);
  }
};

TEST_F(Sweep, PlansEveryPointAsIfItWereGiven) {
  const Words more{"--nvme-dir", directory.path(), "--nvme-mem", "256MiB", "--json"};
  const CommandResult result = sweep("host-mem=1MiB:128MiB", more);
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json facts = nlohmann::json::parse(result.out);
  EXPECT_EQ(facts["quantity"], "host-mem");
  ASSERT_EQ(facts["points"].size(), 15u);  // 7 doublings in 14 steps
  EXPECT_EQ(facts["points"].front()["value"], 1 << 20);
  EXPECT_EQ(facts["points"].front()["feasible"], false);
  const nlohmann::json last = facts["points"].back();
  EXPECT_EQ(last["value"], 128 << 20);
  const CommandResult one = run(Words{"plan", "--model", kTiny, "--seq", "32", "--device", "cpu", "--threads",
                                      "1", "--host-mem", "128MiB"} +
                                more);
  ASSERT_EQ(one.code, 0) << one.err;
  const nlohmann::json plan = nlohmann::json::parse(one.out);
  EXPECT_EQ(last["seconds_predicted"], plan["seconds_predicted"]);
  EXPECT_EQ(last["least_seconds"], plan["least_seconds"]);
  EXPECT_EQ(last["bottleneck"], plan["bottleneck"]["name"]);
  EXPECT_EQ(last["bottleneck_fraction"], plan["bottleneck"]["fraction"]);
}

// The assumptions come first, then a row for each doubling and for the end of the range.
TEST_F(Sweep, DoublesBatchesAndDrawsACurve) {
  const CommandResult result = sweep("batch=1:10", {"--host-mem", "auto"});
  ASSERT_EQ(result.code, 0) << result.err;
  size_t at = result.out.find("--host-mem auto:");
  for (const char* row : {" parameters, sequences of ", "\n  1  ", "\n  2  ", "\n  4  ", "\n  8  ", "\n  10 ",
                          "\n  a token\n", " 0 s |", "knee"})
    EXPECT_NE(at = result.out.find(row, at), std::string::npos) << row << "\n" << result.out;
  EXPECT_NE(result.out.find("*"), std::string::npos);
  EXPECT_NE(result.out.find("\n  Weights and state "), std::string::npos) << result.out;
  // If all steps have equally many tokens, the curve shows the time of a step.
  const CommandResult memory = sweep("host-mem=128MiB:256MiB", {});
  ASSERT_EQ(memory.code, 0) << memory.err;
  EXPECT_NE(memory.out.find("\n  a step\n"), std::string::npos) << memory.out;
  EXPECT_EQ(memory.out.find("Weights and state "), std::string::npos) << memory.out;
}

// Gains are compared per doubling of the quantity.
TEST(PlanSweep, TheLastStepMayBeShort) {
  std::vector<SweepPoint> short_step = {{.value = 8, .feasible = true, .token_seconds = 10},
                                        {.value = 16, .feasible = true, .token_seconds = 8},
                                        {.value = 17, .feasible = true, .token_seconds = 7.9}};
  mark_knees(short_step);
  EXPECT_FALSE(short_step[1].knee);  // 0.1 for a sixteenth more is steep enough
}

TEST_F(Sweep, FasterDrivesAreFasterWhereThereAreAny) {
  const CommandResult none = sweep("nvme-bandwidth=100MB:10GB", {"--host-mem", "128MiB"});
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("no NVMe tier"), std::string::npos) << none.err;
  const CommandResult result =
      sweep("nvme-bandwidth=100MB:10GB", {"--host-mem", "66MiB", "--nvme-dir", directory.path(), "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json all = nlohmann::json::parse(result.out)["points"];
  ASSERT_GE(all.size(), 9u);
  EXPECT_LT(all.back()["seconds_predicted"].get<double>(),
            0.9 * all.front()["seconds_predicted"].get<double>());
  // Drives that belong to another tier do not count.
  nlohmann::json machine =
      nlohmann::json::parse(read_text_file("engine/rates/machines/cpu-2core.json", 1 << 20));
  machine["drives"][0]["tier"] = "tape";
  write_bytes(directory / "tape.json", machine.dump());
  const CommandResult tape =
      sweep("nvme-bandwidth=100MB:10GB",
            {"--host-mem", "66MiB", "--nvme-dir", directory.path(), "--machine", directory / "tape.json"});
  EXPECT_EQ(tape.code, 2) << tape.out;
  EXPECT_NE(tape.err.find("no drives to sweep"), std::string::npos) << tape.err;
}

// The range is kept also where neighbouring values of type double are far apart.
TEST_F(Sweep, BeginsAndEndsWhereItsRangeDoes) {
  const CommandResult result = sweep("nvme-bandwidth=9007199254740993:18446744073709551615",
                                     {"--host-mem", "66MiB", "--nvme-dir", directory.path(), "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json all = nlohmann::json::parse(result.out)["points"];
  EXPECT_EQ(all.front()["value"], 9007199254740993u);
  EXPECT_EQ(all.back()["value"], 18446744073709551615u);
  const CommandResult two = sweep("nvme-bandwidth=18446744073709551614:18446744073709551615",
                                  {"--host-mem", "66MiB", "--nvme-dir", directory.path(), "--json"});
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(nlohmann::json::parse(two.out)["points"].size(), 2u);
}

TEST_F(Sweep, SaysOfAValueWhyItIsRefusedAndGoesOn) {
  const Words two = {"--host-mem", "128MiB", "--batch", "2"};
  const CommandResult some = sweep("ranks=1:4", two);
  ASSERT_EQ(some.code, 0) << some.err;
  const std::string row = "\n  4                 --batch 2 is not a multiple of the 4 ranks.\n";
  EXPECT_NE(some.out.find(row), std::string::npos) << some.out;
  const CommandResult nodes = sweep("ranks=2:4", {"--ranks-per-node", "4", "--batch", "4"});
  ASSERT_EQ(nodes.code, 0) << nodes.err;
  EXPECT_NE(nodes.out.find("--ranks 2 is not a multiple of --ranks-per-node 4.\n  4  "), std::string::npos)
      << nodes.out;
  const CommandResult none = sweep("ranks=3:6", two);
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("--batch 2 is not a multiple of the 3 ranks."), std::string::npos) << none.err;
}

TEST_F(Sweep, RefusesWhatIsNoRange) {
  for (const char* range : {"host-mem", "host-mem=", "host-mem=1GiB", "=1:2", ":", "host-mem:1=2"})
    EXPECT_EQ(sweep(range).code, 2) << range;
  const CommandResult unknown = sweep("host-men=1GiB:2GiB");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("Did you mean host-mem?"), std::string::npos) << unknown.err;
  for (const char* range : {"batch=8:8", "batch=8:1", "host-mem=2GiB:1GiB"}) {
    const CommandResult empty = sweep(range);
    EXPECT_EQ(empty.code, 2);
    EXPECT_NE(empty.err.find("is empty"), std::string::npos) << empty.err;
  }
  for (const char* range : {"batch=0:4", "host-mem=auto:4GiB", "host-mem=10%:90%", "batch=-1:4", "batch=x:4",
                            "gpu-mem=1GiB:", "host-mem=1:99999999999999999999"}) {
    const CommandResult result = sweep(range);
    EXPECT_EQ(result.code, 2) << range;
    EXPECT_NE(result.err.find("Write --sweep as in host-mem=8GiB:256GiB"), std::string::npos) << result.err;
  }
  for (const char* range : {"batch=1:4TiB", "batch=8:18446744073709551615", "ranks=1:4TiB"}) {
    const CommandResult absurd = sweep(range);  // refused at once, as --batch and --ranks refuse it
    EXPECT_EQ(absurd.code, 2) << range;
    EXPECT_NE(absurd.err.find("  Give --"), std::string::npos) << absurd.err;
  }
}

}  // namespace
}  // namespace sluice
