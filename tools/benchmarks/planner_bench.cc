// How long planning and verifying take for a model far larger than memory.
//
//   planner_bench [--small]
//
// Times all of `sluice plan` for three models: llama-70b with 16 micro-batches, on two tiers and on three;
// 175 billion parameters (GPT-3) with 32 micro-batches on 64 ranks; and a trillion parameters (the sizes of
// Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM")
// on 1024 ranks. Then times the verifier alone on llama-70b, whose micro-batches are doubled until its
// program has 50,000 instructions. Times are medians of five rounds. Only tables are allocated: the budgets
// are those of a larger machine.
//
// Then prints predictions for two clusters with built-in descriptions: for the trillion parameters, and for
// plain data parallelism of 13 billion parameters on 80 GPUs. For the latter a step of 12.5 s was published,
// 11.4 s of it for reducing gradients, with two sequences a GPU. The length of the sequences is not known
// here and taken to be 1024 tokens. Gradients of plain data parallelism are fp32, as PyTorch's are under
// autocast, which computes in 16 bits. So the reduction is taken from a plan in fp32. A plan in bf16 shows
// what Sluice would send. --small: tiny models in one round, to show that the benchmark works.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/units.h"
#include "engine/run/start/budgets.h"
#include "engine/run/start/devices.h"
#include "engine/run/start/model_source.h"
#include "engine/run/start/plan_request.h"
#include "engine/run/start/planning.h"
#include "engine/verify/verify.h"
#include "tools/command/command_line.h"
#include "tools/command/run_verb.h"

namespace sluice {
namespace {

constexpr double kPlanSecondsMax = 2, kManyTasksSecondsMax = 4, kRanksSecondsMax = 5;
constexpr double kVerifySecondsMax = 0.1;
constexpr double kReductionPublished = 11.4, kRestPublished = 12.5 - kReductionPublished;
constexpr double kPublishedWithin = 0.2;
constexpr uint64_t kInstructions = 50'000;

struct Scale {
  std::vector<std::string> model, memory, device;
  uint64_t instructions;  // least number of instructions of the verified program
  std::vector<std::string> many_tasks, trillion, data_parallel;
  size_t rounds;  // odd
};

const Scale kLarge{
    {"--model", "llama-70b", "--seq", "2048"},
    {"--host-mem", "128GiB", "--nvme-dir", ".", "--nvme-mem", "2TiB"},
    {"--gpu-mem", "24GiB"},
    kInstructions,
    {"--model", "gpt2:layers=96,width=12288,heads=96,context=2048", "--batch", "2048", "--micro-batch", "1",
     "--ranks", "64", "--machine", "h100-cluster", "--shard-weights", "all"},
    {"--model", "gpt2:layers=128,width=25600,heads=160,context=2048", "--batch", "1024", "--micro-batch", "1",
     "--ranks", "1024", "--machine", "h100-cluster", "--gpu-mem", "75GiB", "--host-mem", "230GiB", "--device",
     "cpu"},
    {"--model", "gpt2:layers=40,width=5120,heads=40,context=1024", "--batch", "160", "--micro-batch", "2",
     "--ranks", "80", "--machine", "a100-cluster", "--device", "cuda", "--gpu-mem", "78GiB", "--host-mem",
     "230GiB"},
    5};
const Scale kSmall{
    {"--model", "llama:layers=4,width=64,heads=4,kv_heads=2,ffn=128,vocab=256,context=32", "--seq", "32"},
    {"--host-mem", "96MiB", "--nvme-dir", ".", "--nvme-mem", "256MiB"},
    {"--gpu-mem", "4MiB"},
    1000,
    {"--model", "gpt2:layers=4,width=64,heads=4,vocab=256,context=32", "--batch", "256", "--micro-batch", "1",
     "--ranks", "64", "--machine", "h100-cluster", "--shard-weights", "all"},
    {"--model", "gpt2:layers=4,width=64,heads=4,vocab=256,context=32", "--batch", "1024", "--micro-batch",
     "1", "--ranks", "1024", "--machine", "h100-cluster", "--gpu-mem", "64MiB", "--host-mem", "512MiB",
     "--device", "cpu"},
    {"--model", "gpt2:layers=4,width=64,heads=4,vocab=256,context=32", "--batch", "160", "--micro-batch", "2",
     "--ranks", "80", "--machine", "a100-cluster", "--gpu-mem", "4GiB", "--host-mem", "2GiB"},
    1};

Options parse(const std::vector<std::string>& words) {
  std::vector<const char*> argv{"planner_bench", "plan", "--no-advice"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  return parse_command_line(static_cast<int>(argv.size()), argv.data()).options;
}

Options options_of(const Scale& scale, int64_t micro_batches, bool device) {
  std::vector<std::string> words = {"--micro-batch", "1", "--batch", std::to_string(micro_batches)};
  words.insert(words.end(), scale.model.begin(), scale.model.end());
  words.insert(words.end(), scale.memory.begin(), scale.memory.end());
  if (device) words.insert(words.end(), scale.device.begin(), scale.device.end());
  return parse(words);
}

double median_seconds(size_t rounds, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (size_t i = 0; i < rounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[rounds / 2];
}

void print_row(const std::string& what, double seconds, double limit) {
  fmt::print("{:<62} {:9.1f} ms {:9.0f} ms {:7.3f}  <= 1  {}\n", what, 1e3 * seconds, 1e3 * limit,
             seconds / limit, seconds <= limit ? "ok" : "short");
}

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

double plan_seconds(const Scale& scale, const Options& options) {
  const File nowhere(std::fopen("/dev/null", "w"), std::fclose);
  return median_seconds(scale.rounds, [&] { run_plan(options, nowhere.get()); });
}

void time_plan(const Scale& scale, bool device) {
  const Options options = options_of(scale, 16, device);
  print_row(
      fmt::format("plan {}, 16 micro-batches, {} tiers", options.model.model.substr(0, 16), device ? 3 : 2),
      plan_seconds(scale, options), kPlanSecondsMax);
}

std::string billions(const nlohmann::ordered_json& facts) {
  return fmt::format("{:.4g} billion parameters on {} ranks", facts["parameters"].get<double>() / 1e9,
                     facts["ranks"].get<int>());
}

// The output of `sluice plan --json`.
nlohmann::ordered_json facts_of(Options options) {
  options.print.json = true;
  const File file(std::tmpfile(), std::fclose);
  CHECK(file && run_plan(options, file.get()) == ExitCode::done, "a cluster's plan does not fit");
  std::rewind(file.get());
  return nlohmann::ordered_json::parse(file.get());
}

// Returns the plan's facts.
nlohmann::ordered_json time_ranks(const Scale& scale, const std::vector<std::string>& words, double limit) {
  const Options options = parse(words);
  nlohmann::ordered_json facts = facts_of(options);
  print_row("plan " + billions(facts), plan_seconds(scale, options), limit);
  return facts;
}

void print_published(const std::string& what, double predicted, double published) {
  const double ratio = predicted / published;
  fmt::print("{:<62} {:10.2f} s {:10.2f} s {:7.3f}  1 +- {} {}\n", what, predicted, published, ratio,
             kPublishedWithin, std::abs(ratio - 1) <= kPublishedWithin ? "ok" : "outside");
}

void print_cluster(const std::string& what, const nlohmann::ordered_json& facts) {
  std::string line =
      fmt::format("{}: {:.3g} s a step; a rank's arenas:", what, facts["seconds_predicted"].get<double>());
  for (const auto& [tier, bytes] : facts["arenas"].items())
    line += fmt::format(" {} {}", tier, format_size(bytes.get<uint64_t>()));
  for (const auto& [level, sent] : facts["network_bytes"].items())
    line += fmt::format("; a {} sends {} over {}", sent["unit"].get<std::string>(),
                        format_size(sent["bytes"].get<uint64_t>()), level);
  if (facts.contains("phases"))
    for (const auto& phase : facts["phases"])
      line += fmt::format("; {}: {:.3g} s", phase["what"].get<std::string>(),
                          phase["seconds_predicted"].get<double>());
  fmt::print("{}\n", line);
}

void predict_clusters(const Scale& scale, const nlohmann::ordered_json& trillion) {
  const auto facts_with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = scale.data_parallel;
    words.insert(words.end(), more.begin(), more.end());
    return facts_of(parse(words));
  };
  const nlohmann::ordered_json plain = facts_with({"--zero", "0"});
  fmt::print("\n{:<62} {:>12} {:>12} {:>7}\n", "plain data parallelism, seconds of a step", "predicted",
             "published", "ratio");
  const nlohmann::ordered_json fp32 = facts_with({"--zero", "0", "--precision", "fp32"});
  print_published(billions(fp32) + ": reduction", fp32["lane_busy"]["collective"], kReductionPublished);
  print_published("  in bf16", plain["lane_busy"]["collective"], kReductionPublished);
  print_published("  compute", plain["lane_busy"]["compute"], kRestPublished);
  print_published("  step", plain["seconds_predicted"], kReductionPublished + kRestPublished);
  print_cluster("  ZeRO stage 0", plain);
  for (const char* stage : {"1", "3"})
    print_cluster(fmt::format("  ZeRO stage {}", stage), facts_with({"--zero", stage}));
  print_cluster("  stage 1, PowerSGD of rank 4, layers shared in the first 100 steps",
                facts_with({"--zero", "1", "--compress", "powersgd:4", "--share-layers-until", "100"}));
  print_cluster(billions(trillion), trillion);
}

uint64_t instruction_count(const Program& program) {
  uint64_t count = 0;
  for (const Body& body : program.bodies) count += body.instructions.size();
  return count;
}

Plan plan_of(const Options& options) {
  const Budgets budgets = resolve_budgets(options.memory, memory_limits(), false);
  const ModelSource source = resolve_model(options.model);
  const std::unique_ptr<Device> device = make_device(options.memory, budgets.threads);
  return plan_or_throw(plan_request(options, source.config, budgets, needs_of(*device), {}), budgets);
}

// The limit is proportional to the number of instructions.
void time_verify(const Scale& scale) {
  int64_t micro_batches = 1;
  Plan plan = plan_of(options_of(scale, micro_batches, true));
  while (instruction_count(plan.program) < scale.instructions)
    plan = plan_of(options_of(scale, micro_batches *= 2, true));
  const uint64_t count = instruction_count(plan.program);
  const double seconds =
      median_seconds(scale.rounds, [&] { CHECK(verify(plan.program).empty(), "a plan is not correct"); });
  print_row(fmt::format("verify {} instructions ({} micro-batches)", count, micro_batches), seconds,
            kVerifySecondsMax * static_cast<double>(count) / static_cast<double>(kInstructions));
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  try {
    const bool small = argc > 1 && std::string_view(argv[1]) == "--small";
    const sluice::Scale& scale = small ? sluice::kSmall : sluice::kLarge;
    const std::string what =
        scale.rounds == 1 ? "what (one round)" : fmt::format("what (medians of {} rounds)", scale.rounds);
    fmt::print("{:<62} {:>12} {:>12} {:>7}  {:>4}\n", what, "measured", "limit", "ratio", "bar");
    sluice::time_plan(scale, false);
    sluice::time_plan(scale, true);
    sluice::time_ranks(scale, scale.many_tasks, sluice::kManyTasksSecondsMax);
    const auto trillion = sluice::time_ranks(scale, scale.trillion, sluice::kRanksSecondsMax);
    sluice::time_verify(scale);
    sluice::predict_clusters(scale, trillion);
    return 0;
  } catch (const sluice::Error& e) {
    fmt::print(stderr, "planner_bench: {}\n{}\n", e.what(), e.remedy());
    return static_cast<int>(e.code());
  }
}
