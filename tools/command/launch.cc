#include "tools/command/launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/shared_library.h"
#include "engine/run/checkpoint/directory.h"
#include "engine/run/start/run_directory.h"
#include "gpu/ranks/waiting.h"
#include "tools/command/launchers.h"
#include "tools/command/rank_status.h"
#include "tools/command/report_error.h"
#include "tools/command/stop_signals.h"
#include "tools/command/verbs.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

// When one rank ends, a launcher ends the others. The launcher's exit code is that of the first rank that
// ended.
// - So a rank that fails waits kGrace before it ends. Meanwhile the others hear why and write their statuses,
//   which takes 260 ms at most.
// - A rank that ends because of another waits longer, so that the failed rank ends first. The rank that
//   has found that another hangs waits kFinderGrace.
// - All others wait kFinderGrace and kLauncherGrace, and leave it to the launcher to end them. mpirun does so
//   two seconds after the first has ended, or at once if a second one ends before that. In the latter case, a
//   rank that was stopped and has just been continued could not write its status.
constexpr auto kGrace = std::chrono::milliseconds(400), kFinderGrace = std::chrono::milliseconds(1300);
constexpr auto kLauncherGrace = std::chrono::milliseconds(2200);  // after kFinderGrace
constexpr auto kLook = std::chrono::milliseconds(50);
constexpr double kFinishSeconds = 60;
constexpr const char* kInstalledModules = "../lib/sluice";  // from the command's folder: cmake/install.cmake

// Writes a rank's status for a start that may still be refused, unless another run holds the directory.
void write_unless_held(const std::string& out_directory, int rank, const std::string& words) {
  if (!is_locked(out_directory)) write_status(out_directory, rank, words);
}

[[noreturn]] void leave(const Error& error, bool speaks, std::chrono::milliseconds grace) {
  if (speaks) report_error(error);
  std::this_thread::sleep_for(grace);
  std::_Exit(static_cast<int>(error.code()));
}

// Refuses the start before MPI is open. No rank can print for all then, so the first rank of each machine
// prints.
[[noreturn]] void refuse(const LauncherVariables& launcher, const std::string& out_directory,
                         const Error& error) {
  write_unless_held(out_directory, *launcher_number(launcher.rank), status(error.code(), error.what()));
  if (*launcher_number(launcher.rank_here) == 0) throw error;
  std::this_thread::sleep_for(kGrace);  // else the launcher might end the first one before it has printed
  throw Error(error.code(), "", "");
}

// The error for processes that were started together but cannot find each other.
Error without_mpi(const LauncherVariables& launcher) {
  const std::string count = std::getenv(launcher.size);
  if (std::string_view(launcher.size) == kSlurmStep.size)
    return {ExitCode::environment,
            "srun has started " + count + " processes, but without MPI, so each of them would train alone.",
            "Add --mpi=pmix to srun (srun --mpi=list says what this Slurm has), or write mpirun -np " +
                count + " in place of srun."};
  return {ExitCode::environment,
          "A launcher has started " + count +
              " processes that Open MPI knows nothing of, so each of them would train alone.",
          "Start them with Open MPI's mpirun -np " + count + "."};
}

// MPI waits without a time limit for a rank that does not come, for example one that was stopped. So another
// thread waits here until MPI is `done`. False: MPI was not done within `patience` seconds.
bool is_in_time(const std::stop_token& done, double patience) {
  WatchedTime waited(steady_seconds());
  for (; waited.seconds() < patience; waited.look(steady_seconds())) {
    if (done.stop_requested()) return true;
    std::this_thread::sleep_for(kLook);
  }
  return false;
}

void end_if_late(const std::stop_token& open, const LauncherVariables& launcher,
                 const std::string& out_directory, double patience) {
  if (is_in_time(open, patience)) return;
  const int rank = *launcher_number(launcher.rank);
  const Error late(
      ExitCode::rank_lost,
      fmt::format("Rank {} has started, but not all {} ranks started within {:.3g} s.", rank,
                  *launcher_number(launcher.size), patience),
      "Find the rank that has not printed this, and what holds up its process or machine; or give more "
      "time with --rank-timeout.");
  write_unless_held(out_directory, rank, status(late.code(), late.what()));
  if (rank != 0) std::this_thread::sleep_for(kFinderGrace);  // rank 0 speaks first, if it has started
  leave(late, true, kGrace);
}

}  // namespace

struct Launch::Ending {
  const std::string out_directory;
  Ranks ranks{};  // set once MPI is open, and before signals are noted
  std::atomic<bool> begun{false};
  std::atomic<bool> holds{false};       // the first rank has the directory's lock
  std::atomic<bool> goes_first{false};  // this rank has found that another hangs, and ends before the rest

  void write(int rank, const std::string& words) {
    if (holds)
      write_status(out_directory, rank, words);
    else
      write_unless_held(out_directory, rank, words);
  }

  // Returns on the first thread that calls. Every other thread that calls waits for the process to end.
  void begin() {
    if (begun.exchange(true))
      for (;;) pause();
  }

  // Called by the thread that has returned from begin(). Tells the other ranks.
  [[noreturn]] void end(const Error& error, bool because_of_another) {
    const int rank = ranks.rank();
    ranks.abort("Rank " + std::to_string(rank) + " ended: " + error.what() + " " + error.remedy());
    if (because_of_another) end_after_another(rank, error);
    write(rank, status(error.code(), error.what()));
    leave(error, ranks.is_first(), kGrace);
  }
  [[noreturn]] void end_after_another(int rank, const Error& error) {
    const std::string words = status(error.code(), error.what());
    const bool is_said = has_status(out_directory, rank, words);  // by the rank that found this one missing
    write(rank, words);
    if (rank == 0 && !is_said) report_error(error);
    std::this_thread::sleep_for(kFinderGrace);
    if (!goes_first) std::this_thread::sleep_for(kLauncherGrace);
    std::_Exit(static_cast<int>(error.code()));
  }

  // A thread of the MPI module calls the following functions.

  // Also writes the status of the missing rank, which may never go on, or may be ended as soon as it goes on.
  // If that rank writes a status itself, for example behind a cut network, its status stays.
  void found(int rank, int missing, const std::string& reason) {
    goes_first = true;
    if (missing == kNobody || !holds || !has_status(out_directory, missing, no_word())) return;
    const Error error = lost_error(reason);
    write_status_for(out_directory, missing, status(error.code(), reason), rank);
    if (missing == 0) report_error(error);
  }
  void abandon(int rank, const std::string& reason) {
    if (begun.exchange(true)) return;
    end_after_another(rank, lost_error(reason));
  }
  void end_if_signalled() {
    const std::optional<SignalledEnd> signalled = signalled_end();
    if (!signalled || begun.exchange(true)) return;
    end(Error(ExitCode::rank_lost, signalled->why, signalled->remedy), false);
  }
};

Launch::Launch(MpiRanks& mpi, std::shared_ptr<Ending> ending) : mpi_(mpi), ending_(std::move(ending)) {}

const Ranks& Launch::ranks() const { return ending_->ranks; }

void Launch::hold() const { ending_->holds = true; }

void Launch::note_start() const { ending_->write(ranks().rank(), no_word()); }

ExitCode Launch::run(const std::function<ExitCode(RunDirectory*)>& work) const {
  try {
    std::optional<RunDirectory> directory;
    if (ranks().is_first()) directory.emplace(ending_->out_directory);
    if (ranks().all(int{directory && directory->is_locked()}).front()) hold();
    note_start();  // replaces the status of an earlier run
    const ExitCode code = work(directory ? &*directory : nullptr);
    ranks().note("at the end");
    ranks().barrier();
    ending_->begin();
    ending_->write(ranks().rank(), status(code, ""));
    const std::jthread deadline([code](const std::stop_token& finished) {
      if (!is_in_time(finished, kFinishSeconds)) std::_Exit(static_cast<int>(code));  // all is written
    });
    mpi_.finish();
    return code;
  } catch (const std::exception& e) {
    end(e);
  }
}

void Launch::end(const std::exception& why) const {
  const Error error = as_error(why);
  ending_->begin();
  ending_->end(error, error.code() == ExitCode::rank_lost);
}

void check_alone(Verb verb) {
  for (const LauncherVariables& launcher : kLaunchers)
    if (has_started_several(launcher))
      refuse(launcher, "",
             Error(ExitCode::usage,
                   fmt::format("`sluice {}` runs in one process, and a launcher has started {}.",
                               verb_name(verb), std::getenv(launcher.size)),
                   "Start it without mpirun, srun or torchrun."));
}

std::unique_ptr<Launch> open_launch(const std::string& out_directory, std::optional<double> timeout) {
  const LauncherVariables* const launcher = mpi_launcher();
  if (!launcher && has_started_several(kTorchrun))
    refuse(kTorchrun, out_directory,
           Error(ExitCode::usage,
                 "torchrun has started " + std::string(std::getenv(kTorchrun.size)) +
                     " ranks, and it starts no MPI, by which they would find each other.",
                 "Start them with mpirun -np " + std::string(std::getenv(kTorchrun.size)) +
                     " sluice ..., or train on one machine with sluice train --gpus N."));
  if (!launcher) return nullptr;
  const bool is_srun = std::string_view(launcher->size) == kSlurmStep.size;
  if (is_srun && std::ranges::none_of(kPmiVariables, [](const char* name) { return std::getenv(name); }))
    refuse(*launcher, out_directory, without_mpi(*launcher));
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  fs::path path = folder / kMpiModule;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) path = folder / kInstalledModules / kMpiModule;
  if (!fs::exists(path, ignored))
    refuse(*launcher, out_directory,
           Error(ExitCode::environment,
                 fmt::format("A launcher started several ranks, but {} is neither beside the command nor "
                             "in {}.",
                             kMpiModule, kInstalledModules),
                 "Build both (tools/build.sh local sluice), or copy it to where the command is."));
  SharedLibrary module(path.string());
  OpenMpi* open = nullptr;
  module.find(open, kMpiEntry);
  if (!module.failure().empty())
    refuse(*launcher, out_directory,
           Error(ExitCode::environment,
                 "A launcher started several ranks, but MPI cannot be loaded: " + module.failure() + ".",
                 "Install Open MPI (apt-get install openmpi-bin), or start without a launcher."));
  module.keep_open();
  const auto ending = std::make_shared<Launch::Ending>(out_directory);
  MpiHooks hooks;
  hooks.terminated = was_terminated;
  hooks.unharmed = [ending] { ending->end_if_signalled(); };
  hooks.found = [ending](int rank, int missing, const std::string& reason) {
    ending->found(rank, missing, reason);
  };
  hooks.abandon = [ending](int rank, const std::string& reason) { ending->abandon(rank, reason); };
  note_stop_requests();
  const double patience = timeout.value_or(kPatienceAtStart);
  std::jthread deadline(end_if_late, *launcher, out_directory, patience);
  MpiRanks* const mpi = open(hooks);
  deadline = {};
  if (mpi->lane->size() == 1) refuse(*launcher, out_directory, without_mpi(*launcher));
  ending->ranks = {mpi->lane.get(), mpi->trainer.get(), mpi->local_rank, mpi->local_size, mpi->local_first};
  if (timeout) ending->ranks.set_patience(*timeout);
  note_terminations();
  return std::unique_ptr<Launch>(new Launch(*mpi, ending));
}

void end_if_launched(int argc, const char* const* argv, const Error& why) {
  const std::vector<std::string> words(argv, argv + argc);
  const VerbRow* const row = words.size() >= 2 ? find_verb(words[1]) : nullptr;
  if (!row || !row->on_ranks) return;
  const bool trains = row->verb == Verb::train;  // --out of bench is not a run directory
  std::string out;
  for (size_t i = 2; trains && i < words.size(); ++i) {
    if (words[i] == "--out" && i + 1 < words.size()) out = words[i + 1];
    if (words[i].starts_with("--out=")) out = words[i].substr(6);
  }
  if (const std::unique_ptr<Launch> launch = open_launch(out, std::nullopt))
    launch->run([&](RunDirectory*) -> ExitCode { throw why; });
}

}  // namespace sluice
