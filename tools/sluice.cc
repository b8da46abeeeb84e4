// The sluice command: parse, call one function a verb, report failures in one place.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <exception>
#include <new>

#include "engine/error.h"
#include "tools/command_line.h"
#include "tools/verbs.h"

namespace {

std::atomic<bool> stop_requested{false};

volatile std::sig_atomic_t first_signal_at = 0;  // seconds, truncated

// The first signal asks for a clean end; the second ends at once, and the last checkpoint is intact. Within a second or two they
// count as one: timeout(1) and terminals send theirs to the process and to its group.
extern "C" void on_signal(int number) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (!stop_requested.exchange(true)) {
    first_signal_at = static_cast<std::sig_atomic_t>(now.tv_sec);
  } else if (static_cast<std::sig_atomic_t>(now.tv_sec) - first_signal_at > 1) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

sluice::ExitCode run(const sluice::ParsedCommand& command) {
  switch (command.verb) {
    case sluice::Verb::train: return sluice::run_train(command.options, stop_requested, stdout);
    case sluice::Verb::plan: return sluice::run_plan(command.options, stdout);
    case sluice::Verb::eval: return sluice::run_eval(command.options, stdout);
    case sluice::Verb::export_run: return sluice::run_export(command.options, stdout);
    case sluice::Verb::profile:
    case sluice::Verb::bench:
    case sluice::Verb::doctor: break;  // the parser has said that they are planned
  }
  return sluice::ExitCode::usage;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    const sluice::ParsedCommand command = sluice::parse_command_line(argc, argv);
    if (!command.text.empty()) {
      std::fputs(command.text.c_str(), stdout);
      return 0;
    }
    if (command.verb == sluice::Verb::train) {  // the others have nothing to save
      std::signal(SIGINT, on_signal);
      std::signal(SIGTERM, on_signal);
    }
    return static_cast<int>(run(command));
  } catch (const sluice::Error& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "sluice: %s\n  %s\n", error.what(), error.remedy().c_str());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "sluice: There is not enough memory to start.\n  Give smaller budgets, or free some memory.\n");
    return static_cast<int>(sluice::ExitCode::environment);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sluice: internal error: %s\n", error.what());
    return static_cast<int>(sluice::ExitCode::bug);
  }
}
