#include "tools/bench/rounds.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/units.h"

namespace sluice {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Rounds rounds_of(const std::vector<double>& seconds) {
  const auto [fastest, slowest] = std::minmax_element(seconds.begin(), seconds.end());
  return {seconds.size(), *fastest, median(seconds), *slowest};
}

std::vector<RatedRounds> doubtful(std::vector<RatedRounds> all) {
  std::erase_if(all, [](const RatedRounds& r) { return !disagree(r.rounds); });
  return all;
}

std::string doubts_text(const std::vector<RatedRounds>& doubts) {
  if (doubts.empty())
    return fmt::format("rounds: no median is more than {:.0f} % above the fastest round\n",
                       100 * kSpreadMost);
  std::string text = fmt::format(
      "doubtful: the rounds of {} disagree, although these were timed again. So something else used the "
      "machine meanwhile.\n",
      doubts.size() == 1 ? "a rate" : std::to_string(doubts.size()) + " rates");
  for (const RatedRounds& d : doubts)
    text += fmt::format("  {}: {} rounds took {} to {}; their median is {:.0f} % above the fastest\n", d.rate,
                        d.rounds.count, readable_seconds(d.rounds.fastest),
                        readable_seconds(d.rounds.slowest), 100 * d.rounds.spread());
  return text +
         "  Predictions with these rates may be off by as much. Run bench again when nothing else runs.\n";
}

}  // namespace sluice
