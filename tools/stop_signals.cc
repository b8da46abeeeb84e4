#include "tools/stop_signals.h"

#include <csignal>
#include <ctime>

namespace sluice {

namespace {

std::atomic<bool> terminated{false}, something_to_save{false}, stop_requested{false};

volatile std::sig_atomic_t first_signal_at = 0;  // seconds, truncated

extern "C" void on_signal(int number) {
  if (number == SIGTERM) terminated = true;
  if (!something_to_save) return;
  if (number == SIGUSR1) {
    stop_requested = true;
    return;
  }
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (!stop_requested.exchange(true) || first_signal_at == 0) {
    first_signal_at = static_cast<std::sig_atomic_t>(now.tv_sec);
  } else if (static_cast<std::sig_atomic_t>(now.tv_sec) - first_signal_at > 1) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

}  // namespace

const std::atomic<bool>& stop_on_signals() {
  something_to_save = true;
  for (const int number : {SIGINT, SIGTERM, SIGUSR1}) std::signal(number, on_signal);
  if (terminated) stop_requested = true;
  return stop_requested;
}

void note_terminations() { std::signal(SIGTERM, on_signal); }

bool was_terminated() { return terminated; }

void end_if_nothing_to_save() {
  if (something_to_save) return;
  std::signal(SIGTERM, SIG_DFL);
  std::raise(SIGTERM);
}

}  // namespace sluice
