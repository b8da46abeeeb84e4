// Which rates of `sluice bench` are doubtful: those whose rounds disagree.
//
// Rounds are times of the same work. Whatever else a machine does makes a round longer, never shorter. If at
// least half of the rounds were left alone, their median is close to what the fastest eighth took. A median
// far above that means that most rounds were disturbed, and that the rate is too low. Of up to seven rounds,
// the fastest eighth is the fastest round. Of many rounds, a single fast one is no proof: threads that happen
// to wake early can make one. What disturbs all rounds alike shows nowhere. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace sluice {

double median(std::vector<double> values);  // at least one; of an even number, the upper of the middle two

struct Rounds {
  size_t count = 0;
  double fastest = 0, eighth = 0, median = 0, slowest = 0;  // seconds; an eighth of all took at most `eighth`
  double spread() const { return median / eighth - 1; }
};
Rounds rounds_of(const std::vector<double>& seconds);  // at least one, all positive

struct TimedRate {
  double per_second = 0;  // by the median
  Rounds rounds;
};

// Predictions err by some percent where nothing disturbed `bench`. This is several times that.
constexpr double kSpreadMost = 0.2;
inline bool disagree(const Rounds& rounds) { return rounds.spread() > kSpreadMost; }

// Work is timed until it has taken `seconds_at_least`, in `rounds_at_least` rounds or more. If the rounds
// disagree then, it is timed further until they agree, or until it has taken `seconds_at_most`.
struct Repeats {
  double seconds_at_least = 0, seconds_at_most = 0;  // all rounds together
  size_t rounds_at_least = 3;
};
// `all`: the sum of the seconds.
bool enough(const std::vector<double>& seconds, double all, const Repeats& repeats);

// A rate, such as "linear in bf16", and the rounds that it comes from. For a rate that comes from several
// times: the rounds that disagree most.
struct RatedRounds {
  std::string rate;
  Rounds rounds;
};
std::vector<RatedRounds> doubtful(std::vector<RatedRounds> all);

// What `bench` prints at the end: a line for each doubtful rate, and what to do; or a line that says that no
// rate is doubtful.
std::string doubts_text(const std::vector<RatedRounds>& doubts);

}  // namespace sluice
