#include "tools/report/run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/train/metrics_reader.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

std::vector<ManifestOption> options_of_run(const std::string& directory) {
  for (const CheckpointEntry& entry : list_checkpoints(checkpoints_directory(directory)))
    if (const std::optional<CheckpointReader> checkpoint = open_if_complete(entry))
      return checkpoint->state().options;
  return {};
}

const ManifestOption* find_in(const std::vector<ManifestOption>& options, const std::string& name) {
  const auto found = std::ranges::find(options, name, &ManifestOption::name);
  return found == options.end() || found->values.empty() ? nullptr : &*found;
}

// Where the run writes its metrics: in its directory, or in the file of --metrics.
std::string metrics_of_run(const std::string& directory, const std::vector<ManifestOption>& options) {
  const std::string own = (fs::path(directory) / "metrics.jsonl").string();
  const ManifestOption* elsewhere = find_in(options, "metrics");
  std::error_code ignored;
  return elsewhere && !fs::exists(own, ignored) ? elsewhere->values.front() : own;
}

std::string metrics_file(const std::string& directory, const std::vector<ManifestOption>& options) {
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored))
    throw Error(
        ExitCode::usage,
        printable(directory) + (fs::exists(directory, ignored) ? " is no directory." : " does not exist."),
        "Name a run directory: the --out of a training.");
  std::string file = metrics_of_run(directory, options);
  if (!fs::exists(file, ignored))
    throw Error(ExitCode::usage, printable(directory) + " holds no run: it has no metrics.jsonl.",
                "Name a run directory: the --out of a training.");
  return file;
}

// Everything that the metrics file says, by step.
struct Record {
  Curve loss, router_loss, grad_norm, learning_rate, tokens_per_second, validation;
  Curve tokens;   // of all steps so far
  Curve skipped;  // steps whose update was left out
  std::vector<std::pair<std::string, Curve>> memory;
  std::vector<SampleMetrics> samples;

  void cut(int64_t step) {
    cut_samples(step);
    for (Curve* curve : {&loss, &router_loss, &grad_norm, &learning_rate, &tokens_per_second, &validation,
                         &tokens, &skipped})
      curve->cut(step);
    for (auto& [tier, curve] : memory) curve.cut(step);
  }

  void add(const StepMetrics& m) {
    if (loss.size() > 0 && m.step <= loss.steps.back()) cut(m.step);
    loss.add(m.step, m.loss);
    if (m.router_loss) router_loss.add(m.step, *m.router_loss);
    grad_norm.add(m.step, m.grad_norm);
    learning_rate.add(m.step, m.learning_rate);
    tokens_per_second.add(m.step, m.tokens_per_second);
    const double of_step = std::round(m.tokens_per_second * m.seconds);
    tokens.add(m.step,
               (tokens.size() > 0 ? tokens.values.back() : 0) + (std::isfinite(of_step) ? of_step : 0));
    if (m.skipped) skipped.add(m.step, 1);
    for (const auto& [tier, bytes] : m.peak_bytes) add_memory(tier, m.step, bytes);
    add_memory("process", m.step, m.process_peak_bytes);
  }

  void add(const ValidationMetrics& m) {
    validation.cut(m.step);
    validation.add(m.step, m.val_loss);
  }

  void add(const SampleMetrics& m) {
    cut_samples(m.step);
    samples.push_back(m);
  }

 private:
  void cut_samples(int64_t step) {
    std::erase_if(samples, [&](const SampleMetrics& m) { return m.step >= step; });
  }
  void add_memory(const std::string& tier, int64_t step, uint64_t bytes) {
    auto found = std::ranges::find(memory, tier, &std::pair<std::string, Curve>::first);
    if (found == memory.end()) found = memory.insert(memory.end(), {tier, {}});
    found->second.add(step, static_cast<double>(bytes));
  }
};

// The last value that is a number; 0: there is none.
double last_number(const Curve& curve) {
  for (size_t i = curve.size(); i-- > 0;)
    if (!std::isnan(curve.values[i])) return curve.values[i];
  return 0;
}

double median_number(std::vector<double> values) {
  std::erase_if(values, [](double value) { return std::isnan(value); });
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Curve above(const Curve& curve, double limit) {
  Curve out;
  for (size_t i = 0; i < curve.size(); ++i)
    if (curve.values[i] > limit) out.add(curve.steps[i], curve.values[i]);
  return out;
}

void set_best_validation(ReportedRun& run, const Curve& validation) {
  for (size_t i = 0; i < validation.size(); ++i) {
    const double value = validation.values[i];
    if (std::isnan(value) || (run.best_validation && *run.best_validation <= value)) continue;
    run.best_validation = value;
    run.best_validation_step = validation.steps[i];
  }
}

// At most `most` of the samples, at equal distances. The first and the last sample are among them.
std::vector<SampleMetrics> spread(std::vector<SampleMetrics> all, size_t most) {
  if (all.size() <= most) return all;
  std::vector<SampleMetrics> some;
  for (size_t i = 0; i < most; ++i) some.push_back(std::move(all[i * (all.size() - 1) / (most - 1)]));
  return some;
}

}  // namespace

ReportedRun read_run(const std::string& directory) {
  ReportedRun run;
  run.name = directory;
  run.options = options_of_run(directory);
  const std::string file = metrics_file(directory, run.options);
  Record record;
  read_metrics(
      file, {[&](const StepMetrics& m) { record.add(m); }, [&](const ValidationMetrics& m) { record.add(m); },
             [&](const SampleMetrics& m) { record.add(m); }});
  if (record.loss.size() == 0)
    throw Error(ExitCode::usage, printable(file) + " holds no step yet.",
                "Wait until the run has done its first step.");
  run.last_step = record.loss.steps.back();
  run.tokens = record.tokens.values.back();
  run.tokens_per_second = median_number(record.tokens_per_second.values);
  run.skipped = static_cast<int64_t>(record.skipped.size());
  set_best_validation(run, record.validation);
  run.samples = spread(std::move(record.samples), kSampledSteps);
  Curve clipped;
  if (const ManifestOption* clip = find_in(run.options, "clip")) {
    run.clip = parse_real(clip->values.front(), "clip");
    if (*run.clip > 0) clipped = above(record.grad_norm, *run.clip);
    run.clipped = static_cast<int64_t>(clipped.size());
  }
  const Curve loss_smooth = smoothed(record.loss);
  run.last_loss = last_number(loss_smooth);
  const auto draw = [&](const std::string& name, const Curve& curve) {
    if (curve.size() > 0) run.curves.emplace_back(name, thinned(curve));
  };
  draw("loss", record.loss);
  draw("loss_smooth", loss_smooth);
  draw("val_loss", record.validation);
  draw("router_loss", record.router_loss);
  draw("learning_rate", record.learning_rate);
  draw("grad_norm", record.grad_norm);
  draw("clipped", clipped);
  draw("tokens_per_second", record.tokens_per_second);
  for (const auto& [tier, curve] : record.memory) draw("memory " + tier, curve);
  return run;
}

}  // namespace sluice
