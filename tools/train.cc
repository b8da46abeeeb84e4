#include <filesystem>
#include <utility>

#include "engine/clock.h"
#include "engine/run/checkpoint_directory.h"
#include "engine/run/metrics.h"
#include "engine/run/setup.h"
#include "engine/run/training_setup.h"
#include "models/family.h"
#include "offload/nvme_files.h"
#include "tools/plan_report.h"
#include "tools/progress.h"
#include "tools/run_directory.h"
#include "tools/run_source.h"
#include "tools/run_start.h"
#include "tools/size.h"
#include "tools/stop_signals.h"
#include "tools/verbs.h"

namespace sluice {

namespace {

// At once, also to a file or a pipe.
void say(std::FILE* out, const std::string& text) {
  std::fputs(text.c_str(), out);
  std::fflush(out);
}

void print_notes(const std::vector<std::string>& notes, std::FILE* out) {
  for (const std::string& note : notes) std::fprintf(out, "%s\n", note.c_str());
}

// What the run will hold on disk at once: the checkpoints that are kept, and the one being written.
void check_checkpoint_space(const Options& options, const Model& model) {
  const uint64_t one = checkpoint_bytes(model), free = free_bytes(options.run.out);
  const uint64_t there = std::min<uint64_t>(list_checkpoints(checkpoints_directory(options.run.out)).size(),
                                            static_cast<uint64_t>(options.run.keep));
  const uint64_t count =
      options.run.checkpoint_every > 0 ? static_cast<uint64_t>(options.run.keep) + 1 - there : 1;
  if (free / count >= one) return;
  throw Error(ExitCode::environment,
              (count == 1 ? "A checkpoint of " + format_size(one) + " does"
                          : std::to_string(count) + " checkpoints of " + format_size(one) + " do") +
                  " not fit: " + format_size(free) + " are free in " + printable(options.run.out) + ".",
              "Free some space, lower --keep, or name another --out.");
}

// Refuses data other than the run's: the order of windows, and so every bit, depends on them.
void check_same_data(const CheckpointState& run, const TokenData& data) {
  if (data.tokens() == run.tokens && data.sample_checksum() == run.data_checksum) return;
  const std::string holds =
      data.tokens() == run.tokens
          ? "other tokens than those the run trained on."
          : std::to_string(data.tokens()) + " tokens; the run trained on " + std::to_string(run.tokens) + ".";
  throw Error(ExitCode::usage, data.description() + " holds " + holds,
              "Give the run's own --data, or start a new run with another --out.");
}

// Every tensor of the model is there in its shape; throws otherwise.
void check_start(RunStart& start, const Model& model) {
  if (start.checkpoint) return start.checkpoint->check(model);
  if (start.source.weights_directory.empty()) return;
  start.weights = HfWeights::open(start.source.weights_directory, start.source.config.family);
  check_weights(*start.weights, model);
}

void load_start(const RunStart& start, uint64_t seed, Session& session, Workers& workers) {
  const Model& model = session.plan().model;
  if (start.checkpoint) return load(session, load_from(model, *start.checkpoint, workers));
  load(session, load_from(model, start.weights ? source_of(*start.weights) : source_of(seed), workers));
}

CheckpointState state_of(const RunStart& start, const Options& options, const TokenData& data) {
  CheckpointState state =
      start.checkpoint ? start.checkpoint->state() : first_state(options, start.source.config);
  state.tokens = data.tokens();
  state.data_checksum = data.sample_checksum();
  state.micro_batch = options.batch.micro_batch.value();
  state.options = manifest_options(options);
  return state;
}

std::string metrics_path(const RunOptions& run) {
  return run.metrics.empty() ? (std::filesystem::path(run.out) / "metrics.jsonl").string() : run.metrics;
}

// Whether the run has done its steps already. Throws when it went past them.
bool is_done(const Options& options, const CheckpointReader& checkpoint, std::FILE* out) {
  const int64_t done = checkpoint.state().step, wanted = options.batch.steps;
  if (done < wanted) return false;
  if (done > wanted)
    throw Error(ExitCode::usage,
                "--steps " + std::to_string(wanted) + " is behind " + printable(checkpoint.path()) +
                    ", which has done " + std::to_string(done) + ".",
                "Give --steps above " + std::to_string(done) + ", or go back with --resume CHECKPOINT.");
  say(out,
      "All " + std::to_string(done) + " steps are done: nothing to do. To go on, give a larger --steps.\n");
  return true;
}

std::string pinning_text(const Program& program) {
  return "  pinning " + format_size(program.arena_bytes[lowest_memory_tier(program.machine)]) +
         " of host memory\n";
}

Progress make_progress(const Options& options, const Program& program, std::FILE* out) {
  std::vector<std::pair<std::string, uint64_t>> tiers;
  for (size_t t = 0; t < program.arena_bytes.size(); ++t)
    tiers.emplace_back(program.machine.tiers[t].name, program.arena_bytes[t]);
  return Progress(out, progress_style(out), options.batch.steps, tiers);
}

// What a driver or library took beyond the plan would show here.
void tell_memory(Accelerator& accelerator, uint64_t limit, Progress& progress) try {
  const AcceleratorMemory memory = accelerator.memory();
  progress.note("GPU memory after the first step: " + format_size(memory.held) + " held, of " +
                format_size(limit) + "; " + format_size(memory.free) + " free");
} catch (const Error&) {
  // A GPU that was lost meanwhile is the next step's news.
}

// Shows and records every event; of an accelerator also, once, what its memory holds.
TrainEvents report_to(MetricsFile& metrics, Progress& progress, Accelerator* accelerator, uint64_t limit) {
  TrainEvents events;
  events.step = [&metrics, &progress, accelerator, limit](const StepMetrics& m) mutable {
    metrics.write(m);
    progress.step(m, steady_seconds());
    if (Accelerator* const first = std::exchange(accelerator, nullptr)) tell_memory(*first, limit, progress);
  };
  events.validation = [&](const ValidationMetrics& v) {
    metrics.write(v);
    progress.validation(v);
  };
  events.checkpoint = [&](const std::string& path) { progress.note("checkpoint " + printable(path)); };
  return events;
}

}  // namespace

ExitCode run_train(Options options, std::FILE* out) {
  RunDirectory directory(options.run.out);
  RunStart start = open_run_start(options, Verb::train);
  print_notes(start.notes, out);
  if (start.checkpoint && is_done(options, *start.checkpoint, out)) return ExitCode::done;
  const RunData data = open_run_data(options, start.source.config);
  if (start.checkpoint) check_same_data(start.checkpoint->state(), data.train);

  const std::unique_ptr<Device> device = make_device(options.memory, resolve_threads(options.memory));
  Budgets budgets = resolve_budgets(options.memory, memory_limits(), true, accelerator_use(*device));
  print_notes(budgets.notes, out);
  const auto make_plan = [&] {
    return plan_or_throw(plan_request(options, start.source.config, budgets, workspaces_of(*device),
                                      data.validation.has_value()),
                         budgets);
  };
  const auto planned = [&](const Plan& plan) {
    say(out, plan_text(plan, budgets, options));
    check_start(start, plan.model);
    directory.create();
    if (device->accelerator()) say(out, pinning_text(plan.program));
  };
  const auto started =
      start_session(*device, budgets, session_options(options, budgets.threads), make_plan, planned);
  const Plan& plan = started->plan;
  Session& session = started->session;
  options.batch.micro_batch = plan.model.micro_batch;
  check_checkpoint_space(options, plan.model);
  say(out, "  file I/O: " + session.io_description() + "\n");
  Workers workers(budgets.threads);
  load_start(start, options.numbers.seed, session, workers);

  // Up to here a start that fails or is interrupted has changed nothing.
  const std::atomic<bool>& stop = stop_on_signals();
  const std::string metrics_file = metrics_path(options.run);
  directory.open_metrics(metrics_file);
  if (!options.run.resume.empty()) {
    const int64_t step = start.checkpoint ? start.checkpoint->state().step : 0;
    go_back_to(step, options.run, metrics_file, out);
    if (start.checkpoint) say(out, "Resuming after step " + std::to_string(step) + ".\n");
  }
  directory.keep();
  MetricsFile metrics(metrics_file);
  Progress progress = make_progress(options, plan.program, out);
  const TrainData view = data.view();
  const uint64_t device_limit = budgets.device ? budgets.device->limit : 0;
  Trainer trainer(session, options, view, state_of(start, options, data.train), stop,
                  report_to(metrics, progress, device->accelerator(), device_limit));
  const TrainResult result = trainer.run();
  progress.finish();
  if (!result.stopped) return ExitCode::done;
  say(out, "Stopped after step " + std::to_string(result.step) + "; go on with --resume auto.\n");
  return ExitCode::stopped;
}

}  // namespace sluice
