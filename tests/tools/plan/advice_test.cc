// What `sluice plan` advises: changes that make steps faster, what works where the budgets do not, the whole
// of a run. Each figure is that of the plan with that change.
#include "tools/plan/advice.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "engine/run/start/planning.h"
#include "tests/support/cli_support.h"
#include "tests/support/command_line_support.h"

namespace sluice {
namespace {

class Advice : public Cli {
 protected:
  const Words options{"--model",    "gpt2:layers=6,width=384,heads=6,vocab=256,context=256",
                      "--device",   "cpu",
                      "--threads",  "2",
                      "--nvme-dir", directory.path(),
                      "--nvme-mem", "512MiB"};
  nlohmann::json facts(const Words& more) const {
    const CommandResult result = run(Words{"plan", "--json"} + options + more);
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out);
  }
};

// "--host-mem 123MiB: 456 tokens/s, +78 %".
TEST_F(Advice, EveryChangeIsAPlan) {
  const Words budgets{"--batch", "8", "--gpu-mem", "24MiB", "--host-mem", "112MiB"};
  const CommandResult plan = run(Words{"plan"} + options + budgets);
  ASSERT_EQ(plan.code, 0) << plan.err;
  const double now = facts(budgets)["tokens_per_second"];
  const std::regex line(R"((--[a-z-]+) (\S+): (\d+) tokens/s, \+(\d+) %)");
  int changes = 0;
  for (std::sregex_iterator m(plan.out.begin(), plan.out.end(), line), end; m != end; ++m, ++changes) {
    Words with = budgets;
    const auto given = std::find(with.begin(), with.end(), (*m)[1].str());
    ASSERT_NE(given, with.end()) << (*m)[0].str();
    given[1] = (*m)[2].str();
    const double then = facts(with)["tokens_per_second"];
    EXPECT_NEAR(then, std::stod((*m)[3].str()), 0.5 + 0.01 * then) << (*m)[0].str();
    EXPECT_NEAR(100 * (then / now - 1), std::stod((*m)[4].str()), 2) << (*m)[0].str();
  }
  EXPECT_GE(changes, 1) << plan.out;
  EXPECT_LE(changes, 3);
  EXPECT_EQ(run(Words{"plan", "--no-advice"} + options + budgets).out.find("faster"), std::string::npos);
}

TEST_F(Advice, SaysWherePlansTakeTooLongToTryOthers) {
  const PlannedRun run = planned_run(options_of(std::string("plan --model ") + kTiny + " --device cpu"));
  const Plan plan = plan_or_throw(run.request, run.budgets);
  const uint64_t tasks = program_size(run.request, plan.model.micro_batch).tasks;
  EXPECT_EQ(advice_text(run, plan, tasks).find("tried: plans of"), std::string::npos);
  EXPECT_EQ(advice_text(run, plan, tasks - 1),
            fmt::format("  faster         no other budget or batch was tried: plans of {} tasks take long\n",
                        tasks));
}

TEST_F(Advice, NothingHelpsAPlanWithAllItNeeds) {
  const CommandResult plan = run({"plan", "--model", kTiny, "--device", "cpu", "--host-mem", "1GiB"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_FALSE(std::regex_search(plan.out, std::regex(R"(--host-mem \d+[MG]iB: )"))) << plan.out;
}

// The whole of a run, where its length is given.
TEST_F(Advice, ARunInAll) {
  const Words plain{"--batch", "8", "--gpu-mem", "24MiB", "--host-mem", "112MiB"},
      budgets = plain + Words{"--steps", "1000"};
  const nlohmann::json all = facts(budgets);
  EXPECT_DOUBLE_EQ(
      all["total"]["seconds"].get<double>(),
      1000 * all["seconds_predicted"].get<double>() + all["checkpoint_seconds"].get<double>());  // at its end
  EXPECT_EQ(all["total"]["bytes_written"].get<uint64_t>(),
            1000 * all["drive_wear"]["bytes_per_step"].get<uint64_t>());
  const CommandResult plan = run(Words{"plan", "--no-advice"} + options + budgets);
  EXPECT_TRUE(std::regex_search(
      plan.out,
      std::regex(R"(  in all         1000 steps take \dm\d\ds and write 0\.\d+ TB, under 1 % of 600 TBW)")))
      << plan.out;
  EXPECT_FALSE(facts(plain).contains("total"));
}

// The longest sequence that a refusal names works, and the next longer that it tries does not.
TEST_F(Advice, ARefusalNamesWhatWorks) {
  const Words budgets{"--batch", "8", "--gpu-mem", "12MiB", "--host-mem", "112MiB"};
  const CommandResult refused = run(Words{"plan"} + options + budgets);
  EXPECT_EQ(refused.code, 3);
  std::smatch found;
  ASSERT_TRUE(std::regex_search(refused.err, found,
                                std::regex(R"(Within these budgets, --seq (\d+) instead of 256 works\.)")))
      << refused.err;
  const int length = std::stoi(found[1].str());
  EXPECT_EQ(facts(budgets + Words{"--seq", std::to_string(length)})["feasible"], true);
  EXPECT_EQ(run(Words{"plan"} + options + budgets + Words{"--seq", std::to_string(length + 256 / 16)}).code,
            3);
  EXPECT_NE(
      refused.err.find("the device arena needs 15.1 MiB (15810560 bytes; largest task: backward of h.5) "
                       "and may have 12.0 MiB."),
      std::string::npos)
      << refused.err;
  EXPECT_NE(refused.err.find("--gpu-mem 15810560 (15.1 MiB)"), std::string::npos) << refused.err;
}

// No sixteenth of the sequence works: halves of the shortest are tried.
TEST_F(Advice, ARefusalNamesSequencesThatAreMuchShorter) {
  const Words model{"--model",    "llama:layers=2,width=64,heads=2,vocab=256,context=65536",
                    "--device",   "cpu",
                    "--batch",    "1",
                    "--gpu-mem",  "2MiB",
                    "--host-mem", "256MiB"};
  const CommandResult refused = run(Words{"plan"} + model);
  EXPECT_EQ(refused.code, 3);
  std::smatch found;
  ASSERT_TRUE(std::regex_search(refused.err, found, std::regex(R"(--seq (\d+) instead of 65536 works\.)")))
      << refused.err;
  const int length = std::stoi(found[1].str());
  EXPECT_LT(length, 65536 / 16);
  EXPECT_EQ(run(Words{"plan", "--seq", std::to_string(length)} + model).code, 0);
  EXPECT_EQ(run(Words{"plan", "--seq", std::to_string(2 * length)} + model).code, 3);
}

// A drive of 1.82 TiB, where nearly 6 would do.
TEST_F(Advice, WhatTheMachineCannotHaveIsNotProposed) {
  const CommandResult refused =
      run({"plan", "--model", "llama-405b", "--machine", "rtx-4090", "--device", "cuda", "--seq", "2048"});
  EXPECT_EQ(refused.code, 3);
  EXPECT_EQ(refused.err.find("Enough with the other budgets"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find(", but the machine has only 1.82 TiB for --nvme-mem."), std::string::npos)
      << refused.err;
}

}  // namespace
}  // namespace sluice
