// How long planning and verifying take for a model far larger than memory.
//
//   planner_bench [--small]
//
// `sluice plan` (search, verification, report) for llama-70b with 16 micro-batches, on two tiers and on
// three; then the verifier alone on the first program of that model that has 50,000 instructions in its
// bodies: its micro-batches are doubled until it has. Medians of five. Nothing is allocated but tables: the
// budgets are those of a larger machine. --small: a tiny model, to show that it works.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/run/setup.h"
#include "engine/verify.h"
#include "tools/command_line.h"
#include "tools/verbs.h"

namespace sluice {
namespace {

constexpr double kPlanSecondsMax = 1, kVerifySecondsMax = 0.1;
constexpr uint64_t kInstructions = 50'000;

struct Scale {
  std::vector<std::string> model, memory, device;
  uint64_t instructions;  // of the verified program, at least
};

const Scale kLarge{{"--model", "llama-70b", "--seq", "2048"},
                   {"--host-mem", "128GiB", "--nvme-dir", ".", "--nvme-mem", "2TiB"},
                   {"--gpu-mem", "24GiB"},
                   kInstructions};
const Scale kSmall{
    {"--model", "llama:layers=4,width=64,heads=4,kv_heads=2,ffn=128,vocab=256,context=32", "--seq", "32"},
    {"--host-mem", "96MiB", "--nvme-dir", ".", "--nvme-mem", "256MiB"},
    {"--gpu-mem", "4MiB"},
    1000};

Options options_of(const Scale& scale, int64_t micro_batches, bool device) {
  std::vector<std::string> words = {
      "planner_bench", "plan", "--micro-batch", "1", "--batch", std::to_string(micro_batches)};
  words.insert(words.end(), scale.model.begin(), scale.model.end());
  words.insert(words.end(), scale.memory.begin(), scale.memory.end());
  if (device) words.insert(words.end(), scale.device.begin(), scale.device.end());
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  return parse_command_line(static_cast<int>(argv.size()), argv.data()).options;
}

double median_of_five(const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[2];
}

void print_row(const std::string& what, double seconds, double limit) {
  fmt::print("{:<62} {:9.1f} ms {:9.0f} ms {:7.3f}  <= 1  {}\n", what, 1e3 * seconds, 1e3 * limit,
             seconds / limit, seconds <= limit ? "ok" : "short");
}

void time_plan(const Scale& scale, bool device) {
  const Options options = options_of(scale, 16, device);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> nowhere(std::fopen("/dev/null", "w"), std::fclose);
  const double seconds = median_of_five([&] { run_plan(options, nowhere.get()); });
  print_row(
      fmt::format("plan {}, 16 micro-batches, {} tiers", options.model.model.substr(0, 16), device ? 3 : 2),
      seconds, kPlanSecondsMax);
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
  return plan_or_throw(plan_request(options, source.config, budgets, workspaces_of(*device), false), budgets);
}

// Held against the contract's time for 50,000 instructions, of which this program has its share.
void time_verify(const Scale& scale) {
  int64_t micro_batches = 1;
  Plan plan = plan_of(options_of(scale, micro_batches, true));
  while (instruction_count(plan.program) < scale.instructions)
    plan = plan_of(options_of(scale, micro_batches *= 2, true));
  const uint64_t count = instruction_count(plan.program);
  const double seconds =
      median_of_five([&] { CHECK(verify(plan.program).empty(), "a plan is not correct"); });
  print_row(fmt::format("verify {} instructions ({} micro-batches)", count, micro_batches), seconds,
            kVerifySecondsMax * static_cast<double>(count) / static_cast<double>(kInstructions));
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  try {
    const bool small = argc > 1 && std::string_view(argv[1]) == "--small";
    const sluice::Scale& scale = small ? sluice::kSmall : sluice::kLarge;
    fmt::print("{:<62} {:>12} {:>12} {:>7}  {:>4}\n", "what (medians of five)", "measured", "limit", "ratio",
               "bar");
    sluice::time_plan(scale, false);
    sluice::time_plan(scale, true);
    sluice::time_verify(scale);
    return 0;
  } catch (const sluice::Error& e) {
    fmt::print(stderr, "planner_bench: {}\n{}\n", e.what(), e.remedy());
    return static_cast<int>(e.code());
  }
}
