#include "engine/run/profile.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/clock.h"
#include "engine/run/setup.h"
#include "engine/run/training_setup.h"
#include "engine/run/what_if.h"
#include "models/file.h"
#include "tools/plan_report.h"
#include "tools/profile_facts.h"
#include "tools/profile_page.h"
#include "tools/profile_text.h"
#include "tools/profile_trace.h"
#include "tools/progress.h"
#include "tools/report_error.h"
#include "tools/run_start.h"
#include "tools/size.h"
#include "tools/stop_signals.h"
#include "tools/verbs.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

void say(std::FILE* out, const std::string& text) {
  std::fputs(text.c_str(), out);
  std::fflush(out);
}

Error directory_error(const std::string& out, const std::string& why) {
  return Error(ExitCode::usage, "--out " + printable(out) + " " + why,
               "Name a directory that is new, or empty.");
}

// Before anything is run: what is measured shall find its place.
void check_directory(const std::string& out) {
  if (!fs::exists(out)) return;
  if (!fs::is_directory(out)) throw directory_error(out, "is no directory.");
  if (!fs::is_empty(out)) throw directory_error(out, "holds something already.");
}

// Whether files can be written there is tried, not guessed. An empty directory stays if they cannot.
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

// The training command as it goes on from `start`, with steps of the profile and without what it would save.
Options command_options(Options options, const RunStart& start) {
  const int64_t done = start.checkpoint ? start.checkpoint->state().step : 0;
  options.batch.steps = done + options.profile.steps;
  options.run.checkpoint_every = 0;
  return options;
}

// What ran, and how it ended.
struct Outcome {
  ExitCode code = ExitCode::done;
  std::optional<Error> error;
  std::vector<StepMetrics> steps;
};

class Profiler {
 public:
  Profiler(Options options, RunStart start, std::FILE* out)
      : options_(command_options(std::move(options), start)),
        start_(std::move(start)),
        data_(open_run_data(options_, start_.source.config)),
        device_(make_device(options_.memory, resolve_threads(options_.memory))),
        budgets_(resolve_budgets(options_.memory, memory_limits(), true, accelerator_use(*device_))),
        out_(out) {
    if (start_.checkpoint) check_same_data(start_.checkpoint->state(), data_.train);
  }

  ExitCode run() {
    for (const std::string& note : start_.notes) say(out_, note + "\n");
    for (const std::string& note : budgets_.notes) say(out_, note + "\n");
    auto started = start_session(
        *device_, budgets_, session_options(options_, budgets_.threads),
        [&] { return plan_or_throw(request(), budgets_); },
        [&](const Plan& plan) {
          say(out_, plan_text(plan, budgets_, options_));
          check_start(start_, plan.model);
        });
    options_.batch.micro_batch = started->plan.model.micro_batch;
    make_directory(options_.profile.out);
    Recorder recorder = make_recorder(started->plan);
    say(out_, "  records of the steps: " + format_size(recorder.bytes()) + " beside --host-mem\n");
    const Outcome outcome = train(*started, recorder);
    const Plan plan = started->plan;
    started.reset();  // planning for other budgets needs memory, too
    report(plan, recorder, outcome);
    if (outcome.error) throw *outcome.error;
    return outcome.code;
  }

 private:
  // The run's own, micro-batch included, with the budgets as they are now.
  PlanRequest request() const {
    return plan_request(options_, start_.source.config, budgets_, workspaces_of(*device_),
                        data_.validation.has_value());
  }

  Recorder make_recorder(const Plan& plan) const {
    std::vector<BodyId> kinds;
    for (const BodyIds& phase : plan.lowering.phases)
      for (const auto& body : {phase.first, phase.step, phase.drain})
        if (body) kinds.push_back(*body);
    const size_t drains = plan.lowering.phases.size();
    return Recorder(plan.program, kinds, static_cast<size_t>(options_.profile.steps) + drains);
  }

  Outcome train(PlannedSession& started, Recorder& recorder) {
    Session& session = started.session;
    Workers workers(budgets_.threads);
    load_start(start_, options_.numbers.seed, session, workers);
    const std::atomic<bool>& stop = stop_on_signals();
    Outcome outcome;
    std::vector<std::pair<std::string, uint64_t>> tiers;
    for (size_t t = 0; t < started.plan.program.arena_bytes.size(); ++t)
      tiers.emplace_back(started.plan.program.machine.tiers[t].name, started.plan.program.arena_bytes[t]);
    Progress progress(out_, progress_style(out_), options_.batch.steps, tiers);
    TrainEvents events;
    events.recorder = &recorder;
    events.step = [&](const StepMetrics& m) {
      outcome.steps.push_back(m);
      progress.step(m, steady_seconds());
    };
    TrainData view = data_.view();
    view.validation = nullptr;
    try {
      Trainer trainer(session, options_, view, state_of(start_, options_, data_.train), stop, events);
      if (trainer.run(AtEnd::nothing).stopped) outcome.code = ExitCode::stopped;
    } catch (const std::exception& e) {
      outcome.error = as_error(e);
      outcome.code = outcome.error->code();
    }
    progress.finish();
    return outcome;
  }

  void report(const Plan& plan, const Recorder& recorder, const Outcome& outcome) const {
    const Profile profile = make_profile(plan, recorder);
    std::vector<WhatIf> changes;
    if (profile.counted > 0) changes = best_changes(request(), plan, asked_micro_batch());
    const ProfiledRun run{options_,      budgets_, plan,         recorder,     profile,
                          outcome.steps, changes,  outcome.code, outcome.error};
    const nlohmann::ordered_json facts = profile_facts(run);
    const std::string& out = options_.profile.out;
    write_file(out, "profile.json", safe_json(facts, 1) + "\n");
    write_file(out, "profile.md", profile_markdown(facts));
    write_file(out, "trace.json", profile_trace(run));
    write_file(out, "report.html", profile_page(facts, profile_lanes(run)));
    say(out_, profile_summary(facts) + "Open " + printable((fs::path(out) / "report.html").string()) + "\n");
  }

  std::optional<int64_t> asked_micro_batch() const {
    return is_given(options_, "micro-batch") ? options_.batch.micro_batch : std::nullopt;
  }

  Options options_;
  RunStart start_;
  RunData data_;
  std::unique_ptr<Device> device_;
  Budgets budgets_;
  std::FILE* out_;
};

}  // namespace

ExitCode run_profile(Options options, std::FILE* out) {
  check_directory(options.profile.out);
  if (options.ranks.gpus > 1)
    throw Error(ExitCode::usage, "A profile of several ranks is planned, not built yet.",
                "Leave out --gpus.");
  options.ranks.count = 1;
  check_options(options, Verb::profile, !options.run.resume.empty());
  RunStart start = open_run_start(options, Verb::profile);
  return Profiler(std::move(options), std::move(start), out).run();
}

}  // namespace sluice
