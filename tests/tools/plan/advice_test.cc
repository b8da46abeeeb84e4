// What `sluice plan` advises: changes that make steps faster, what works if the budgets do not suffice, and
// the whole of a run. Each figure is the one that a plan with the change has.
#include "tools/plan/advice.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
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
  // Runs each change that a plan advises, as "--host-mem 123MiB: 456 tokens/s, +78 %". Returns their number.
  int type_all(const Words& words, const std::string& advised, double now) const {
    const std::regex line(R"(--([a-z-]+) (\S+): (\d+) tokens/s, \+(\d+) %)");
    int changes = 0;
    for (std::sregex_iterator m(advised.begin(), advised.end(), line), end; m != end; ++m, ++changes) {
      Words with = words;
      const auto given = std::find(with.begin(), with.end(), "--" + (*m)[1].str());
      if (given == with.end())
        with = with + Words{"--" + (*m)[1].str(), (*m)[2].str()};
      else
        given[1] = (*m)[2].str();
      const CommandResult typed = run(Words{"plan", "--json"} + with);
      EXPECT_EQ(typed.code, 0) << (*m)[0].str() << ": " << typed.err;
      if (typed.code != 0) continue;
      const double then = nlohmann::json::parse(typed.out)["tokens_per_second"];
      EXPECT_NEAR(then, std::stod((*m)[3].str()), 0.5 + 0.01 * then) << (*m)[0].str();
      EXPECT_NEAR(100 * (then / now - 1), std::stod((*m)[4].str()), 2) << (*m)[0].str();
    }
    return changes;
  }
};

TEST_F(Advice, EveryChangeIsAPlan) {
  const Words budgets{"--batch", "8", "--gpu-mem", "24MiB", "--host-mem", "112MiB", "--placement", "highest"};
  const CommandResult plan = run(Words{"plan"} + options + budgets);
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_GE(type_all(options + budgets, plan.out, facts(budgets)["tokens_per_second"]), 2) << plan.out;
  EXPECT_NE(plan.out.find(", in place of the one given"), std::string::npos) << plan.out;
  EXPECT_EQ(plan.out.find("--lora"), std::string::npos) << "nobody has weights of these sizes\n" << plan.out;
  EXPECT_EQ(run(Words{"plan", "--no-advice"} + options + budgets).out.find("faster"), std::string::npos);
}

// Advice holds for another machine, too: for dense models, with experts, and with adapters, which gain most.
TEST_F(Advice, HoldsOnOtherMachinesAndModels) {
  const Words elsewhere{"--machine",   "rtx-4090", "--device",      "cuda",
                        "--placement", "highest",  "--micro-batch", "2"};
  const Words models[] = {{"--model", kTiny},
                          {"--model", kExperts, "--ranks", "2", "--clip", "0"},
                          {"--model", kTiny, "--lora", "4"}};
  for (const Words& model : models) {
    const Words words = elsewhere + model;
    const CommandResult plan = run(Words{"plan"} + words), json = run(Words{"plan", "--json"} + words);
    ASSERT_EQ(plan.code, 0) << plan.err;
    const nlohmann::json now = nlohmann::json::parse(json.out);
    EXPECT_GE(type_all(words, plan.out, now["tokens_per_second"]), 1) << plan.out;
    const auto is_advised = [&](const std::string& option) {
      return std::regex_search(plan.out, std::regex(option + R"( \S+: \d+ tokens/s)"));
    };
    for (const char* option : {"--lora", "--clip"})
      EXPECT_FALSE(std::count(model.begin(), model.end(), option) > 0 && is_advised(option)) << plan.out;
    EXPECT_FALSE(is_advised("--gpu-mem")) << "a GPU that does not exist: " << plan.out;
  }
}

// Four times the batch would have more micro-batches than a step may have.
TEST_F(Advice, LeavesOutWhatIsRefused) {
  const CommandResult plan = run({"plan", "--model", kTiny, "--device", "cpu", "--batch", "512",
                                  "--micro-batch", "1", "--waves", "512", "--host-mem", "1GiB"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(plan.out.find("--batch 2048"), std::string::npos) << plan.out;
}

// Pinned host memory takes page tables from device memory. Still, no larger budget of either is refused where
// a smaller one works.
TEST_F(Advice, MoreMemoryNeverRefusesAPlan) {
  const char* const hosts[] = {"4GiB", "200GiB", "700GiB", "1400GiB"};
  std::vector<bool> works_with_smaller(std::size(hosts), false);
  int refused = 0, with_fewer_tables = 0;
  for (const int mib : {1300, 1600, 1900, 3100}) {
    bool works_with_less = false;
    for (size_t h = 0; h < std::size(hosts); ++h) {
      PlannedRun run = planned_run(options_of(
          fmt::format("plan --model llama:layers=2,width=2048,heads=16,vocab=512,context=512 --batch 4 "
                      "--machine v100-dgx2 --device cuda --precision fp16 --gpu-mem {}MiB --host-mem {}",
                      mib, hosts[h])));
      run.request.search_work = 0;
      const auto result = plan_within(run.request, run.budgets);
      const Plan* plan = std::get_if<Plan>(&result);
      EXPECT_TRUE(plan || !works_with_less) << "--gpu-mem " << mib << "MiB --host-mem " << hosts[h];
      EXPECT_TRUE(plan || !works_with_smaller[h]) << "--gpu-mem " << mib << "MiB --host-mem " << hosts[h];
      works_with_smaller[h] = works_with_less = plan != nullptr;
      refused += !plan;
      if (!plan || plan->program.machine.tiers[1].capacity == run.request.machine.tiers[1].capacity) continue;
      ++with_fewer_tables;
      check_program(*plan);
      const uint64_t outside = run.budgets.device->reserve - page_table_bytes(run.budgets.host.limit);
      EXPECT_LE(outside + page_table_bytes(plan->program.arena_bytes[1]) + plan->program.arena_bytes[0],
                run.budgets.device->limit);
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(with_fewer_tables, 0);
}

// The rule above on other presets, machines and all three budgets, also where --zero is open: if a point of
// the grid has a plan, so has each point that has more of one kind of memory.
TEST_F(Advice, MoreOfAnyMemoryNeverRefusesAPlan) {
  struct Grid {
    const char* options;
    std::vector<int> device, host, nvme;  // MiB
  };
  const Grid grids[] = {
      {"--model gpt2:layers=3 --machine rtx-4090 --seq 256 --batch 4",
       {1500, 1600, 2600},
       {850, 1000, 1600, 4000},
       {10, 800, 1500}},
      {"--model qwen2.5-0.5b:layers=2 --machine rtx-3090 --seq 512 --batch 8",
       {1800, 2400, 5200},
       {850, 2000, 5000},
       {10, 1500, 6000}},
      {"--model llama-1b:layers=2 --machine t4 --precision fp16 --seq 256 --batch 16 --clip 0",
       {2000, 3000, 10000},
       {900, 2200, 9000},
       {10, 4000, 9000}},
      {"--model mixtral:layers=2,width=256,heads=4,kv_heads=2,ffn=512,vocab=512,context=256,experts=4,top=2 "
       "--machine h100 --batch 8",
       {1250, 1270, 1400},
       {810, 850, 1100},
       {5, 100, 300}},
      {"--model gpt2:layers=2,width=128,heads=2,vocab=512,context=64 --machine v100-dgx2 --ranks 4 "
       "--precision fp16 --batch 8",
       {1729, 1760, 2000},
       {900, 90000, 1400000},
       {700}},
  };
  for (const Grid& grid : grids) {
    std::map<std::array<size_t, 3>, bool> works;
    for (size_t d = 0; d < grid.device.size(); ++d)
      for (size_t h = 0; h < grid.host.size(); ++h)
        for (size_t n = 0; n < grid.nvme.size(); ++n) {
          const std::string words =
              fmt::format("plan {} --device cuda --gpu-mem {}MiB --host-mem {}MiB --nvme-mem {}MiB",
                          grid.options, grid.device[d], grid.host[h], grid.nvme[n]);
          PlannedRun run = planned_run(options_of(words));
          run.request.search_work = 0;
          const auto result = plan_within(run.request, run.budgets);
          const bool has_plan = works[{d, h, n}] = std::holds_alternative<Plan>(result);
          EXPECT_TRUE((has_plan || d == 0 || !works[{d - 1, h, n}])) << words;
          EXPECT_TRUE((has_plan || h == 0 || !works[{d, h - 1, n}])) << words;
          EXPECT_TRUE((has_plan || n == 0 || !works[{d, h, n - 1}])) << words;
        }
    EXPECT_FALSE((works[{0, 0, 0}])) << grid.options;
    EXPECT_TRUE((works.rbegin()->second)) << grid.options;
  }
}

TEST_F(Advice, SaysWherePlansTakeTooLongToTryOthers) {
  const Options given = options_of(std::string("plan --model ") + kTiny + " --device cpu");
  const PlannedRun run = planned_run(given);
  const Plan plan = plan_or_throw(run.request, run.budgets);
  const uint64_t each = tasks_to_plan(run.request), tasks = each - kTasksOfSearch;
  EXPECT_GE(tasks, program_tasks(run.request, plan.model.micro_batch));  // of all micro-batches
  EXPECT_EQ(program_tasks(run.request, plan.model.micro_batch),
            program_size(run.request, plan.model.micro_batch).tasks);
  EXPECT_EQ(advice_text(given, run, plan).find("tried: plans of"), std::string::npos);
  EXPECT_EQ(advice_text(given, run, plan, 2 * each - 1),
            fmt::format("  faster         no other budget or batch was tried: plans of {} tasks take long\n",
                        tasks));
  EXPECT_NE(advice_text(given, run, plan, 3 * each)
                .find(fmt::format("not all was tried: plans of {} tasks take long\n", tasks)),
            std::string::npos);
}

TEST_F(Advice, NothingHelpsAPlanWithAllItNeeds) {
  const CommandResult plan = run({"plan", "--model", kTiny, "--device", "cpu", "--host-mem", "1GiB"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_FALSE(std::regex_search(plan.out, std::regex(R"(--host-mem \d+[MG]iB: )"))) << plan.out;
}

// What a plan says of a whole run, where the number of steps is given.
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

// Of the multiples of a sixteenth of --seq, a refusal names the largest that works.
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
  // The length depends on the processor: one without products of bf16 needs more workspace.
  ASSERT_TRUE(std::regex_search(
      refused.err, found,
      std::regex(R"(the device arena needs (\S+ MiB) \((\d+) bytes; largest task: backward of h\.5\) )"
                 R"(and may have 12\.0 MiB\.)")))
      << refused.err;
  const std::string size = found[1].str(), bytes = found[2].str();
  EXPECT_NE(refused.err.find(fmt::format("--gpu-mem {} ({})", bytes, size)), std::string::npos)
      << refused.err;
  EXPECT_EQ(facts({"--batch", "8", "--gpu-mem", bytes, "--host-mem", "112MiB"})["feasible"], true);
  const std::string less = std::to_string(std::stoull(bytes) * 99 / 100);
  EXPECT_EQ(run(Words{"plan", "--batch", "8", "--gpu-mem", less, "--host-mem", "112MiB"} + options).code, 3);
}

// The least bytes of a drive that a refusal names are those that a plan takes when memory has no room to hold
// more.
TEST_F(Advice, ADrivesLeastIsThatOfAPlan) {
  const CommandResult small =
      run(Words{"plan", "--json", "--batch", "8", "--gpu-mem", "12MiB", "--host-mem", "112MiB"} + options);
  const uint64_t device = nlohmann::json::parse(small.out)["smallest_budgets"]["device"];
  const Words budgets{"--batch",    "8",     "--gpu-mem", fmt::format("{}MiB", (device >> 20) + 1),
                      "--host-mem", "250MiB"};
  const auto with_drive = [&](uint64_t bytes) {
    Words words = options + budgets;
    *(std::find(words.begin(), words.end(), "--nvme-mem") + 1) = std::to_string(bytes);
    return run(Words{"plan", "--json"} + words);
  };
  const CommandResult refused = with_drive(20 << 20);
  ASSERT_EQ(refused.code, 3) << refused.err;
  const uint64_t least = nlohmann::json::parse(refused.out)["smallest_budgets"]["nvme"];
  EXPECT_LT(least, 40u << 20);  // 72 MiB, if the largest task were counted beside all activations
  const CommandResult works = with_drive(least);
  ASSERT_EQ(works.code, 0) << works.err;
  EXPECT_LE(nlohmann::json::parse(works.out)["arenas"]["nvme"], least);
  EXPECT_EQ(with_drive(least - least / 100).code, 3);
}

// No multiple of a sixteenth of the sequence works, so a sixteenth is halved until a length works.
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

// The machine's drive has 1.82 TiB, and the model needs nearly 6.
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
