#include "engine/profile/profile.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/units.h"
#include "engine/profile/what_if.h"
#include "engine/run/start/budgets.h"
#include "engine/run/start/devices.h"
#include "engine/run/start/rank_setup.h"
#include "engine/run/start/run_data.h"
#include "engine/run/start/run_start.h"
#include "engine/run/start/session_start.h"
#include "engine/run/start/text_start.h"
#include "tools/command/progress.h"
#include "tools/command/report_error.h"
#include "tools/command/run_verb.h"
#include "tools/command/screen.h"
#include "tools/command/stop_signals.h"
#include "tools/command/version.h"
#include "tools/plan/advice.h"
#include "tools/plan/report.h"
#include "tools/prepare/child.h"
#include "tools/profile/facts.h"
#include "tools/profile/page.h"
#include "tools/profile/text.h"
#include "tools/profile/trace.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

Error directory_error(const std::string& out, const std::string& why) {
  return Error(ExitCode::usage, "--out " + printable(out) + " " + why,
               "Name a directory that is new, or empty.");
}

// Throws if `out` exists and is no empty directory. Called before anything is run, so that what is measured
// can be written.
void check_directory(const std::string& out) {
  if (!fs::exists(out)) return;
  if (!fs::is_directory(out)) throw directory_error(out, "is no directory.");
  if (!fs::is_empty(out)) throw directory_error(out, "holds something already.");
}

// Makes the directory and tries to write a file into it. If the file cannot be written, an empty directory
// stays.
void make_directory(const std::string& out) {
  std::error_code error;
  fs::create_directories(out, error);
  if (error)
    throw Error(ExitCode::environment, "Cannot make " + printable(out) + ": " + error.message() + ".",
                "Name another --out, or mend what stands in the way.");
  const OutputFile trial((fs::path(out) / "profile.json").string());
}

void write_file(const std::string& directory, const char* name, const std::string& text) {
  OutputFile file((fs::path(directory) / name).string());
  file.write(text.data(), text.size());
  file.commit();
}

// The options of the training command that goes on from `start`, with the steps of the profile and without
// checkpoints.
Options command_options(Options options, const RunStart& start) {
  const int64_t done = start.checkpoint ? start.checkpoint->state().step : 0;
  options.batch.steps = done + options.profile.steps;
  options.run.checkpoint_every = {};
  return options;
}

// The steps that ran, and how the run ended.
struct Outcome {
  ExitCode code = ExitCode::done;
  std::optional<Error> error;
  std::vector<StepMetrics> steps;
};

// What all ranks share at the start.
struct Start {
  RunStart run;
  RunData data;
  std::shared_ptr<const SamplePrompts> samples;  // of the run; the plan allows for them, but none are written
  Origin origin;
};

Origin origin_here() {
  char host_name[HOST_NAME_MAX + 1];
  CHECK(gethostname(host_name, sizeof host_name) == 0, "a host name is longer than HOST_NAME_MAX");
  return {fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))), host_name, kVersion};
}

Recorder make_recorder(const Plan& plan, int64_t steps) {
  std::vector<BodyId> kinds;
  for (const BodyIds& phase : plan.lowering.phases)
    std::ranges::copy(phase.of_training(), std::back_inserter(kinds));
  const size_t others = 2 * plan.lowering.phases.size();  // a phase may end with a drain, and unlock the next
  return Recorder(plan.program, kinds, static_cast<size_t>(steps) * plan.lowering.waves + others);
}

// One rank of the run. The first rank records, prints and writes the report; the others only train.
class Profiler {
 public:
  Profiler(const Options& options, Start& start, const Ranks& ranks, std::FILE* out)
      : start_(start),
        rank_(options, start.run.source, data_use(options, start.run, start.data), start.samples, ranks,
              say_to(out)),
        out_(out) {}

  ExitCode run() {
    Options& options = rank_.options();
    const bool first = rank_.ranks().is_first();
    SessionOptions session_choices = session_options(options, rank_.budgets().threads);
    session_choices.ranks = rank_.ranks();
    auto started = start_session(
        rank_.device(), rank_.budgets(), session_choices, [&] { return rank_.plan(); },
        [&](const Plan& plan) { check_plan(plan); });
    const Plan& plan = started->plan;
    options.batch.micro_batch = plan.model.micro_batch;
    rank_.ranks().set_patience(rank_timeout(options, plan));
    std::optional<Recorder> recorder;
    if (first) {
      make_directory(options.profile.out);
      recorder.emplace(make_recorder(plan, options.profile.steps));
      show(out_, "  records of the steps: " + format_size(recorder->bytes()) + " beside --host-mem\n");
    }
    const Outcome outcome = train(started->session, first ? &*recorder : nullptr);
    if (first) {
      const Plan copy = plan;
      started.reset();  // planning for other budgets needs memory, too
      report_end(copy, *recorder, outcome);
    }
    if (outcome.error) throw *outcome.error;
    return outcome.code;
  }

 private:
  void check_plan(const Plan& plan) {
    if (rank_.ranks().is_first()) {
      show(out_, plan_text(plan, rank_.budgets(), rank_.options()));
      check_start(start_.run, plan.model);  // ranks share it
    }
    rank_.ranks().barrier();
  }

  // `recorder`: of the first rank, else nullptr.
  Outcome train(Session& session, Recorder* recorder) {
    const Options& options = rank_.options();
    Workers workers(rank_.budgets().threads);
    load_start(start_.run, options.numbers.seed, session, workers);
    rank_.ranks().barrier();
    if (rank_.ranks().is_first())
      stop_on_signals("sluice: stopping after the step under way; then the report is written.\n");
    rank_.ranks().barrier();
    const std::atomic<bool>& stop = stop_flag();
    Outcome outcome;
    std::optional<Progress> progress;
    TrainEvents events;
    events.recorder = recorder;
    if (recorder) {
      progress.emplace(progress_of(session.plan().program, options.batch.steps, out_));
      events.step = [&](const StepMetrics& m) {
        outcome.steps.push_back(m);
        progress->step(m, steady_seconds());
      };
    }
    TrainData view = start_.data.view();
    view.validation = nullptr;
    try {
      Trainer trainer(session, options, view, state_of(start_.run, options, *start_.data.train, 0), stop,
                      events);
      if (trainer.run(AtEnd::nothing).stopped) outcome.code = ExitCode::stopped;
    } catch (const std::exception& e) {
      rank_.ranks().abort("Rank " + std::to_string(rank_.ranks().rank()) + " failed: " + e.what());
      outcome.error = as_error(e);
      outcome.code = outcome.error->code();
    }
    if (progress) progress->finish();
    return outcome;
  }

  // An error of the run is thrown, even if the report fails too.
  void report_end(const Plan& plan, const Recorder& recorder, const Outcome& outcome) {
    try {
      report(plan, recorder, outcome);
    } catch (const std::exception& e) {
      if (!outcome.error) throw;
      show(out_, std::string("The report is not whole: ") + as_error(e).what() + "\n");
    }
  }

  void report(const Plan& plan, const Recorder& recorder, const Outcome& outcome) {
    const Options& options = rank_.options();
    const Profile profile = make_profile(plan, recorder);
    ProfiledRun run{options,       rank_.budgets(), plan,         recorder,     profile,
                    outcome.steps, start_.origin,   outcome.code, outcome.error};
    nlohmann::ordered_json facts = profile_facts(run);
    const std::string& out = options.profile.out;
    show(out_, profile_headline(facts));
    write_facts(facts, run);
    write_file(out, "trace.json", profile_trace(run));
    const std::string page = printable((fs::path(out) / "report.html").string());
    show(out_, profile_stalls(facts));
    end_on_signals();
    if (profile.counted > 0 && outcome.code == ExitCode::done && !stop_flag()) {
      show(
          out_,
          page + " is written. Planning for what would be faster; Ctrl-C ends that, and the report stays.\n");
      run.changes = best_changes(amounts_to_try(options, rank_.request(), rank_.budgets()), plan,
                                 [&](const Change& change) { return plan_with(change); });
      facts = profile_facts(run);
      write_facts(facts, run);
    }
    show(out_, profile_changes(facts) + "Open " + page + "\n");
  }

  void write_facts(const nlohmann::ordered_json& facts, const ProfiledRun& run) {
    const std::string& out = rank_.options().profile.out;
    write_file(out, "profile.md", profile_markdown(facts));  // the smallest first: the drive may run full
    write_file(out, "profile.json", json_lines(facts));
    write_file(out, "report.html", profile_page(facts, profile_lanes(run)));
  }

  // The plan for a changed run; none if it does not fit. A new budget changes only the request, since the
  // device is in use.
  std::optional<Plan> plan_with(const Change& change) {
    Options options = rank_.options();
    if (!is_given(options, "micro-batch")) options.batch.micro_batch.reset();
    const bool of_memory = change.kind == Change::Kind::capacity;
    if (!of_memory) type_in(words_of(change, rank_.budgets(), rank_.ranks().size()), options);
    PlanRequest request = rank_.request(options);
    if (of_memory) request.machine.tiers[change.tier].capacity = change.to;
    auto result = make_plan(request);
    return std::holds_alternative<Plan>(result) ? std::optional(std::move(std::get<Plan>(result)))
                                                : std::nullopt;
  }

  Start& start_;
  RankSetup rank_;
  std::FILE* out_;
};

}  // namespace

ExitCode run_profile(Options options, std::FILE* out) {
  check_directory(options.profile.out);
  check_options(options, Verb::profile, manifest_use(options));
  RunStart run = open_run_start(options, Verb::profile);
  for (const std::string& note : run.notes) show(out, note + "\n");
  options = command_options(std::move(options), run);
  std::vector<std::string> notes;
  const PreparedData prepared =
      prepare_data(options, Verb::profile, text_directory(run), run.source.config.vocabulary, notes);
  for (const std::string& note : notes) show(out, note + "\n");
  RunData data = open_run_data(options, prepared, run.source.config);
  if (run.checkpoint) check_same_data(run.checkpoint->state(), *data.train);
  const auto samples = open_samples(options, text_directory(run), run.source.config);
  if (samples)
    for (const std::string& note : samples->notes) show(out, note + "\n");
  Start start{std::move(run), std::move(data), samples, origin_here()};
  if (options.ranks.count == 1) return Profiler(options, start, {}, out).run();
  ExitCode code = ExitCode::done;
  const auto rank = [&](const Ranks& ranks) {
    if (options.ranks.timeout) ranks.set_patience(*options.ranks.timeout);
    const ExitCode of_rank = Profiler(options, start, ranks, out).run();
    if (ranks.is_first()) code = of_rank;
  };
  run_in_process(static_cast<int>(options.ranks.count), rank,
                 [](const std::exception& error) { std::_Exit(report_error(error)); });
  return code;
}

}  // namespace sluice
