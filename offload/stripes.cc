#include "offload/stripes.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/error.h"

namespace sluice {
namespace {

constexpr uint32_t kPeriodMax = 1024;
constexpr double kNearEnough = 1.005;  // rates are not measured more exactly

// Steps 1 and 2 of stripes.h.
std::vector<uint32_t> counts_of(std::span<const double> parts) {
  const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
  std::vector<uint32_t> counts(parts.size(), 1), best;
  double best_stretch = INFINITY;
  for (auto period = static_cast<uint32_t>(parts.size()); period <= kPeriodMax; ++period) {
    double longest = 0, least = INFINITY;
    size_t next = 0;
    for (size_t f = 0; f < parts.size(); ++f) {
      longest = std::max(longest, counts[f] / parts[f]);
      if (const double after = (counts[f] + 1) / parts[f]; after < least) least = after, next = f;
    }
    const double stretch = longest * sum / period;
    if (stretch < best_stretch) best_stretch = stretch, best = counts;
    if (stretch <= kNearEnough) break;
    ++counts[next];
  }
  return best;
}

}  // namespace

Stripes::Stripes(std::span<const double> parts) {
  CHECK(!parts.empty() && parts.size() <= kStripeFilesMax, "number of files with stripes");
  for (const double part : parts) CHECK(std::isfinite(part) && part > 0, "part of a file");
  counts_ = counts_of(parts);
  const uint32_t period = std::accumulate(counts_.begin(), counts_.end(), 0u);
  std::vector<int64_t> credit(files());
  std::vector<uint32_t> taken(files());
  for (uint32_t stripe = 0; stripe < period; ++stripe) {
    for (size_t f = 0; f < files(); ++f) credit[f] += counts_[f];
    const auto most = std::max_element(credit.begin(), credit.end());  // the first of equals
    const auto file = static_cast<uint32_t>(most - credit.begin());
    *most -= period;
    pattern_.push_back(file);
    before_.push_back(taken[file]++);
  }
  CHECK(taken == counts_, "stripes of a period");
}

Stripes::Place Stripes::locate(uint64_t stripe) const {
  const uint64_t period = stripe / pattern_.size(), at = stripe % pattern_.size();
  const uint32_t file = pattern_[at];
  return {file, period * counts_[file] + before_[at]};
}

uint64_t Stripes::held(uint32_t file, uint64_t stripes) const {
  const uint64_t period = stripes / pattern_.size();
  const auto rest = static_cast<std::ptrdiff_t>(stripes % pattern_.size());
  return period * counts_[file] +
         static_cast<uint64_t>(std::count(pattern_.begin(), pattern_.begin() + rest, file));
}

}  // namespace sluice
