#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

#include "engine/base/units.h"
#include "engine/run/checkpoint/directory.h"
#include "engine/run/checkpoint/write_rate.h"
#include "engine/run/start/agreement.h"
#include "engine/run/start/budgets.h"
#include "engine/run/start/plan_request.h"
#include "engine/run/start/planning.h"
#include "engine/run/start/rank_setup.h"
#include "engine/run/start/run_data.h"
#include "engine/run/start/run_directory.h"
#include "engine/run/start/run_start.h"
#include "engine/run/start/session_start.h"
#include "engine/run/start/stopping.h"
#include "engine/run/start/text_start.h"
#include "engine/run/train/metrics.h"
#include "engine/run/train/schedule.h"
#include "models/families/family.h"
#include "offload/nvme_files.h"
#include "offload/system/memory_limits.h"
#include "tools/command/launch.h"
#include "tools/command/rank_status.h"
#include "tools/command/report_error.h"
#include "tools/command/run_verb.h"
#include "tools/command/screen.h"
#include "tools/command/stop_signals.h"
#include "tools/command/waiting.h"
#include "tools/plan/facts.h"
#include "tools/plan/report.h"
#include "tools/prepare/child.h"
#include "tools/train/comparison.h"
#include "tools/train/kill_loss.h"
#include "tools/train/records.h"

namespace sluice {

namespace {

// What the user may do if the run cannot write into --out, as a clause.
std::string other_out(const RunStart& run) {
  return run.checkpoint
             ? "go on elsewhere, with --resume " + printable(run.checkpoint->path()) + " and another --out"
             : "name another --out";
}

// Throws if the first rank may not write the checkpoints of the run.
void check_checkpoint_place(const Options& options, const RunStart& run) {
  const std::string checkpoints = checkpoints_directory(options.run.out);
  const std::string& place = std::filesystem::is_directory(checkpoints) ? checkpoints : options.run.out;
  if (::access(place.c_str(), W_OK | X_OK) != 0)
    throw Error(ExitCode::environment,
                "Cannot write into " + printable(place) + ": " + std::strerror(errno) + ".",
                "Make it writable for this user, or " + other_out(run) + ".");
}

// Throws if this process may not write files as large as the files of a checkpoint.
void check_file_size(const Options& options, const Plan& plan) {
  const uint64_t largest = largest_checkpoint_file(plan, options.optimizer.kind);
  if (const uint64_t limit = memory_limits().file_size; largest > limit)
    throw Error(ExitCode::environment,
                "A checkpoint has a file of " + format_size(largest) +
                    ", and the limit on the size of files (ulimit -f) is " + format_size(limit) + ".",
                "Raise it: ulimit -f unlimited.");
}

// The most checkpoints that a run of `steps` steps can write. If the interval is a time, every step may have
// one.
uint64_t checkpoints_at_most(const Options& options, int64_t steps) {
  const Interval& every = options.run.checkpoint_every;
  const int64_t best = options.run.keep_best ? options.data.val_every : 0, all = std::max<int64_t>(0, steps);
  const int64_t by_interval = every.steps > 0 ? all / every.steps : every.seconds > 0 ? all : 0;
  return static_cast<uint64_t>(by_interval + (best > 0 ? all / best : 0) + 1);
}

// Throws if the drive of --out has no room for the checkpoints that the run keeps, the one being written, and
// the metrics of the steps, which would otherwise take the room of the last checkpoint.
void check_checkpoint_space(const Options& options, const RunStart& run, const Plan& plan) {
  constexpr int64_t kLineBytes = 1 << 10, kLinesMost = 1 << 16;  // of metrics; --steps may never be reached
  const int64_t steps = options.batch.steps - (run.checkpoint ? run.checkpoint->state().step : 0);
  const int64_t lines = (options.run.metrics.empty() ? 1 : 0) + (options.run.tensorboard ? 1 : 0);
  const auto metrics = static_cast<uint64_t>(std::clamp<int64_t>(steps, 0, kLinesMost) * kLineBytes * lines);
  const CheckpointSpace space = checkpoint_space(plan, options.optimizer.kind);
  const uint64_t one = space.bytes, free = free_bytes(options.run.out);
  const bool keeps_best = options.run.keep_best;
  const bool on_the_way =
      options.run.checkpoint_every.is_given() || (keeps_best && options.data.val_every > 0);
  const uint64_t kept = static_cast<uint64_t>(options.run.keep) + (keeps_best ? 1 : 0);
  const uint64_t there = std::min(static_cast<uint64_t>(count_complete_checkpoints(options.run.out)), kept);
  const uint64_t count = on_the_way ? std::min(kept + 1 - there, checkpoints_at_most(options, steps)) : 1;
  if (const uint64_t files = free_files(options.run.out); files / count < space.files)
    throw Error(ExitCode::environment,
                fmt::format("{} of {} files {} not fit: the file system of {} has room for {}.",
                            count == 1 ? "A checkpoint" : fmt::format("{} checkpoints", count), space.files,
                            count == 1 ? "does" : "do", printable(options.run.out), files),
                "Delete some files there, or " + other_out(run) + ".");
  if ((free - std::min(free, metrics)) / count >= one) return;
  throw Error(
      ExitCode::environment,
      fmt::format("{} of {} {} not fit{}: {} are free in {}.",
                  count == 1 ? "A checkpoint" : fmt::format("{} checkpoints", count), format_size(one),
                  count == 1 ? "does" : "do",
                  metrics > 0 ? " beside " + format_size(metrics) + " of metrics" : "", format_size(free),
                  printable(options.run.out)),
      fmt::format("Free some space{}{}, or {}.", count > 1 && options.run.keep > 1 ? ", lower --keep" : "",
                  count > 1 && keeps_best ? ", leave out --keep-best" : "", other_out(run)));
}

std::string metrics_path(const RunOptions& run) {
  return run.metrics.empty() ? (std::filesystem::path(run.out) / "metrics.jsonl").string() : run.metrics;
}

// Whether the step of the checkpoint still has to be validated, or to write samples.
bool has_pending(const Options& options, const CheckpointState& state) {
  const bool validates = !options.data.validation.empty() || options.data.val_split.percent > 0;
  return (state.pending_validation && validates) || (state.pending_samples && options.sample.every > 0);
}

// Whether the run has done all its steps, with nothing pending after them. Throws if it has done more steps.
bool is_done(const Options& options, const CheckpointReader& checkpoint, std::FILE* out) {
  const int64_t done = checkpoint.state().step, wanted = options.batch.steps, epochs = options.batch.epochs;
  if (done < wanted || (done == wanted && has_pending(options, checkpoint.state()))) return false;
  if (done > wanted) {
    const auto before = checkpoint_before(checkpoints_directory(run_of(checkpoint.path())), wanted);
    const std::string length = epochs > 0 ? fmt::format("--epochs {}, which is step {},", epochs, wanted)
                                          : fmt::format("--steps {}", wanted);
    throw Error(
        ExitCode::usage,
        fmt::format("{} is behind {}, which has done {}.", length, printable(checkpoint.path()), done),
        fmt::format("Give {}--steps above {}{}.", epochs > 0 ? "more --epochs, or " : "", done,
                    before ? ", or go back with --resume " + printable(*before) : ""));
  }
  if (out)
    show(out, fmt::format("All {} steps are done: nothing to do. To go on, give {}.\n", done,
                          epochs > 0 ? fmt::format("more --epochs than {}, or --steps", epochs)
                                     : "a larger --steps"));
  return true;
}

std::string pinning_text(const Program& program) {
  return "  pinning " + format_size(program.arena_bytes[lowest_memory_tier(program.machine)]) +
         " of host memory\n";
}

// The start of the answer to a signal; how long the stop takes follows it.
std::string stop_answer(const Options& options, const Plan& plan, std::FILE* out) {
  const std::string answer = "sluice: stopping after the step under way, with a checkpoint of " +
                             format_size(checkpoint_bytes(plan, options.optimizer.kind)) + ".";
  return (screen_of(out).is_terminal ? "\n" : "") + shown(answer, screen_of(stderr));
}
constexpr const char* kSecondSignal =
    " A second signal ends the run at once, with the last checkpoint intact.\n";

// While an object lives, the answer to a signal says how long a stop takes.
struct Forecast : StopForecast {
  explicit Forecast(const StopParts& predicted) : StopForecast(predicted) { forecast_stops(this); }
  ~Forecast() { forecast_stops(nullptr); }
};

KillLoss kill_loss(const Options& options, const Plan& plan, const RunData& data, const StopParts& parts,
                   int64_t done) {
  const Interval& every = options.run.checkpoint_every;
  const auto obstacle =
      every.is_auto ? obstacle_on_the_way(options.run.out, checkpoint_space(plan, options.optimizer.kind),
                                          options.run.keep, options.run.keep_best)
                    : std::nullopt;
  const bool validates = data.validation && options.data.val_every > 0;
  return {.every = every,
          .save_seconds = std::isfinite(parts.save) ? parts.drain + parts.save : 0,
          .validated = 1 + (validates ? kForwardPart * static_cast<double>(data.validation_batches) /
                                            static_cast<double>(options.data.val_every)
                                      : 0),
          .steps = options.batch.steps - done,
          .no_room = obstacle ? "no checkpoint is written on the way, since " + *obstacle : ""};
}

uint64_t number_by_chance() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// What all ranks of a process share at the start.
struct Start {
  const Launch* launch;     // nullptr: this process is alone
  RunDirectory* directory;  // nullptr on a process whose ranks do not print
  RunStart run;
  RunData data;
  std::vector<uint32_t> ends;                    // PreparedData::ends
  std::shared_ptr<const SamplePrompts> samples;  // nullptr: none are written
  std::optional<Comparison> comparison = {};     // of the first rank

  int64_t steps_done() const { return run.checkpoint ? run.checkpoint->state().step : 0; }
};

// Prepares the metrics file and returns its path. If the run goes on, the file is first cut at its step.
std::string prepare_metrics(const Options& options, Start& start, std::FILE* out) {
  const std::string file = metrics_path(options.run);
  const MetricsFile locked = start.directory->open_metrics(file);
  if (!options.run.resume.empty()) {
    go_back_to(start.steps_done(), options.run, file, say_to(out));
    if (start.run.checkpoint) show(out, "Resuming after step " + std::to_string(start.steps_done()) + ".\n");
  }
  start.directory->keep();
  keep_text(
      options,
      {tokenizer_of(options, text_directory(start.run)), start.ends, start.run.source.config.special_tokens},
      start.run.is_same_run);
  return file;
}

// Facts that decide whether there is anything to do. Ranks compare them, so that all end or all go on.
std::vector<Fact> facts_of_extent(const Options& options, const RunStart& run) {
  const int64_t done = run.checkpoint ? run.checkpoint->state().step : 0;
  return {{"checkpoint to go on from", std::to_string(done)},
          {"--steps", std::to_string(options.batch.steps)}};
}

std::string words_of(const std::vector<std::vector<uint32_t>>& prompts) {
  std::string words;
  for (const std::vector<uint32_t>& prompt : prompts) words += fmt::format("{}\n", fmt::join(prompt, " "));
  return words;
}

// Facts that must be the same on all ranks: options that change bits, the length of the run, data and start.
std::vector<Fact> facts_of(const Options& options, const Start& start) {
  std::vector<Fact> facts;
  for (const ManifestOption& option : manifest_options(options)) {
    if (find_option(option.name)->on_resume == OnResume::kept) continue;  // ranks may differ in these
    std::string values;
    for (const std::string& value : option.values) values += value + "\n";
    facts.push_back({"--" + option.name, std::move(values)});
  }
  const auto add = [&](const char* name, uint64_t value) { facts.push_back({name, std::to_string(value)}); };
  const std::vector<Fact> of_start = start_facts(start.run);
  facts.insert(facts.end(), of_start.begin(), of_start.end());
  facts.push_back({"--matmul-algorithms", options.memory.chosen_algorithms});
  add("content of --data", start.data.train->checksum());
  add("number of tokens", start.data.train->tokens());
  const RowData* const validation = start.data.validation.get();
  add("content of --val-data", validation ? validation->checksum() : 0);
  add("number of tokens to validate on", validation ? validation->tokens() : 0);
  add("--val-every", static_cast<uint64_t>(options.data.val_every));
  add("--val-batches", static_cast<uint64_t>(options.data.val_batches));
  add("--keep-best", options.run.keep_best);
  add("--sample-every", static_cast<uint64_t>(options.sample.every));
  add("--sample-tokens", static_cast<uint64_t>(options.sample.tokens));
  facts.push_back({"content of --sample-prompts", start.samples ? words_of(start.samples->tokens) : ""});
  facts.push_back({"end tokens of samples", start.samples ? words_of({start.samples->ends}) : ""});
  add("--zero", static_cast<uint64_t>(options.ranks.zero.value()));
  add("--experts-over", static_cast<uint64_t>(experts_over(options)));
  add("--shard-weights", static_cast<uint64_t>(options.ranks.shard_weights.value()));
  add("--checkpoint-every", static_cast<uint64_t>(options.run.checkpoint_every.steps));
  add("--checkpoint-every, in microseconds",
      static_cast<uint64_t>(options.run.checkpoint_every.seconds * 1e6));
  add("--checkpoint-every auto", options.run.checkpoint_every.is_auto);
  return facts;
}

// At the usual learning rates, a model hardly learns anything from fewer updates. A user may not notice that
// a run has so few: many short samples share a sequence, which is long by default.
constexpr int64_t kFewSteps = 20;

// What is validated on, and how much of it a validation reads.
std::string validation_text(const RunData& data, const Options& options) {
  const auto all = static_cast<int64_t>(data.validation->rows_of_epochs(1));
  const int64_t read = std::min(all, data.validation_batches * options.batch.batch);
  std::string text = fmt::format(
      "  validation: {}{}; each reads {} of these sequences\n",
      data.held_out.empty() ? "" : data.held_out + " held out by --val-split: ", data.validation->extent(),
      read == all ? "all" : fmt::format("the first {}", read));
  if (data.held_out.empty())
    for (const std::string& remark : data.validation->remarks()) text += "  validation: " + remark + "\n";
  return text;
}

// How many tokens there are, how often the run reads them, and what else is to be known about them.
std::string data_text(const RunData& data, const Options& options) {
  const double times = static_cast<double>(options.batch.steps) * static_cast<double>(options.batch.batch) /
                       static_cast<double>(data.train->rows_of_epochs(1));
  const std::string number = times < 100 ? fmt::format("{:.3g}", times) : fmt::format("{:.0f}", times);
  const bool is_one = options.batch.steps == 1;
  std::string text = fmt::format(
      "  data: {} tokens, {}; {} {}\n", data.train->tokens(), data.train->extent(), options.batch.steps,
      data.train->is_mixed()
          ? fmt::format("{} read as many as {} epochs have", is_one ? "step" : "steps", number)
          : fmt::format("{} each {} times", is_one ? "step reads" : "steps read", number));
  for (const std::string& remark : data.train->remarks()) text += "  " + remark + "\n";
  if (data.validation) text += validation_text(data, options);
  if (const int64_t warmup = warmup_steps(options.optimizer, options.batch.steps);
      warmup > options.batch.steps)
    text += fmt::format(
        "  the learning rate still rises at the end, to {:.3g} of {:.3g}: --warmup {} is longer "
        "than the run\n",
        learning_rate(options.optimizer, options.batch.steps - 1, options.batch.steps),
        options.optimizer.learning_rate, warmup);
  if (options.batch.epochs > 0 && options.batch.steps < kFewSteps)
    text += fmt::format(
        "  only {} {}, of {} sequences of {} tokens: a smaller --seq or --batch makes more of them\n",
        options.batch.steps, options.batch.steps == 1 ? "update" : "updates", options.batch.batch,
        *options.batch.sequence);
  return text;
}

// For a run that is done. Says whether the check has found a fault in the data that did not end the run, or
// has not got through all data, as in a run of a few steps.
std::string check_text(const RangeCheck& check, const RunData& data) {
  if (const std::exception_ptr fault = check.fault()) try {
      std::rethrow_exception(fault);
    } catch (const std::exception& error) {
      return std::string("The run is done, but the data have a fault: ") + as_error(error).what() + "\n";
    }
  uint64_t tokens = 0;
  for (const TokenData* d : data.unchecked()) tokens += d->tokens();
  if (check.tokens() >= tokens) return "";
  return fmt::format("Of {} tokens of data, {} were checked against the vocabulary.\n", tokens,
                     check.tokens());
}

// Names the files of tokens that were written to during the run, which reads them until it ends.
std::string changed_text(const RunData& data) {
  std::string text;
  for (const TokenData* tokens : data.unchecked())
    for (const std::string& path : tokens->changed_files())
      text += printable(path) + " was written to during the run, which may have trained on either content.\n";
  return text;
}

// Which checkpoint is the best, for a run that keeps it.
std::string best_text(const RunOptions& run) {
  const std::optional<BestCheckpoint> best = run.keep_best ? best_checkpoint(run.out) : std::nullopt;
  return best ? best_words(*best) + "\n" : "";
}

// The part of train_rank() that needs a session. `given`: the options before this rank's share was taken.
ExitCode train_in(PlannedSession& started, Options given, Options options, Start& start,
                  const Budgets& budgets, Accelerator* accelerator, std::FILE* out) {
  const Plan& plan = started.plan;
  Session& session = started.session;
  const Ranks& ranks = session.ranks();
  given.batch.micro_batch = options.batch.micro_batch = plan.model.micro_batch;
  ranks.set_patience(rank_timeout(options, plan));
  std::optional<Forecast> forecast;  // of the first rank
  check_agreement(facts_of(options, start), plan, ranks);
  if (start.launch) check_shared(options.run.out, ranks);
  if (start.launch || ranks.is_first()) check_file_size(options, plan);  // every process has its own limit
  if (ranks.is_first()) {
    check_checkpoint_place(options, start.run);
    check_checkpoint_space(options, start.run, plan);
    show(out, "  file I/O: " + session.io_description() + "\n" + data_text(start.data, options));
    if (ranks.size() == 1 && is_given(given, "rank-timeout"))
      show(out, "  --rank-timeout has no effect: there is one rank\n");
    const uint64_t bytes = checkpoint_bytes(plan, options.optimizer.kind);
    const StopParts parts = stop_parts(options, plan, write_rate(options.run.out, bytes));
    const KillLoss loss = kill_loss(options, plan, start.data, parts, start.steps_done());
    const char* const basis =
        options.memory.machine.empty() ? "as predicted at another machine's rates" : "as predicted";
    show(out, "  " + loss.words(plan.step_seconds, basis) + "\n");
    start.comparison->tell_loss(loss);
    forecast.emplace(parts);
  }
  Workers workers(budgets.threads);
  load_start(start.run, options.numbers.seed, session, workers);
  ranks.barrier();
  if (start.launch) start.launch->note_start();

  // A start that fails or is interrupted before this line has changed nothing.
  if (ranks.is_first())
    stop_on_signals(stop_answer(options, plan, out), kSecondSignal);
  else if (start.launch)
    stop_on_signals("");
  ranks.barrier();
  const uint64_t device_limit = budgets.device ? budgets.device->limit : 0;
  std::optional<Records> records;
  if (ranks.is_first())
    records.emplace(options, prepare_metrics(options, start, out), start.steps_done(), plan,
                    start.run.source.config, out, *forecast);
  TrainData view = start.data.view();
  view.samples = start.samples.get();
  std::optional<RangeCheck> check;
  if (ranks.is_first()) view.check = &check.emplace(start.data.unchecked());
  const CheckpointState begin = state_of(start.run, given, *start.data.train, number_by_chance());
  ranks.barrier();
  if (start.launch || ranks.is_first()) start.run.close();  // threads share it, and have what they need
  Trainer trainer(session, options, view, begin, stop_flag(),
                  records ? records->events(*start.comparison, accelerator, device_limit) : TrainEvents{});
  TrainResult result;
  try {
    result = trainer.run();
  } catch (...) {
    if (records) records->finish();
    throw;
  }
  if (records) records->finish();
  if (check) show(out, check_text(*check, start.data));
  if (ranks.is_first()) show(out, changed_text(start.data));
  if (records) show(out, best_text(options.run));
  if (!result.stopped) return ExitCode::done;
  const bool is_done = result.step == options.batch.steps;
  if (records)
    show(out, is_done
                  ? "Stopped after the last step: all are done and saved; --resume auto does the rest.\n"
                  : "Stopped after step " + std::to_string(result.step) + "; go on with --resume auto.\n");
  return ExitCode::stopped;
}

// Only the first rank prints and writes into the run directory.
ExitCode train_rank(const Options& given, Start& start, const Ranks& all, std::FILE* out) {
  RankSetup rank(given, start.run.source, data_use(given, start.run, start.data), start.samples, all,
                 say_to(out));
  const Ranks& ranks = rank.ranks();
  const auto print = [&](const std::string& text) {
    if (ranks.is_first()) show(out, text);
  };
  const auto planned = [&](const Plan& plan) {
    check_stop_time(given, plan);
    print(plan_text(plan, rank.budgets(), rank.options()));
    if (ranks.is_first()) {
      const PlanFacts facts = facts_of(plan, rank.options());
      show(out, short_wear_text(facts, rank.options().batch.steps - start.steps_done()));
      start.comparison.emplace(plan, facts, rank.options());
    }
    if (start.launch || ranks.is_first()) check_start(start.run, plan.model);  // threads share it
    if (ranks.is_first()) start.directory->create();
    ranks.barrier();
    if (start.launch) start.launch->hold();
    if (rank.device().accelerator()) print(pinning_text(plan.program));
  };
  SessionOptions session_choices = session_options(rank.options(), rank.budgets().threads);
  session_choices.ranks = ranks;
  const auto started = start_session(
      rank.device(), rank.budgets(), session_choices,
      [&] {
        std::optional<Waiting> waiting;
        if (ranks.is_first()) waiting.emplace(stderr, "planning");
        try {
          return rank.plan();
        } catch (const Error& error) {
          if (error.code() != ExitCode::infeasible || !ranks.is_first() || start.run.checkpoint) throw;
          throw with_less_work(error, rank.request());
        }
      },
      planned);
  try {
    return train_in(*started, given, rank.options(), start, rank.budgets(), rank.device().accelerator(), out);
  } catch (const std::exception& e) {
    if (start.launch) start.launch->end(e);  // other ranks may still write into the session's memory
    throw;
  }
}

// `launch`: nullptr if this process trains alone. `directory`: given on the first rank of a launch.
ExitCode train_process(Options options, const Launch* launch, RunDirectory* directory, std::FILE* out) {
  const bool speaks = !launch || launch->ranks().is_first();
  check_options(options, Verb::train, manifest_use(options));  // now with the number of ranks
  std::optional<RunDirectory> own;
  if (!launch) directory = &own.emplace(options.run.out);
  if (speaks) remove_statuses(options.run.out, launch ? launch->ranks().size() : 0);
  RunStart run = open_run_start(options, Verb::train);
  if (speaks)
    for (const std::string& note : run.notes) show(out, note + "\n");
  if (launch) check_facts(facts_of_extent(options, run), launch->ranks());
  const auto done = [&] {
    return run.checkpoint && is_done(options, *run.checkpoint, speaks ? out : nullptr);
  };
  if (options.batch.epochs == 0 && done()) return ExitCode::done;
  const auto samples = open_samples(options, text_directory(run), run.source.config);
  if (speaks && samples)
    for (const std::string& note : samples->notes) show(out, note + "\n");
  std::vector<std::string> notes;
  const PreparedData prepared =
      prepare_data(options, Verb::train, text_directory(run), run.source.config.vocabulary, notes);
  for (const std::string& note : notes)
    if (speaks) show(out, note + "\n");
  RunData data = open_run_data(options, prepared, run.source.config);
  if (options.batch.epochs > 0) {
    options.batch.steps = steps_of_epochs(options, *data.train);
    if (done()) return ExitCode::done;
  }
  if (run.checkpoint) check_same_data(run.checkpoint->state(), *data.train);
  if (speaks && !prepared.ends_note.empty()) show(out, prepared.ends_note + "\n");
  Start start{launch,          directory,     std::move(run),
              std::move(data), prepared.ends, with_ends(samples, prepared.ends)};
  if (launch) return train_rank(options, start, launch->ranks(), out);
  if (options.ranks.count == 1) return train_rank(options, start, {}, out);
  ExitCode code = ExitCode::done;
  const auto rank = [&](const Ranks& ranks) {
    if (options.ranks.timeout) ranks.set_patience(*options.ranks.timeout);
    const ExitCode of_rank = train_rank(options, start, ranks, out);
    if (ranks.is_first()) code = of_rank;
  };
  run_in_process(static_cast<int>(options.ranks.count), rank,
                 [](const std::exception& error) { std::_Exit(report_error(error)); });
  return code;
}

}  // namespace

ExitCode run_train(Options options, std::FILE* out) {
  const std::unique_ptr<Launch> launch = open_launch(options.run.out, options.ranks.timeout);
  options.ranks.launched = launch != nullptr;
  if (launch) options.ranks.count = launch->ranks().size();
  if (!launch) return train_process(std::move(options), nullptr, nullptr, out);
  return launch->run([&](RunDirectory* directory) {
    check_same_program(launch->ranks());
    if (options.ranks.gpus > 1)
      throw Error(ExitCode::usage, "A launcher started several ranks, and --gpus asks for more in each.",
                  "Leave out --gpus, and let the launcher start one rank a GPU.");
    return train_process(options, launch.get(), directory, out);
  });
}

}  // namespace sluice
