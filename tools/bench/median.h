// Times repeated work. Medians, so that a disturbance of the machine does not count.
#pragma once

#include <vector>

#include "engine/base/clock.h"
#include "tools/bench/rounds.h"

namespace sluice {

// Work is timed until it has taken so many seconds and so many runs. If the runs disagree then, it is timed
// further until they agree, or until it has taken `seconds_at_most`. A run before these is not timed.
struct Repeats {
  double seconds_at_least = 0, seconds_at_most = 0;  // all runs together
  size_t runs_at_least = 3;
};

template <typename Work>
Rounds time_rounds(const Work& work, const Repeats& repeats) {
  work();
  std::vector<double> seconds;
  const double start = steady_seconds();
  const auto elapsed = [&] { return steady_seconds() - start; };
  while (seconds.size() < repeats.runs_at_least || elapsed() < repeats.seconds_at_least ||
         (elapsed() < repeats.seconds_at_most && disagree(rounds_of(seconds)))) {
    const double begin = steady_seconds();
    work();
    seconds.push_back(steady_seconds() - begin);
  }
  return rounds_of(seconds);
}

// Median seconds of one run.
template <typename Work>
double median_seconds(const Work& work, const Repeats& repeats) {
  return time_rounds(work, repeats).median;
}

}  // namespace sluice
