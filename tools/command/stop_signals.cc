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

volatile std::sig_atomic_t first_signal_at = 0;  // seconds, truncated
char answer_text[512];                           // written before something_to_save is set
size_t answer_bytes = 0;

constexpr int kEnding[] = {SIGINT, SIGTERM, SIGHUP}, kHandled[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

// Only calls what a signal handler may. A launcher's SIGTERM is not answered: it may mean that another rank
// has died.
void answer(int number) {
  if ((number == SIGUSR1 || !is_watched) && answer_bytes > 0)
    (void)!write(STDERR_FILENO, answer_text, answer_bytes);
}

// True for the first request.
bool request_stop(int number) {
  if (stop_requested.exchange(true)) return false;
  if (something_to_save) answer(number);
  return true;
}

extern "C" void on_signal(int number) {
  const int error = errno;
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
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

// SIGHUP stays ignored where it is.
void handle(int number) {
  struct sigaction before {};
  if (number == SIGHUP && sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) return;
  std::signal(number, on_signal);
}

}  // namespace

void stop_on_signals(const std::string& text) {
  answer_bytes = text.copy(answer_text, sizeof answer_text);
  something_to_save = true;
  for (const int number : kEnding) handle(number);
  std::signal(SIGUSR1, on_signal);
  if (stop_requested)
    answer(SIGUSR1);  // asked for before there was an answer
  else if (terminated)
    request_stop(SIGTERM);
}

void end_on_signals() {
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
