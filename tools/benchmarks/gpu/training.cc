#include "tools/benchmarks/gpu/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <variant>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/rates/machine_rates.h"
#include "engine/run/start/budgets.h"
#include "engine/run/start/devices.h"
#include "engine/run/start/loader.h"
#include "engine/run/start/plan_request.h"
#include "engine/run/start/planning.h"
#include "engine/run/start/run_data.h"
#include "engine/run/start/run_start.h"
#include "engine/run/start/session_start.h"
#include "engine/run/train/trainer.h"
#include "offload/nvme_files.h"
#include "tools/bench/algorithms.h"
#include "tools/bench/bench.h"
#include "tools/bench/median.h"
#include "tools/command/command_line.h"
#include "tools/plan/report.h"

namespace sluice {

using nlohmann::ordered_json;

namespace {

constexpr uint64_t kGiB = 1ull << 30;
constexpr size_t kStepsBefore = 2;    // not counted: step 1 follows no update, step 2 the first one
constexpr double kSecondsAtEnd = 10;  // that a row keeps for what comes after its steps

// Resolves the budget "most": the free memory in whole GiB, less `left_gib` for later allocations.
std::string budget(const std::string& text, uint64_t free, uint64_t left_gib) {
  if (text != "most") return text;
  const uint64_t gib = free / kGiB;
  return std::to_string(gib - std::min(gib, left_gib)) + "GiB";
}

// The arguments that follow the verb.
std::vector<std::string> train_words(const Row& row, const TrainingPlace& place, uint64_t device_free) {
  std::vector<std::string> words = {"--device", place.device, "--clip",
                                    "1",        "--data",     place.directory + "/tokens.bin"};
  const auto add = [&](const std::string& name, const std::string& value) {
    words.push_back("--" + name);
    words.push_back(value);
  };
  add("model", row.model);
  if (row.precision != "bf16") add("precision", row.precision);  // bf16 gives way where a GPU has none
  add("batch", std::to_string(row.batch));
  add("seq", std::to_string(row.sequence));
  add("steps", std::to_string(row.steps));
  add("gpu-mem", budget(row.gpu, device_free, 3));
  add("host-mem", row.host);
  if (row.micro_batch > 0) add("micro-batch", std::to_string(row.micro_batch));
  if (!place.machine.empty()) add("machine", place.machine);
  if (row.nvme.empty()) return words;
  add("nvme-dir", place.directory);
  add("nvme-mem", budget(row.nvme, free_bytes(place.directory), 4));
  return words;
}

// Parses a command line of `verb` and then `words`.
Options parse(std::vector<std::string> verb, const std::vector<std::string>& words) {
  verb.insert(verb.end(), words.begin(), words.end());
  std::vector<const char*> argv{"gpu_bench"};
  for (const std::string& word : verb) argv.push_back(word.c_str());
  return parse_command_line(static_cast<int>(argv.size()), argv.data()).options;
}

// Writes nanoGPT's format, raw uint16: ids that every vocabulary here has, the same on every machine.
void write_tokens(const std::string& path, uint64_t count, int64_t vocabulary) {
  std::vector<uint16_t> tokens(count);
  uint64_t word = 1;
  for (uint16_t& token : tokens) {
    word = word * 6364136223846793005u + 1442695040888963407u;
    token = static_cast<uint16_t>((word >> 33) % static_cast<uint64_t>(std::min<int64_t>(vocabulary, 32000)));
  }
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(tokens.data()),
             static_cast<std::streamsize>(tokens.size() * sizeof(uint16_t)));
  file.close();
  if (!file)
    throw Error(ExitCode::io, "Cannot write " + printable(path) + ".",
                "Free some space, or name another --disk.");
}

class Training {
 public:
  Training(const Row& row, const TrainingPlace& place, double seconds)
      : row_(row), place_(place), until_(steady_seconds() + seconds - kSecondsAtEnd) {}
  ordered_json measure(const std::function<void(const ordered_json&)>& so_far);

 private:
  PlanRequest request(const ModelConfig& config) const {
    return plan_request(options_, config, budgets_, needs_of(*device_), {});
  }
  void open_device();
  ModelConfig choose_model() const;
  ordered_json values(const Plan& plan, const ModelConfig& config) const;
  bool fits_one_more() const;  // whether there is time for a step after those under way

  Row row_;
  TrainingPlace place_;
  double until_;  // time of steady_seconds() by which the last step is done
  Options options_;
  std::unique_ptr<Device> device_;
  Budgets budgets_;
  std::vector<StepMetrics> steps_;
};

std::string with_layers(std::string model, int64_t layers) {
  if (model.ends_with('*')) model.replace(model.size() - 1, 1, std::to_string(layers));
  return model;
}

// Replaces "layers=*" by the most layers that the budgets hold. Bisection finds them, since a plan for more
// layers needs no less memory.
ModelConfig Training::choose_model() const {
  int64_t least = 1, most = row_.model.ends_with('*') ? row_.layers_most : 1;
  while (least < most) {
    const int64_t middle = (least + most + 1) / 2;
    const ModelConfig config = config_from_name(with_layers(row_.model, middle));
    if (std::holds_alternative<Plan>(make_plan(request(config))))
      least = middle;
    else
      most = middle - 1;
  }
  return config_from_name(with_layers(row_.model, least));
}

// Makes the device before the budgets, which may depend on how much memory the device says is free.
void Training::open_device() {
  Row row = row_;
  row.model = with_layers(row.model, 1);
  const auto parse_training = [&](uint64_t device_free) {
    Options options = parse({"train", "--out", "unused"}, train_words(row, place_, device_free));
    settle_device(options, false);
    return options;
  };
  options_ = parse_training(kGiB);
  device_ = make_device(options_.memory, resolve_threads(options_.memory));
  const auto use = accelerator_use(*device_);
  options_ = parse_training(use ? use->device.free + use->device.held : 0);
  budgets_ = resolve_budgets(options_.memory, memory_limits(), true, use);
}

bool Training::fits_one_more() const {
  const double step = steps_.back().seconds;
  return steady_seconds() + (steps_before_stop(step) + 1) * step < until_;
}

ordered_json Training::measure(const std::function<void(const ordered_json&)>& so_far) {
  open_device();
  ModelConfig config;
  const auto started = start_session(
      *device_, budgets_, session_options(options_, budgets_.threads),
      [&] {
        config = choose_model();
        return plan_or_throw(request(config), budgets_);
      },
      [](const Plan&) {});
  const Plan& plan = started->plan;
  options_.batch.micro_batch = plan.model.micro_batch;
  const double least = (kStepsBefore + 1) * plan.step_seconds, left = until_ - steady_seconds();
  if (least > left)
    return {{"state", "skipped"},
            {"note", fmt::format("three steps would take {:.0f} s, as predicted, and {:.0f} s are left",
                                 least, std::max(left, 0.0))}};
  Workers workers(budgets_.threads);
  load(started->session, load_from(plan.model, source_of(options_.numbers.seed), workers));
  write_tokens(options_.data.train.front(), 1 << 20, config.vocabulary);
  const RunData data = open_run_data(options_, {}, config);
  const TrainData view = data.view();
  std::atomic<bool> stop = false;
  TrainEvents events;
  events.not_finite_goes_on = true;
  events.step = [&](const StepMetrics& m) {
    steps_.push_back(m);
    fmt::print("step {}: {:.3f} s, loss {:.4f}\n", m.step, m.seconds, m.loss);
    std::fflush(stdout);
    if (steps_.size() <= kStepsBefore) return;
    so_far(values(plan, config));
    if (!fits_one_more()) stop = true;
  };
  Trainer(started->session, options_, view, first_state(options_, config), stop, events).run(AtEnd::nothing);
  return values(plan, config);
}

// Flops that a step repeats in backward, for each parameter and token: 2 if whole layers are repeated.
double recomputed(const Lowering& lowering) {
  double kept = 0, again = 0;
  for (const UseInfo& use : lowering.uses) {
    const SegmentPlan& plan = lowering.plans()[use.plan];
    const SegmentPasses& all_kept = plan.at(Recompute::none);
    kept += all_kept.forward.flops + all_kept.backward.flops;
    again += plan.at(use.recompute).backward.flops - all_kept.backward.flops;
  }
  return 6 * again / kept;
}

ordered_json Training::values(const Plan& plan, const ModelConfig& config) const {
  ordered_json row{{"state", "measured"},
                   {"model", row_.model},
                   {"layers", config.layers},
                   {"precision", dtype_name(options_.numbers.precision)}};
  ordered_json planned = ordered_json::parse(plan_json(plan, budgets_, options_));
  for (const char* key : {"feasible", "recompute", "smallest_budgets"}) planned.erase(key);
  const std::vector<StepMetrics> counted(steps_.begin() + kStepsBefore, steps_.end());
  const auto of_steps = [&](auto value) {
    std::vector<double> all;
    for (const StepMetrics& m : counted) all.push_back(value(m));
    return all;
  };
  const std::vector<double> seconds = of_steps([](const StepMetrics& m) { return m.seconds; });
  const double step = median(seconds);
  const auto tokens = static_cast<double>(row_.batch) * row_.sequence;
  row["tokens"] = tokens;
  row["seconds"] = step;
  row["seconds_of_steps"] = seconds;
  row["tokens_per_second"] = tokens / step;
  // Scores and weighted values take 2 flops each for every token, column and position; causal attention uses
  // half of the positions. Backward takes twice as many.
  row["attention_flops"] =
      6.0 * static_cast<double>(config.layers * config.heads * config.head_size) * row_.sequence * tokens;
  row["recomputed"] = recomputed(plan.lowering);
  row["losses"] = of_steps([](const StepMetrics& m) { return m.loss; });
  row["finite"] = std::all_of(steps_.begin(), steps_.end(), [](const StepMetrics& m) {
    return std::isfinite(m.loss) && (m.skipped || std::isfinite(m.grad_norm));
  });
  row["skipped"] =
      std::count_if(counted.begin(), counted.end(), [](const StepMetrics& m) { return m.skipped; });
  for (size_t l = 0; l < counted.front().lane_busy.size(); ++l)
    row["busy"][counted.front().lane_busy[l].first] =
        median(of_steps([&](const StepMetrics& m) { return m.lane_busy[l].second / m.seconds; }));
  for (const auto& [tier, bytes] : counted.back().peak_bytes) row["peak_bytes"][tier] = bytes;
  row["process_peak_bytes"] = counted.back().process_peak_bytes;
  if (const auto use = accelerator_use(*device_)) row["device_held_bytes"] = use->device.held;
  row["plan"] = planned;
  return row;
}

}  // namespace

ordered_json measure_training(const Row& row, const TrainingPlace& place, double seconds,
                              const std::function<void(const ordered_json&)>& so_far) {
  return Training(row, place, seconds).measure(so_far);
}

ordered_json measure_bench(const TrainingPlace& place, const std::string& file, bool small) {
  constexpr OpSizes kSmallOps{.rows = 32, .width = 64, .vocabulary = 128, .seconds_at_least = 0};
  constexpr uint64_t kMiB = 1ull << 20;
  BenchScale scale;
  if (small)
    scale = {.parameters = 4 * kMiB,
             .round_elements = kMiB,
             .copy_bytes = kMiB,
             .drive_bytes = 32 * kMiB,
             .lane_bytes = 16 * kMiB,
             .drive_seconds = 0.05,
             .request_seconds = 0.01,
             .ops = kSmallOps,
             .gpu = {.elements = kMiB / 8, .ops = kSmallOps}};
  std::filesystem::remove(file);  // left by a call that failed
  const Options options =
      parse({"bench"}, {"--device", place.device, "--nvme-dir", place.directory, "--out", file});
  const double begin = steady_seconds();
  run_bench(options, stdout, scale);
  ordered_json row{{"state", "measured"}, {"seconds", steady_seconds() - begin}};
  const MachineRates rates = parse_machine_rates(read_text_file(file, 1 << 20), file);
  const LaneRates* const compute = find_lane(rates, "compute", "device");
  for (const auto& [name, rate] :
       {std::pair{"bf16", compute->flops.bf16}, {"fp16", compute->flops.fp16}, {"fp32", compute->flops.fp32}})
    if (rate < kUnlimited) row[name] = rate;
  row["memory"] = compute->bytes_per_second;
  row["optimizer"] = find_lane(rates, "optimizer", "host")->bytes_per_second;
  return row;
}

ordered_json measure_algorithms(const Row& row, DeviceKind device, bool small) {
  if (device != DeviceKind::cuda)
    throw Error(ExitCode::infeasible, "it needs a GPU", "Run it where there is one.");
  Options options = parse(
      {"bench"}, {"--device", "cuda", "--model", row.model, "--batch", std::to_string(row.batch), "--seq",
                  std::to_string(row.sequence), "--micro-batch", std::to_string(row.micro_batch)});
  settle_device(options, false);
  GpuScale scale;
  if (small) scale.product_seconds = 0;
  const TimedAlgorithms timed = time_algorithms(options, products_to_time(options), scale, stdout);
  ordered_json values{{"state", "measured"}, {"products", ordered_json::array()}};
  for (const TimedProduct& p : timed.products)
    values["products"].push_back(
        {{"product", p.name}, {"flops", p.flops}, {"first", p.first}, {"chosen", p.chosen}});
  values["matmul_algorithms"] = ordered_json::parse(timed.text);
  return values;
}

ordered_json measure_profile(const Row& row, const TrainingPlace& place, const std::string& directory) {
  const std::string out = directory + "/profile";
  std::filesystem::remove_all(out);  // left by a call that failed
  write_tokens(place.directory + "/tokens.bin", 1 << 20, config_from_name(row.model).vocabulary);
  const Options options = parse({"profile", "--steps", std::to_string(row.steps), "--out", out, "--"},
                                train_words(row, place, 0));
  const ExitCode code = run_profile(options, stdout);
  if (code != ExitCode::done) throw Error(code, "The profile was stopped.", "Run this row again.");
  const ordered_json facts = ordered_json::parse(read_text_file(out + "/profile.json", 1 << 30));
  return {{"state", "measured"},
          {"seconds", facts["step_seconds"]["measured"]},
          {"seconds_predicted", facts["step_seconds"]["predicted"]},
          {"prediction_error", facts["prediction_error"]},
          {"machine", facts["machine"]},
          {"tokens_per_second", facts["tokens_per_second"]["measured"]},
          {"bound", facts["bound"]},
          {"lanes", facts["lanes"]},
          {"work", facts["work"]}};
}

}  // namespace sluice
