#include "tools/command/stop_signals.h"

#include <csignal>
#include <ctime>

namespace sluice {

namespace {

std::atomic<bool> terminated{false}, something_to_save{false}, stop_requested{false};
std::atomic<bool> is_watched{false};  // another thread polls signalled_end()
std::atomic<bool> insisted{false};    // a second signal came

volatile std::sig_atomic_t first_signal_at = 0;  // seconds, truncated

extern "C" void on_signal(int number) {
  if (number == SIGUSR1) {
    stop_requested = true;
    return;
  }
  terminated = true;
  if (!something_to_save) return;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (!stop_requested.exchange(true) || first_signal_at == 0) {
    first_signal_at = static_cast<std::sig_atomic_t>(now.tv_sec);
  } else if (static_cast<std::sig_atomic_t>(now.tv_sec) - first_signal_at > 1) {
    insisted = true;
    if (is_watched) return;
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

void note_stop_requests() { std::signal(SIGUSR1, on_signal); }

void note_terminations() {
  is_watched = true;
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, on_signal);
}

bool was_terminated() { return terminated; }

std::optional<SignalledEnd> signalled_end() {
  if (!is_watched) return std::nullopt;
  if (insisted)
    return SignalledEnd{"A second signal came during the stop.",
                        "The last checkpoint is intact: go on with --resume auto."};
  if (terminated && !something_to_save)
    return SignalledEnd{"A signal came before the first step, when there was nothing to save.",
                        "Start it again in the same way."};
  return std::nullopt;
}

}  // namespace sluice
