// Times repeated work. Medians are used, so that a disturbance of the machine does not count.
#pragma once

#include <vector>

#include "engine/base/clock.h"
#include "tools/bench/rounds.h"

namespace sluice {

// Each round is one run of `work`. One run before the rounds is not timed.
template <typename Work>
Rounds time_rounds(const Work& work, const Repeats& repeats) {
  work();
  std::vector<double> seconds;
  for (double all = 0; !enough(seconds, all, repeats); all += seconds.back()) {
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
