// Times repeated work. Medians, so that a disturbance of the machine does not count.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/base/clock.h"

namespace sluice {

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Work is timed until it has taken so many seconds and so many runs. A run before these is not timed.
struct Repeats {
  double seconds_at_least = 0;  // all runs together
  size_t runs_at_least = 3;
};

// Median seconds of one run.
template <typename Work>
double median_seconds(const Work& work, const Repeats& repeats) {
  work();
  std::vector<double> seconds;
  const double start = steady_seconds();
  while (seconds.size() < repeats.runs_at_least || steady_seconds() - start < repeats.seconds_at_least) {
    const double begin = steady_seconds();
    work();
    seconds.push_back(steady_seconds() - begin);
  }
  return median(std::move(seconds));
}

}  // namespace sluice
