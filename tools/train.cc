#include <filesystem>

#include "engine/run/checkpoint_directory.h"
#include "engine/run/setup.h"
#include "engine/run/trainer.h"
#include "models/family.h"
#include "offload/nvme_files.h"
#include "tools/plan_report.h"
#include "tools/progress.h"
#include "tools/run_source.h"
#include "tools/size.h"
#include "tools/verbs.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

void print_notes(const std::vector<std::string>& notes, std::FILE* out) {
  for (const std::string& note : notes) std::fprintf(out, "%s\n", note.c_str());
}

// The checkpoint to go on from; nullopt: a fresh start. A directory that holds a run is never written over.
std::optional<CheckpointReader> open_resume(const Options& options, std::FILE* out) {
  const fs::path run(options.run.out);
  const bool has_run = fs::exists(run / "metrics.jsonl") || fs::exists(run / "checkpoints");
  if (options.run.resume.empty()) {
    if (!has_run) return std::nullopt;
    throw Error(ExitCode::usage, "--out " + printable(options.run.out) + " holds a run already.",
                "Add --resume auto to go on with it, or name another --out.");
  }
  std::vector<std::string> damaged;
  const std::optional<std::string> path = options.run.resume == "auto" ? newest_checkpoint(options.run.out, &damaged)
                                                                       : find_checkpoint(options.run.resume);
  print_notes(damaged, out);
  if (path) return CheckpointReader::open(*path);
  if (options.run.resume == "auto") return std::nullopt;
  throw Error(ExitCode::usage, "--resume " + printable(options.run.resume) + " is neither a checkpoint nor a run with one.",
              "Name a run directory, one of its checkpoints, or auto.");
}

CheckpointState first_state(const Options& options, const ModelConfig& config) {
  CheckpointState state;
  state.loss_scale = options.numbers.precision == DType::f16 ? kFirstLossScale : 1;
  state.precision = options.numbers.precision;
  state.model_config = config_to_json(config, options.numbers.precision);
  return state;
}

// What the run will hold on disk at once: the checkpoints that are kept, and the one being written.
void check_checkpoint_space(const Options& options, const Model& model) {
  const uint64_t one = checkpoint_bytes(model), free = free_bytes(options.run.out);
  const auto count = options.run.checkpoint_every > 0 ? static_cast<uint64_t>(options.run.keep) + 1 : 1;
  if (free / count >= one) return;
  throw Error(ExitCode::environment,
              std::to_string(count) + " checkpoints of " + format_size(one) + " do not fit: " + format_size(free) +
                  " are free in " + printable(options.run.out) + ".",
              "Free some space, lower --keep, or name another --out.");
}

void make_directory(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error)
    throw Error(ExitCode::environment, "Cannot create " + printable(path) + ": " + error.message() + ".",
                "Name a directory that can be written.");
}

struct TrainingData {
  TokenData train;
  std::optional<TokenData> validation;
  TrainData view;
};

TrainingData open_data(const Options& options, const ModelConfig& config, int64_t sequence) {
  TrainingData d{TokenData::open(options.data.train, config.vocabulary), std::nullopt, {}};
  d.view.order = make_data_order(d.train, sequence, options.data.order == RowOrder::shuffled, options.numbers.seed);
  if (options.data.validation.empty()) return d;
  d.validation = TokenData::open(options.data.validation, config.vocabulary);
  d.view.validation_order = make_validation_order(*d.validation, sequence, static_cast<uint64_t>(options.data.val_batches),
                                                  static_cast<uint64_t>(options.batch.batch));
  return d;
}

}  // namespace

ExitCode run_train(Options options, const std::atomic<bool>& stop, std::FILE* out) {
  std::optional<DirectoryLock> lock;  // from before the newest checkpoint is looked for
  if (std::error_code ignored; fs::is_directory(options.run.out, ignored)) lock.emplace(options.run.out, "training");
  std::optional<CheckpointReader> resumed = open_resume(options, out);
  if (resumed) {
    print_notes(apply_manifest(options, resumed->state().options), out);
    check_options(options, Verb::train, false);
  } else if (!options.run.resume.empty()) {
    check_options(options, Verb::train, false);
  }
  ModelSource source;
  if (resumed) source.config = config_from_json(resumed->state().model_config, "the checkpoint's config.json");
  else source = resolve_model(options.model);
  print_notes(source.config.notes, out);
  const int64_t sequence = options.batch.sequence.value_or(source.config.context);
  options.batch.sequence = sequence;
  TrainingData data = open_data(options, source.config, sequence);
  data.view.train = &data.train;
  data.view.validation = data.validation ? &*data.validation : nullptr;

  const Budgets budgets = resolve_budgets(options.memory, memory_limits(), true);
  print_notes(budgets.notes, out);
  const std::unique_ptr<Device> device = make_device(options.memory, budgets.threads);
  const Plan plan = plan_or_throw(plan_request(options, source.config, budgets, *device, data.validation.has_value()), budgets);
  options.batch.micro_batch = plan.model.micro_batch;
  std::fputs(plan_text(plan, budgets).c_str(), out);
  std::fflush(out);

  CheckpointState state = resumed ? resumed->state() : first_state(options, source.config);
  state.micro_batch = plan.model.micro_batch;
  state.options = manifest_options(options);
  std::optional<HfWeights> weights;
  if (resumed) {
    resumed->check(plan.model);
  } else if (!source.weights_directory.empty()) {
    weights = HfWeights::open(source.weights_directory, source.config.family);
    check_weights(*weights, plan.model);
  }

  make_directory(options.run.out);
  if (!lock) lock.emplace(options.run.out, "training");
  const SessionOptions session_options{budgets.threads,
                                       {{options.optimizer.beta1, options.optimizer.beta2, options.optimizer.epsilon,
                                         options.optimizer.weight_decay},
                                        options.optimizer.clip},
                                       options.memory.nvme_directories,
                                       io_choice(options.memory.io)};
  Session session(plan, *device, session_options);
  check_checkpoint_space(options, plan.model);
  std::fprintf(out, "  file I/O: %s\n", session.io_description().c_str());
  std::fflush(out);

  Workers workers(budgets.threads);
  if (resumed) load(session, load_from(plan.model, *resumed, workers));
  else load(session, load_from(plan.model, weights ? source_of(*weights) : source_of(options.numbers.seed), workers));
  const std::string metrics_path =
      options.run.metrics.empty() ? (fs::path(options.run.out) / "metrics.jsonl").string() : options.run.metrics;
  if (resumed) {
    truncate_after_step(metrics_path, state.step);
    std::fprintf(out, "Resuming after step %lld.\n", static_cast<long long>(state.step));
    std::fflush(out);
  }
  MetricsFile metrics(metrics_path);
  std::vector<std::pair<std::string, uint64_t>> tiers;
  for (size_t t = 0; t < plan.program.arena_bytes.size(); ++t)
    tiers.emplace_back(plan.program.machine.tiers[t].name, plan.program.arena_bytes[t]);
  Progress progress(out, progress_style(out), options.batch.steps, tiers);
  TrainEvents events;
  events.step = [&](const StepMetrics& m) {
    metrics.write(m);
    progress.step(m, steady_seconds());
  };
  events.validation = [&](const ValidationMetrics& v) {
    metrics.write(v);
    progress.validation(v);
  };
  events.checkpoint = [&](const std::string& path) { progress.note("checkpoint " + path); };
  const TrainResult result = Trainer(session, options, data.view, state, stop, events).run();
  progress.finish();
  if (!result.stopped) return ExitCode::done;
  std::fprintf(out, "Stopped after step %lld; go on with --resume auto.\n", static_cast<long long>(result.step));
  return ExitCode::stopped;
}

}  // namespace sluice
