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
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  return {sorted.size(), sorted.front(), sorted[sorted.size() / 8], sorted[sorted.size() / 2], sorted.back()};
}

bool enough(const std::vector<double>& seconds, double all, const Repeats& repeats) {
  if (seconds.size() < repeats.rounds_at_least || all < repeats.seconds_at_least) return false;
  return all >= repeats.seconds_at_most || !disagree(rounds_of(seconds));
}

std::vector<RatedRounds> doubtful(std::vector<RatedRounds> all) {
  std::erase_if(all, [](const RatedRounds& r) { return !disagree(r.rounds); });
  return all;
}

std::string doubts_text(const std::vector<RatedRounds>& doubts) {
  if (doubts.empty())
    return fmt::format("rounds: no median is more than {:.0f} % above the fastest eighth\n",
                       100 * kSpreadMost);
  std::string text = fmt::format(
      "doubtful: the rounds of {} disagree, although these were timed again. Something else may have used "
      "the "
      "machine meanwhile.\n",
      doubts.size() == 1 ? "a rate" : std::to_string(doubts.size()) + " rates");
  for (const RatedRounds& d : doubts)
    text += fmt::format("  {}: {} rounds took {} to {}; their median is {:.0f} % above the fastest eighth\n",
                        d.rate, d.rounds.count, readable_seconds(d.rounds.fastest),
                        readable_seconds(d.rounds.slowest), 100 * d.rounds.spread());
  return text +
         "  Predictions with these rates may be off by as much. Run bench again when nothing else runs.\n";
}

}  // namespace sluice
