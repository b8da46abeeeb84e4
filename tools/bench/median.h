// Timing of work that is repeated: medians, so that a disturbance of the machine does not count.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/clock.h"

namespace sluice {

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Seconds of one run: three are timed at least, and as many as take `seconds_at_least` together. One before
// them is not.
template <typename Work>
double median_seconds(const Work& work, double seconds_at_least) {
  constexpr size_t kRunsAtLeast = 3;
  work();
  std::vector<double> seconds;
  const double start = steady_seconds();
  while (seconds.size() < kRunsAtLeast || steady_seconds() - start < seconds_at_least) {
    const double begin = steady_seconds();
    work();
    seconds.push_back(steady_seconds() - begin);
  }
  return median(std::move(seconds));
}

}  // namespace sluice
