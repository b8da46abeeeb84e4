// The sluice command: parse, call one function a verb, report failures in one place.
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "engine/base/error.h"
#include "tools/command/command_line.h"
#include "tools/command/launch.h"
#include "tools/command/launchers.h"
#include "tools/command/report_error.h"
#include "tools/command/run_verb.h"
#include "tools/command/screen.h"
#include "tools/command/stop_signals.h"
#include "tools/command/verbs.h"

namespace {

// Opens /dev/null on each closed standard descriptor. Otherwise the next file to be opened would get the
// descriptor, and receive what is printed.
void fill_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) < 0)
      std::_Exit(static_cast<int>(sluice::ExitCode::environment));
}

// Raises the limit on open files as far as the system lets it: a checkpoint has three to five files of every
// rank that wrote it, and shells often allow 1024. Fewer than 32 are refused: files of libraries, a ring of
// io_uring for each file lane, files of the nvme tier, data and a checkpoint are open at once.
void allow_open_files() {
  constexpr rlim_t kOpenFiles = 32;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlimit raised{limit.rlim_max, limit.rlim_max};
  if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  if (limit.rlim_cur >= kOpenFiles) return;
  throw sluice::Error(sluice::ExitCode::environment,
                      "The limit on open files (ulimit -n) is " + std::to_string(limit.rlim_cur) + ".",
                      "Raise it to " + std::to_string(kOpenFiles) + " at least.");
}

// The limit on stacks is the size of the main thread's stack. It is also the size of every other thread's
// stack, unless a library chooses another size. Stacks that are too small overflow at the start.
void check_stacks() {
  constexpr rlim_t kKib = 1 << 10, kStack = 512 * kKib;  // 256 KiB suffice, 128 do not
  rlimit limit{};
  if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kStack) return;
  throw sluice::Error(sluice::ExitCode::environment,
                      "The limit on stacks (ulimit -s) is " + std::to_string(limit.rlim_cur / kKib) + " KiB.",
                      "Raise it to " + std::to_string(kStack / kKib) + " at least.");
}

// Output that cannot be written whole is a failure, unless the reader closed the pipe (`| head`).
sluice::ExitCode finish_output(sluice::ExitCode code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  if (poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0) return code;
  throw sluice::Error(sluice::ExitCode::io, "The output could not be written whole.",
                      "Free some space where it goes, or write it elsewhere.");
}

// Ranks of a launcher report an error of the command line once, not each for itself.
sluice::ParsedCommand parse(int argc, char** argv) {
  try {
    const sluice::Screen screen = sluice::screen_of(stdout);
    const size_t columns = screen.is_terminal ? screen.columns : sluice::kPageColumns;
    return sluice::parse_command_line(argc, argv, std::min(columns, sluice::kPageColumns));
  } catch (const sluice::Error& error) {
    sluice::end_if_launched(argc, argv, error);
    throw;
  }
}

// Sets how a signal is answered before the verb has anything to save. A training that a launcher has started
// leaves signals to launch.cc.
void answer_early_signals(sluice::Verb verb) {
  if (verb == sluice::Verb::train && !sluice::is_launched())
    sluice::end_on_early_signals(
        sluice::ExitCode::stopped,
        "sluice: stopped before the first step, with nothing to save. Start it again in the same way.\n");
  else if (getpid() == 1)
    sluice::end_on_early_signals(sluice::ExitCode::done, "");
}

int parse_and_run(int argc, char** argv) {
  try {
    const sluice::ParsedCommand command = parse(argc, argv);
    if (!command.text.empty()) {
      std::fputs(command.text.c_str(), stdout);
      return static_cast<int>(finish_output(sluice::ExitCode::done));
    }
    answer_early_signals(command.verb);
    allow_open_files();
    check_stacks();
    const sluice::VerbRow& verb = sluice::verb_row(command.verb);
    if (!verb.on_ranks) sluice::check_alone(command.verb);
    const sluice::ExitCode code = sluice::run_verb(command.verb, command.options, stdout);
    return static_cast<int>(verb.prints_result ? finish_output(code) : code);
  } catch (const std::exception& error) {
    return sluice::report_error(error);
  }
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_descriptors();
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // beyond a limit on file sizes a write fails, as on a full drive
  const int code = parse_and_run(argc, argv);
  std::fflush(nullptr);
  // Destructors of libraries do not run: OpenBLAS would wait for its threads, which retry allocations for
  // ever where ulimit -v leaves no memory.
  std::_Exit(code);
}
