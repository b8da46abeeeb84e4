// What `sluice plan` prints for people and for other software. advice_test.cc has its advice.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/base/units.h"
#include "engine/program/program.h"
#include "tests/support/cli_support.h"

namespace sluice {
namespace {

TEST_F(Cli, PlanExplainsWhereThingsLive) {
  const Words plan{"plan",       "--no-advice",    "--model",    kTiny,        "--device",
                   "cpu",        "--gpu-mem",      "1MiB",       "--host-mem", "80MiB",
                   "--nvme-dir", directory.path(), "--nvme-mem", "64MiB",      "--explain"};
  const CommandResult result = run(plan);
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* words : {"\n  weights ", "\n  state ", "\n  activations ", "\n  workspace ", "in host",
                            "moves a step:", "weighed, the best first", "memory given to weights first"})
    EXPECT_NE(result.out.find(words), std::string::npos) << words << "\n" << result.out;
  const CommandResult ruled = run(plan + Words{"--placement", "lowest"});
  ASSERT_EQ(ruled.code, 0) << ruled.err;
  EXPECT_NE(ruled.out.find("That is the rule which --placement names."), std::string::npos) << ruled.out;
  const CommandResult json = run(plan + Words{"--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const nlohmann::json facts = nlohmann::json::parse(json.out);
  ASSERT_GT(facts["weighed"].size(), 1u);
  double best = 1e300;
  for (const nlohmann::json& w : facts["weighed"])
    if (!w["seconds"].is_null()) best = std::min(best, w["seconds"].get<double>());
  EXPECT_EQ(best, facts["seconds_predicted"].get<double>());
}

TEST_F(Cli, PlanSaysWhereUpdatesRun) {
  const auto plan_text = [&](const Words& more) {
    const Words common{"plan",       "--no-advice", "--model",    "gpt2:layers=6,width=256,heads=4,vocab=256",
                       "--batch",    "4",           "--seq",      "128",
                       "--device",   "cpu",         "--host-mem", "160MiB",
                       "--nvme-mem", "1GiB"};
    const CommandResult result = run(common + more);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const auto has = [](const std::string& out, const char* words) {
    return out.find(words) != std::string::npos;
  };
  const std::string waits = plan_text({"--overlap", "never"});
  EXPECT_TRUE(has(waits, "in the forward of the next step, when the norm of all gradients is known"))
      << waits;
  const std::string unclipped = plan_text({"--overlap", "never", "--clip", "0"});
  EXPECT_TRUE(has(unclipped, "in the forward of the next step\n")) << unclipped;
  const std::string always = plan_text({"--overlap", "always"});
  EXPECT_TRUE(has(always, "by a guess that a step is not clipped")) << always;
  EXPECT_FALSE(has(always, "; not if more than")) << "this plan never stops guessing: " << always;
}

// The words of a command whose plan is the same on every machine: workspaces of the reference device do not
// depend on the processor.
Words plan_in(const std::string& gpu_mem) {
  return {"plan",       "--no-advice", "--model",    "gpt2:layers=2,width=64,heads=2,vocab=256,context=64",
          "--device",   "reference",   "--gpu-mem",  gpu_mem,
          "--host-mem", "1GiB",        "--nvme-mem", "1GiB",
          "--threads",  "2",           "--explain",  "--waves",
          "1"};
}

TEST_F(Cli, PlanSaysWhenRoomIsLeftUnused) {
  const CommandResult explained = run(plan_in("8000KB"));
  EXPECT_NE(explained.out.find("All of it would fit in device, but no better"), std::string::npos)
      << explained.out;
}

// Writing more to drives for a gain within the error of prediction is not worth the wear.
TEST_F(Cli, PlanWearsDrivesOnlyWhereItIsWorthIt) {
  const Words plan = plan_in("1000KB");
  const CommandResult json = run(plan + Words{"--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const nlohmann::json facts = nlohmann::json::parse(json.out);
  double best = 1e300;
  uint64_t written = 0;
  for (const nlohmann::json& w : facts["weighed"]) {
    EXPECT_EQ(w["seconds"].is_null(), w["bytes_written"].is_null()) << w;
    if (!w["seconds"].is_null() && w["seconds"] < best) {
      best = w["seconds"];
      written = w["bytes_written"];
    }
  }
  EXPECT_GT(written, 0u) << "there is something to gain";
  EXPECT_FALSE(facts.contains("drive_wear")) << facts["drive_wear"];
  EXPECT_LE(facts["seconds_predicted"], 1.01 * best);
  const CommandResult explained = run(plan);
  EXPECT_NE(explained.out.find(", and writes 0 % of what the first writes to drives"), std::string::npos)
      << explained.out;
}

// The head runs its forward within its backward, so it neither keeps tensors nor computes them again.
TEST_F(Cli, PlanSaysWhatIsComputedTwice) {
  const Words plan{"plan",       "--no-advice", "--model",   kTiny,         "--device", "cpu",
                   "--host-mem", "1GiB",        "--explain", "--recompute", "none"};
  const CommandResult kept = run(plan);
  ASSERT_EQ(kept.code, 0) << kept.err;
  EXPECT_NE(kept.out.find("nothing is computed twice"), std::string::npos) << kept.out;
  Words all = plan;
  all.back() = "all";
  const CommandResult twice = run(all);
  ASSERT_EQ(twice.code, 0) << twice.err;
  EXPECT_NE(twice.out.find("recompute all of "), std::string::npos) << twice.out;
  EXPECT_NE(twice.out.find("all: nothing inside of a layer is kept"), std::string::npos) << twice.out;
}

TEST_F(Cli, PlanForProgramsAndPeople) {
  const Words model{"plan",       "--no-advice",    "--model",    kTiny,        "--batch",
                    "4",          "--gpu-mem",      "4MiB",       "--host-mem", "80MiB",
                    "--nvme-dir", directory.path(), "--nvme-mem", "64MiB"};
  const CommandResult json = run(model + Words{"--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const auto facts = nlohmann::json::parse(json.out);
  EXPECT_EQ(facts["feasible"], true);
  EXPECT_EQ(facts["device"], "cpu");
  EXPECT_EQ(facts["machine"], "cpu-2core");
  EXPECT_GT(facts["seconds_predicted"].get<double>(), 0);
  for (const char* key : {"micro_batch", "recompute", "runtime_reserve", "checkpoint_bytes"})
    EXPECT_TRUE(facts.contains(key)) << key;
  for (const char* tier : {"device", "host", "nvme"}) {
    EXPECT_LE(facts["arenas"][tier].get<uint64_t>(), facts["budgets"][tier].get<uint64_t>()) << tier;
    for (const char* kind : {"weights", "gradients", "state", "activations", "workspace"})
      EXPECT_TRUE(facts["homes"][kind].contains(tier)) << kind << tier;
  }
  EXPECT_EQ(facts["budgets"]["device"], 4 << 20);
  for (const char* key : {"moved_bytes", "lane_busy"})
    for (const char* lane : {"compute", "h2d", "d2h", "nvme_read", "nvme_write", "optimizer"})
      EXPECT_TRUE(facts[key].contains(lane)) << key << lane;
  // 2 layers of 12 w^2 + 13 w, tables of 256 + 32 rows, the last norm: 37,184 parameters
  EXPECT_EQ(facts["parameters"], 2 * (12 * 32 * 32 + 13 * 32) + (256 + 32) * 32 + 2 * 32);

  // Once in half an hour is next to nothing.
  EXPECT_NEAR(facts["seconds_with_checkpoints"].get<double>() / facts["seconds_predicted"].get<double>(), 1,
              1e-3);
  const auto saving = nlohmann::json::parse(run(model + Words{"--json", "--checkpoint-every", "2"}).out);
  const double mean = saving["seconds_with_checkpoints"].get<double>();
  EXPECT_EQ(saving["checkpoint_every"], 2);
  EXPECT_DOUBLE_EQ(
      mean, saving["seconds_predicted"].get<double>() + saving["checkpoint_seconds"].get<double>() / 2);
  EXPECT_DOUBLE_EQ(saving["tokens_per_second_with_checkpoints"].get<double>(), 4 * 32 / mean);
  EXPECT_NE(run(model + Words{"--checkpoint-every", "2"})
                .out.find(fmt::format("\n  with a checkpoint every 2 steps: {} a step, {:.0f} tokens/s\n",
                                      readable_seconds(mean), 4 * 32 / mean)),
            std::string::npos);

  const CommandResult text_form = run(model + Words{"--text"});
  ASSERT_EQ(text_form.code, 0) << text_form.err;
  const Program program = program_from_text(text_form.out);
  EXPECT_EQ(to_text(program), text_form.out);
  EXPECT_EQ(program.arena_bytes[0], facts["arenas"]["device"].get<uint64_t>());
  EXPECT_EQ(program.arena_bytes[1], facts["arenas"]["host"].get<uint64_t>());

  const CommandResult people = run(model + Words{"--micro-batch", "4"});
  EXPECT_EQ(people.code, 0);
  for (const char* word : {"permanent", "at once", "device", "host", "nvme", "predicted", "checkpoint",
                           "4 sequences of 32 tokens a micro-batch, 1 micro-batch a step\n",
                           "\n  on the cpu device, at the rates of cpu-2core\n"})
    EXPECT_NE(people.out.find(word), std::string::npos) << people.out;
  const CommandResult none = run({"plan", "--model", "gpt2", "--host-mem", "80MiB", "--json"});
  EXPECT_EQ(none.code, 3);
  EXPECT_EQ(nlohmann::json::parse(none.out)["feasible"], false);
  EXPECT_GT(nlohmann::json::parse(none.out)["smallest_budgets"]["host"].get<uint64_t>(), uint64_t{1} << 30);
}

double seconds_of(const nlohmann::json& rows) {
  double sum = 0;
  for (const auto& row : rows) sum += row["seconds"].get<double>();
  return sum;
}

// On three tiers, with most bytes on the drive.
TEST_F(Cli, PlanSaysWhereAStepsTimeGoes) {
  const Words model{
      "plan",       "--no-advice", "--model",    "gpt2:layers=6,width=384,heads=6,vocab=256,context=256",
      "--batch",    "4",           "--gpu-mem",  "40MiB",
      "--host-mem", "110MiB",      "--nvme-dir", directory.path(),
      "--nvme-mem", "400MiB"};
  const CommandResult json = run(model + Words{"--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const auto facts = nlohmann::json::parse(json.out);
  const double seconds = facts["seconds_predicted"];
  EXPECT_NEAR(facts["tokens_per_second"].get<double>() * seconds, 4 * 256, 1e-6);
  for (const auto& [lane, busy] : facts["lane_busy"].items()) {
    EXPECT_EQ(facts["lane_busy_fraction"][lane].get<double>(), busy.get<double>() / seconds) << lane;
    EXPECT_LE(busy.get<double>(), seconds * (1 + 1e-9)) << lane;
    double lost = 0;
    for (const auto& pool : facts["lane_lost_to_sharing"][lane]) lost += pool.get<double>();
    EXPECT_LE(lost, busy.get<double>()) << lane;
  }
  EXPECT_GT(facts["lane_lost_to_sharing"]["nvme_write"]["nvme"].get<double>(), 0);  // reads beside it
  // Waits are those of one step among four. The predicted time is that of the second of two steps, so the sum
  // may differ a little.
  const double waits = facts["compute_waits"]["seconds"];
  EXPECT_NEAR(waits + facts["lane_busy"]["compute"].get<double>(), seconds, 1e-3 * seconds);
  EXPECT_NEAR(seconds_of(facts["compute_waits"]["for"]), waits, 1e-9 * seconds);
  EXPECT_NEAR(seconds_of(facts["critical_path"]), seconds, 1e-9 * seconds);
  EXPECT_EQ(facts["bottleneck"]["kind"], "pool");  // compute, copies and the optimizer are on the same cores
  EXPECT_EQ(facts["bottleneck"]["name"], "cores");
  EXPECT_GE(facts["bottleneck"]["seconds"], facts["lane_busy"]["compute"]);
  EXPECT_LE(facts["bottleneck"]["fraction"].get<double>(), 1 + 1e-9);
  const double written = facts["drive_wear"]["bytes_per_step"], day = facts["drive_wear"]["bytes_per_day"];
  EXPECT_EQ(written, facts["moved_bytes"]["nvme_write"].get<double>());
  EXPECT_NEAR(day, written / seconds * 86400, 1e-9 * day);
  EXPECT_NEAR(facts["drive_wear"]["days_to_600_tbw"].get<double>() * day, 600e12, 1e-9 * 600e12);

  const CommandResult people = run(model);
  EXPECT_EQ(people.code, 0) << people.err;
  for (const char* part :
       {"\n  a step                      busy   compute waits for       critical path"
        "   lost to sharing\n",
        "\n  compute waits  ", "\n  critical path  ",
        "\n  bottleneck     pool cores: its use by all lanes takes ", " of the step), in any order\n",
        "\n  drive wear     ", " TB a day; 600 TBW last "})
    EXPECT_NE(people.out.find(part), std::string::npos) << part << "\n" << people.out;
  EXPECT_EQ(run({"plan", "--model", kTiny, "--batch", "4"}).out.find("drive wear"), std::string::npos);
}

}  // namespace
}  // namespace sluice
