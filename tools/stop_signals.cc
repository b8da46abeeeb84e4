#include "tools/stop_signals.h"

#include <csignal>
#include <ctime>

namespace sluice {

namespace {

std::atomic<bool> stop_requested{false};

volatile std::sig_atomic_t first_signal_at = 0;  // seconds, truncated

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

}  // namespace

const std::atomic<bool>& stop_on_signals() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  return stop_requested;
}

}  // namespace sluice
