// The sluice command: parse, call one function a verb, report failures in one place.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <new>

#include "engine/error.h"
#include "tools/command_line.h"
#include "tools/verbs.h"

namespace {

std::atomic<bool> stop_requested{false};

volatile std::sig_atomic_t first_signal_at = 0;  // seconds, truncated

// The first signal asks for a clean end; the second ends at once, and the last checkpoint is intact. Within a
// second or two they count as one: timeout(1) and terminals send theirs to the process and to its group.
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
    case sluice::Verb::train:
      return sluice::run_train(command.options, stop_requested, stdout);
    case sluice::Verb::plan:
      return sluice::run_plan(command.options, stdout);
    case sluice::Verb::eval:
      return sluice::run_eval(command.options, stdout);
    case sluice::Verb::export_run:
      return sluice::run_export(command.options, stdout);
    case sluice::Verb::profile:
    case sluice::Verb::bench:
    case sluice::Verb::doctor:
      break;  // the parser has said that they are planned
  }
  return sluice::ExitCode::usage;
}

// A file opened on a closed standard descriptor would receive what is printed.
void fill_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) < 0)
      std::_Exit(static_cast<int>(sluice::ExitCode::environment));
}

// Facts that were asked for and did not arrive are a failure, unless the reader has seen enough (`| head`).
sluice::ExitCode finish_output(sluice::ExitCode code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  if (poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0) return code;
  throw sluice::Error(sluice::ExitCode::io, "The output could not be written whole.",
                      "Free some space where it goes, or write it elsewhere.");
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_descriptors();
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is an error of the write, as a full disk is
  try {
    const sluice::ParsedCommand command = sluice::parse_command_line(argc, argv);
    if (!command.text.empty()) {
      std::fputs(command.text.c_str(), stdout);
      return static_cast<int>(finish_output(sluice::ExitCode::done));
    }
    if (command.verb == sluice::Verb::train) {  // the others have nothing to save
      std::signal(SIGINT, on_signal);
      std::signal(SIGTERM, on_signal);
    }
    const sluice::ExitCode code = run(command);
    // What training prints is news; its results are in --out.
    return static_cast<int>(command.verb == sluice::Verb::train ? code : finish_output(code));
  } catch (const sluice::Error& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "sluice: %s\n  %s\n", error.what(), error.remedy().c_str());
    return static_cast<int>(error.code());
  } catch (const std::filesystem::filesystem_error& error) {
    std::fprintf(stderr, "sluice: %s: %s.\n  Check this path and the permissions on the way to it.\n",
                 sluice::printable(error.path1().string()).c_str(), error.code().message().c_str());
    return static_cast<int>(sluice::ExitCode::environment);
  } catch (const std::bad_alloc&) {
    std::fputs("sluice: There is not enough memory to start.\n  Give smaller budgets, or free some memory.\n",
               stderr);
    return static_cast<int>(sluice::ExitCode::environment);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sluice: internal error: %s\n", error.what());
    return static_cast<int>(sluice::ExitCode::bug);
  }
}
