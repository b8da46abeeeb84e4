// How the search goes from candidate to candidate: step 3 of search.h.
#include <algorithm>
#include <functional>
#include <set>

#include "engine/plan/search/limit.h"
#include "engine/plan/search/search.h"

namespace sluice {

namespace {

constexpr std::array<uint32_t, 8> kLeads{8, 16, 24, 32, 48, 64, 128, 256};  // in costs of tasks
constexpr uint32_t kLongLead = 128;
constexpr std::array<uint32_t, kAllEighths + 1> kEighths{0, 1, 2, 3, 4, 5, 6, 7, kAllEighths};
constexpr int kDistances[] = {1, -1, 2, -2, 4, -4};

}  // namespace

double Search::explore(uint64_t work) {
  if (!is_feasible()) return kNotFeasible;
  work_left_ = work = std::min(work, repaid_work());
  if (least_seconds_ == 0)
    least_seconds_ = least_step_seconds(request_.machine, request_.rates, model_, request_.lower, segments_);
  if (!request_.recompute && levels_.size() == 1) {
    levels_ = find_levels();
    most_raised_ = layers_ * static_cast<uint32_t>(levels_.size() - 1);
  }
  if (!std::exchange(explored_, true)) {
    weigh_first(request_.placement, 0);
    work = std::min(work, repaid_work());
    work_left_ = std::min(work_left_, work);
    if (best_seconds_ < kNotFeasible) {
      const Candidate first = best_;
      for (const uint32_t backward : backwards_) {
        Candidate c = first;
        c.backward = backward;
        weigh(c);
      }
      std::vector<Candidate> starts = coarse_starts(first);
      if (waves_.size() > 1 && best_seconds_ > kNearLeast * least_seconds_) {
        const uint64_t left = std::exchange(work_left_, work);
        Candidate waves = first;  // with many waves, weights claim first: they move most
        waves.backward = starts.front().backward;
        if (const std::optional<Candidate> other = vary_waves_coarsely(waves)) {
          work_left_ += work / 2;
          starts.push_back(descend(*other, Vary::quantities));
        }
        work_left_ = left;
        starts = best_first(std::move(starts));
      }
      for (size_t i = 0; i < starts.size(); ++i)
        descend(starts[i], Vary::quantities, work_left_ - work_left_ / (starts.size() - i));
    }
    return best_seconds_;
  }
  const bool free_kept = most_raised_ > 0;
  std::vector<Candidate> ruled, starts;
  if (request_.placement == Placement::automatic)
    // The two best rules come first, since the largest models have work for two rules only. They were the
    // best on four machines for qwen3-235b-a22b, whose steps have 60,000 tasks.
    for (const Placement rule :
         {Placement::lowest, Placement::weights_first, Placement::state_first, Placement::highest})
      ruled.push_back(weigh_first(rule, 0));
  // Each shard of state is a buffer, so single buffers move only in a search with the plan's own shards.
  const bool own_shards = search_shard_ == 0 && has_few_buffers();
  const Vary what = own_shards ? Vary::buffers_too : Vary::quantities;
  if (layers_ <= kFewLayers) work_left_ += std::min(request_.search_work / 2, repaid_work());
  if (free_kept)
    for (const Candidate& start : coarse_starts(best_)) descend(start, what);
  descend(best_, what);
  for (const Candidate& rule : ruled) starts.push_back(descend(rule, Vary::kept_and_lead));
  descend(weigh_first(request_.placement, 0), what);
  if (free_kept && own_shards) descend(weigh_first(request_.placement, most_raised_), what);
  if (choices_.free && own_shards)
    for (Candidate& corner : corners()) starts.push_back(std::move(corner));
  for (const Candidate& start : best_first(std::exchange(starts, {}))) descend(start, what);
  if (free_kept)
    for (const KeptLayers kept : kept_choices(best_.kept)) {
      starts.push_back(best_);
      starts.back().kept = kept;
    }
  for (const Candidate& start : best_first(std::move(starts))) descend(start, what);
  return best_seconds_;
}

uint64_t Search::repaid_work() const {
  constexpr double kMicrosecond = 1e-6;
  return static_cast<uint64_t>(
      std::min(kRepayingSteps * best_seconds_ / kMicrosecond, static_cast<double>(request_.search_work)));
}

// Whether few enough buffers can move to weigh each: every one of them makes one or more candidates.
bool Search::has_few_buffers() const {
  const std::vector<Buffer>& buffers = base(first_).plan.program.buffers;
  return std::ranges::count_if(buffers, has_choice_of_home) <= kBuffersMoved;
}

// Candidates in which every class lies whole in one tier, in all combinations.
std::vector<Candidate> Search::corners() const {
  std::vector<Candidate> all{best_, best_};
  all.front().kept = {};
  for (const BufferClass kind : kHomeClasses) {
    std::vector<Candidate> longer;
    for (const Candidate& c : all)
      for (TierId tier = 0; tier < capacities_.size(); ++tier) {
        longer.push_back(c);
        for (BufferId b = 0; b < base(c).plan.program.buffers.size(); ++b)
          if (const Buffer& buffer = base(c).plan.program.buffers[b];
              claims_with(buffer, kind, model_.samples()) && has_choice_of_home(buffer))
            longer.back() = with_moved(std::move(longer.back()), b, tier);
      }
    all = std::move(longer);
  }
  return all;
}

std::vector<Candidate> Search::best_first(std::vector<Candidate> candidates) {
  std::vector<std::pair<double, Candidate>> sorted;
  for (Candidate& c : candidates) sorted.emplace_back(weigh(c), std::move(c));
  std::sort(sorted.begin(), sorted.end());
  candidates.clear();
  for (auto& [seconds, c] : sorted)
    if (seconds < kNotFeasible) candidates.push_back(std::move(c));
  return candidates;
}

// One start with the fewest groups updated in backward, and one with the most; the better one comes first.
// The start with the most has long leads, and its homes are given layer by layer: both spread copies over
// the step.
std::vector<Candidate> Search::coarse_starts(const Candidate& from) {
  Candidate fewest = from, most = from;
  fewest.backward = std::ranges::min(backwards_);
  most.backward = std::ranges::max(backwards_);
  if (choices_.free && request_.machine.tiers.size() > 1) {
    most.order = kByLayer;
    most.lead = kLongLead;
  }
  std::vector<Candidate> starts{vary_coarsely(fewest)};
  if (most != fewest) starts.push_back(vary_coarsely(most));
  starts = best_first(std::move(starts));
  if (starts.empty()) return {from};  // no work was left to weigh them
  return starts;
}

// The first candidate of the placement that fits, or the last. If layers keep least (`raised` is 0),
// candidates are weighed even if no work is left.
Candidate Search::weigh_first(Placement placement, uint32_t raised) {
  forget_too_much_kept();
  const CandidateChoices choices = choices_for(placement);
  Candidate c = first_;
  c.kept = {raised};
  c.order = choices.orders.front();
  for (const uint32_t upper : choices.uppers) {
    c.upper = upper;
    for (const uint32_t working : choices.workings) {
      c.working = working;
      if (weigh(c, kNotFeasible, raised == 0) < kNotFeasible) return c;
    }
    if (!has_upper()) break;
  }
  return c;
}

// Varies kept tensors and homes in upper tiers together, since they contend for the same bytes: more of one
// may need less of the other. Returns the best candidate.
Candidate Search::vary_coarsely(const Candidate& from) {
  std::vector<uint32_t> uppers{from.upper};
  if (choices_.free && has_upper()) {
    uppers = choices_.uppers;
    std::erase_if(uppers, [](uint32_t level) { return level % 4 != 0; });
  }
  Candidate best = from;
  double seconds = weigh(from, kNotFeasible);
  const auto halves = static_cast<uint32_t>(2 * (levels_.size() - 1));
  // Candidates that keep most come first: a slow candidate does not rule out those that keep less.
  for (uint32_t half = halves + 1; half-- > 0;)
    for (const uint32_t upper : uppers) {
      Candidate c = from;
      c.upper = upper;
      c.kept = {layers_ * half / 2};
      const double took = weigh(c, kNotFeasible);
      if (took >= seconds) continue;
      seconds = took;
      best = std::move(c);
    }
  return best;
}

// The best candidate with another number of waves; none: none fits. With more waves, layers can keep more in
// the same memory. Many waves come first: their bodies are short, and weighed quickly.
std::optional<Candidate> Search::vary_waves_coarsely(const Candidate& from) {
  std::set<uint32_t> uppers{from.upper};
  if (choices_.free && has_upper()) uppers.insert({kUpperLevels / 3, 2 * kUpperLevels / 3, kUpperLevels});
  std::optional<Candidate> best;
  double seconds = kNotFeasible;
  const auto halves = static_cast<uint32_t>(2 * (levels_.size() - 1));
  for (auto waves = waves_.rbegin(); waves != waves_.rend(); ++waves) {
    if (work_left_ == 0) break;
    if (*waves == from.waves || !may_gain_with(*waves)) continue;
    for (uint32_t half = halves + 1; half-- > 0;)
      for (const uint32_t upper : uppers) {
        Candidate c = from;
        c.waves = *waves;
        c.kept = {layers_ * half / 2};
        c.upper = upper;
        const double took = weigh(c, kNotFeasible);
        if (took >= seconds) continue;
        seconds = took;
        best = std::move(c);
      }
  }
  return best;
}

// Whether candidates with `waves` waves could be faster than the best so far.
bool Search::may_gain_with(uint32_t waves) {
  const auto [known, is_new] = least_with_waves_.try_emplace(waves);
  if (is_new) {
    LowerOptions options = request_.lower;
    options.waves = waves;
    if (search_shard_) options.shard_elements = search_shard_;
    known->second = least_moving_seconds(request_.machine, request_.rates, model_, options, segments_);
  }
  return known->second < kWorthwhile * best_seconds_;
}

Candidate Search::descend(Candidate from, Vary what, uint64_t spare) {
  forget_too_much_kept();
  while (work_left_ > spare && improve(from, what)) continue;
  return from;
}

// What layers keep may be hopeless with some homes and best with others. For large models, the work
// does not suffice to find that out.
void Search::forget_too_much_kept() {
  if (search_shard_ == 0) too_much_kept_.clear();
}

// A round varies one quantity at a time. If that brings nothing, it moves single buffers; with few layers it
// also exchanges two, and then varies levels. What comes later has more values to try, and depends more on
// what was varied before.
class Search::Round {
 public:
  Round(Search& search, Candidate& from, Vary what)
      : search_(search),
        from_(from),
        seconds_(search.weigh(from, kNotFeasible)),
        free_(search.choices_.free && what != Vary::kept_and_lead),
        moves_(free_ && what == Vary::buffers_too),
        few_(search.layers_ <= kFewLayers),
        buffers_(search.base(from).plan.program.buffers) {}

  // Returns whether the round found a better candidate.
  bool run() {
    if (free_ && search_.has_upper()) vary_near(&Candidate::upper, search_.choices_.uppers);
    if (!few_) vary_kept();
    if (search_.request_.machine.tiers.size() > 1) {
      if (free_) vary(&Candidate::order, search_.choices_.orders);
      vary_near(&Candidate::lead, kLeads);
    }
    vary(&Candidate::backward, search_.backwards_);
    if (free_ && search_.request_.machine.tiers.back().file) {
      vary_near(&Candidate::working, search_.choices_.workings);
      for (size_t k = 0; k < kHomeClasses.size(); ++k)
        vary_near([k](Candidate& c) -> uint32_t& { return c.eighths[k]; }, kEighths);
    }
    if (!better_) vary_waves();
    if (!better_ && moves_) move_buffers();
    if (!better_ && moves_ && few_) exchange_buffers();
    if (!better_ && few_ && search_.most_raised_ > 0)
      vary(&Candidate::kept, search_.kept_choices(from_.kept));
    return better_;
  }

 private:
  bool take_if_better(Candidate c) {
    const double took = search_.weigh(c, kWorthwhile * seconds_);
    if (took >= kWorthwhile * seconds_) return false;
    seconds_ = took;
    from_ = std::move(c);
    return better_ = true;
  }
  template <typename Field, typename Values>
  void vary(Field field, const Values& values) {
    for (const auto& value : values) {
      Candidate c = from_;
      std::invoke(field, c) = value;
      take_if_better(std::move(c));
    }
  }

  // Sorts the values, and tries those near the present one until nothing is gained.
  template <typename Field, typename Values>
  void vary_near(Field field, const Values& any_order) {
    std::vector<uint32_t> values(any_order.begin(), any_order.end());
    std::sort(values.begin(), values.end());
    const auto is_better = [&](int distance) {
      const auto at =
          std::lower_bound(values.begin(), values.end(), std::invoke(field, from_)) - values.begin();
      const auto other = at + distance;
      if (other < 0 || other >= std::ssize(values)) return false;
      Candidate c = from_;
      std::invoke(field, c) = values[static_cast<size_t>(other)];
      return take_if_better(std::move(c));
    };
    while (std::any_of(std::begin(kDistances), std::end(kDistances), is_better)) continue;
  }

  // Varies what layers keep until nothing is gained. Keeping more may need another share for staging.
  void vary_kept() {
    for (bool again = search_.most_raised_ > 0; again;) {
      const KeptLayers before = from_.kept;
      const std::vector<KeptLayers> choices = search_.kept_choices(before);
      vary(&Candidate::kept, choices);
      if (from_.kept == before && free_ && search_.has_upper()) vary_kept_and_upper(choices);
      again = from_.kept != before;
    }
  }
  void vary_kept_and_upper(const std::vector<KeptLayers>& choices) {
    const auto upper = static_cast<int>(from_.upper);
    for (const int other : {upper + 1, upper + 2, upper - 1})
      for (const KeptLayers kept : choices) {
        Candidate c = from_;
        c.kept = kept;
        c.upper = static_cast<uint32_t>(std::clamp<int>(other, 0, kUpperLevels));
        take_if_better(std::move(c));
      }
  }

  // Tries the next smaller and the next larger number of waves. In each, layers keep as much as before, or
  // all.
  void vary_waves() {
    const std::vector<uint32_t>& all = search_.waves_;
    const auto at = std::find(all.begin(), all.end(), from_.waves);
    std::vector<uint32_t> near;
    if (at != all.begin()) near.push_back(*std::prev(at));
    if (std::next(at) != all.end()) near.push_back(*std::next(at));
    std::erase_if(near, [&](uint32_t waves) { return !search_.may_gain_with(waves); });
    for (const uint32_t waves : near)
      for (const uint32_t raised : {from_.kept.raised, search_.most_raised_}) {
        Candidate c = from_;
        c.waves = waves;
        c.kept.raised = raised;
        take_if_better(std::move(c));
      }
  }

  void move_buffers() {
    std::vector<std::pair<BufferId, TierId>> moves;
    for (BufferId b = 0; b < buffers_.size(); ++b)
      for (TierId tier = 0; has_choice_of_home(buffers_[b]) && tier < search_.capacities_.size(); ++tier)
        moves.emplace_back(b, tier);
    if (!few_) {
      for (const auto& [buffer, tier] : moves) take_if_better(with_moved(from_, buffer, tier));
      return;
    }
    // Only the best move is taken: small buffers must not take the room of large ones.
    std::vector<Candidate> moved;
    for (const auto& [buffer, tier] : moves) moved.push_back(with_moved(from_, buffer, tier));
    moved = search_.best_first(std::move(moved));
    for (Candidate& c : moved)
      if (!better_) take_if_better(std::move(c));
  }

  // Exchanges two buffers, since one alone may not fit where the other is.
  void exchange_buffers() {
    const std::vector<TierId> homes = search_.homes_of_candidate(from_);
    for (BufferId a = 0; !better_ && a < buffers_.size(); ++a)
      for (BufferId b = 0; !better_ && search_.work_left_ > 0 && b < a; ++b)
        if (homes[a] != homes[b] && has_choice_of_home(buffers_[a]) && has_choice_of_home(buffers_[b]))
          take_if_better(with_moved(with_moved(from_, a, homes[b]), b, homes[a]));
  }

  Search& search_;
  Candidate& from_;
  double seconds_;
  bool free_, moves_, few_, better_ = false;
  const std::vector<Buffer>& buffers_;
};

bool Search::improve(Candidate& from, Vary what) { return Round(*this, from, what).run(); }

// With few layers, every number of raises is a choice. With many, only numbers at some distances from the
// given one are.
std::vector<KeptLayers> Search::kept_choices(KeptLayers given) const {
  std::vector<KeptLayers> choices;
  if (layers_ <= kFewLayers) {
    for (const bool first : {false, true})
      for (uint32_t n = 0; n <= most_raised_; ++n)
        if (!first || n % layers_ > 0) choices.push_back({n, first});
    return choices;
  }
  for (const uint32_t distance : {layers_ / 2, layers_ / 4, layers_ / 8, 1u}) {
    if (given.raised + distance <= most_raised_) choices.push_back({given.raised + distance, given.first});
    if (given.raised >= distance) choices.push_back({given.raised - distance, given.first});
  }
  choices.push_back({given.raised, !given.first});
  return choices;
}

}  // namespace sluice
