#include "tools/command/stop_signals.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>

namespace sluice {

namespace {

std::atomic<bool> terminated{false}, something_to_save{false}, stop_requested{false};
std::atomic<bool> is_watched{false};  // another thread polls signalled_end()
std::atomic<bool> insisted{false};    // a second signal came
std::atomic<bool> ends_early{false};  // signals are handled although there is nothing to save

volatile std::sig_atomic_t first_signal_at = 0;  // seconds, truncated
struct Words {
  char text[512];
  size_t bytes = 0;
  void set(const std::string& words) { bytes = words.copy(text, sizeof text); }
  void print() const { (void)!write(STDERR_FILENO, text, bytes); }
};
Words answer_begin, answer_end;                      // written before something_to_save is set
std::atomic<const StopForecast*> forecast{nullptr};  // said between answer_begin and answer_end
Words early_answer;                                  // with early_code, written before ends_early is set
int early_code = 0;

constexpr int kEnding[] = {SIGINT, SIGTERM, SIGHUP}, kHandled[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

// Only calls functions that a signal handler may call. A launcher's SIGTERM is not answered: it may mean that
// another rank has died.
void answer(int number) {
  if ((number != SIGUSR1 && is_watched) || answer_begin.bytes == 0) return;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);  // the clock of steady_seconds()
  answer_begin.print();
  if (const StopForecast* const known = forecast) {
    Words sentence;
    sentence.bytes = known->describe(
        static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec), sentence.text);
    sentence.print();
  }
  answer_end.print();
}

// Ends the process when the handler returns, or at once. The first process of a container has no default
// actions: a signal that it does not handle is dropped.
void die(int number) {
  if (getpid() == 1) _exit(128 + number);  // as shells count
  std::signal(number, SIG_DFL);
  std::raise(number);
}

// True for the first request.
bool request_stop(int number) {
  if (stop_requested.exchange(true)) return false;
  if (something_to_save) answer(number);
  return true;
}

extern "C" void on_signal(int number) {
  const int error = errno;
  if (ends_early && !something_to_save) {
    early_answer.print();
    if (early_code != 0) _exit(early_code);
    return die(number);
  }
  if (number == SIGUSR1) {
    request_stop(number);
    errno = error;
    return;
  }
  terminated = true;
  if (!something_to_save) return;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const bool is_first = request_stop(number);
  errno = error;
  if (is_first || first_signal_at == 0) {
    first_signal_at = static_cast<std::sig_atomic_t>(now.tv_sec);
  } else if (static_cast<std::sig_atomic_t>(now.tv_sec) - first_signal_at > 1) {
    insisted = true;
    if (is_watched) return;
    die(number);
  }
}

// If SIGHUP is ignored, it stays ignored.
void handle(int number) {
  struct sigaction before {};
  if (number == SIGHUP && sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) return;
  std::signal(number, on_signal);
}

}  // namespace

void end_on_early_signals(ExitCode code, const std::string& words) {
  early_code = static_cast<int>(code);
  early_answer.set(words);
  ends_early = true;
  for (const int number : kHandled) handle(number);
}

void forecast_stops(const StopForecast* known) { forecast = known; }

void stop_on_signals(const std::string& begin, const std::string& end) {
  answer_begin.set(begin);
  answer_end.set(end);
  something_to_save = true;
  for (const int number : kEnding) handle(number);
  std::signal(SIGUSR1, on_signal);
  if (stop_requested)
    answer(SIGUSR1);  // asked for before there was an answer
  else if (terminated)
    request_stop(SIGTERM);
}

void end_on_signals() {
  something_to_save = false;
  if (ends_early) return;
  for (const int number : kHandled) {
    struct sigaction now {};
    if (sigaction(number, nullptr, &now) == 0 && now.sa_handler == on_signal) std::signal(number, SIG_DFL);
  }
}

const std::atomic<bool>& stop_flag() { return stop_requested; }

void note_stop_requests() { std::signal(SIGUSR1, on_signal); }

void note_terminations() {
  is_watched = true;
  for (const int number : kEnding) handle(number);
}

bool was_terminated() { return terminated; }

std::optional<SignalledEnd> signalled_end() {
  if (!is_watched) return std::nullopt;
  if (insisted)
    return SignalledEnd{
        "A second signal came during the stop.",
        "--resume auto goes on from the last checkpoint, or starts anew where there is none."};
  if (terminated && !something_to_save)
    return SignalledEnd{"A signal came before the first step, when there was nothing to save.",
                        "Start it again in the same way."};
  return std::nullopt;
}

}  // namespace sluice
