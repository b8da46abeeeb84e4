// The search behind make_plan, for one micro-batch.
//
// 1. The least arrangement (least.h) decides whether the budgets can work at all. If they cannot, it says
//    which budgets would.
// 2. A candidate (candidate.h) is lowered, its step body assembled and simulated. The rules of Placement are
//    among the candidates, so that none of them is better than the result.
// 3. The two quantities that contend for the upper tiers, kept tensors and homes, are varied together,
//    coarsely: once with the fewest updates in backward, once with the most. Then one quantity at a time is
//    varied, from the best so far, until a round brings nothing; then single buffers move, and layers keep
//    more or less. The same is done again from other starts: the first candidate, one that keeps all, the
//    rules, candidates with each class whole in one tier, and others in which more or fewer layers keep more.
//    The search ends when enough work was done, which for large models is early. Under a rule, only levels,
//    leads, waves and updates in backward vary. Candidates that come down to the same homes, levels, lead,
//    waves and updates in backward are weighed once. Only worthwhile levels (candidate.h) take part.
// 4. Large models are searched with larger shards where these fit, unless they are nearly as many as the
//    plan's own shards, as with small experts. This changes no bits, and moves the boundary between two homes
//    by less than a shard. In such a search, single buffers and classes do not move: each shard of state is a
//    buffer, so the search's buffers are not those of the plan.
// 5. The fastest candidate wins, unless another is about as fast and writes half as much to drives. The
//    winner is assembled whole. If another body does not fit, or the step takes longer than it had seemed,
//    the next best are tried. If none fits, the homes of the least arrangement are taken: with leads and kept
//    copies if those find room, otherwise without.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/plan/search/candidate.h"
#include "engine/plan/search/least.h"

namespace sluice {

// Returns the refusal that needs less memory. For each tier, it gets the smaller Infeasible::least of the two
// refusals.
Infeasible better_of(Infeasible a, Infeasible b);

class Search {
 public:
  static constexpr double kNotFeasible = 1e300;

  // The request's capacities leave out what the program takes, which is at most `program_bytes`.
  Search(const PlanRequest& request, int64_t micro_batch, uint64_t program_bytes);
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  // Weighs candidates until `work` is spent or nothing improves. Weighs none if the least arrangement does
  // not fit. Returns the seconds of the best so far, kNotFeasible if none fits. A second call also
  // tries the rules of placement, even where no work is left, and then moves single buffers. For such moves,
  // models of few layers get more work.
  double explore(uint64_t work);
  int64_t micro_batch() const { return model_.micro_batch; }
  uint64_t work_left() const { return work_left_; }
  double best_seconds() const { return best_seconds_; }

  // Frees memory. What is needed again later is made again, which takes time.
  void free_bases() { bases_.clear(); }

  // Whether the least arrangement fits, and so finish() gives a plan. If larger shards (step 4) leave that
  // open, all that was searched with larger shards is given up.
  bool is_feasible();

  // The best candidate, assembled whole, or else the least arrangement; or why even that does not fit. The
  // arena of the lowest memory tier can have `memory_bytes` in any case, since planning takes as many bytes
  // before. So a refusal's least_together is not less.
  std::variant<Plan, Infeasible> finish(uint64_t memory_bytes);

 private:
  static constexpr double kWorthwhile = 0.998;    // a tie is no reason to move
  static constexpr double kNearLeast = 1.01;      // of the lower bound: waves could gain next to nothing
  static constexpr double kRepayingSteps = 1000;  // a search that takes longer is not soon worth it
  static constexpr uint32_t kFewLayers = 10;  // eight between embedding and head: searched more thoroughly

  // Until the weighed candidates have so many tasks together, weigh() can be told to go on although the
  // search's work is used up.
  static constexpr uint64_t kTasksInAnyCase = 250'000;
  static constexpr int64_t kBuffersMoved = 4096;  // if more could move, none moves alone

  class Round;
  enum class Vary : uint8_t { kept_and_lead, quantities, buffers_too };
  struct Way {                         // what a candidate comes down to; several may come down to one
    std::vector<Recompute> recompute;  // by segment
    uint32_t lead = 0, backward = 0, waves = 1;
    std::vector<TierId> homes;  // by buffer
    auto operator<=>(const Way&) const = default;
  };
  struct Outcome {
    Candidate candidate;            // the first that came down to it
    double seconds = kNotFeasible;  // of a step
    uint64_t written = 0;           // bytes to files, by a step
    bool fits_whole = false;        // other bodies fit, too, or need not: see weigh()
  };

  void start(uint64_t search_shard);
  std::vector<Recompute> find_levels() const;
  Candidate weigh_first(Placement placement, uint32_t raised);
  Candidate vary_coarsely(const Candidate& from);
  std::vector<Candidate> coarse_starts(const Candidate& from);
  std::optional<Candidate> vary_waves_coarsely(const Candidate& from);
  bool may_gain_with(uint32_t waves);
  Candidate descend(Candidate from, Vary what, uint64_t spare = 0);  // `spare`: work that it leaves
  bool improve(Candidate& from, Vary what);
  bool has_few_buffers() const;
  uint64_t repaid_work() const;  // what kRepayingSteps of the best candidate take; at most search_work
  void forget_too_much_kept();
  std::vector<Candidate> corners() const;
  std::vector<Candidate> best_first(std::vector<Candidate> candidates);  // that fit
  std::vector<KeptLayers> kept_choices(KeptLayers given) const;
  // Returns the candidate's seconds. If these are less than `to_beat`, or than the best so far, the other
  // bodies must fit, too, or it returns kNotFeasible. In a search with larger shards, the other bodies need
  // not fit, since finish() assembles the plan with the plan's own shards.
  double weigh(const Candidate& c, double to_beat = 0, bool whatever_the_work = false);
  Outcome simulated(const Candidate& c);
  bool other_bodies_fit(const Candidate& c);
  void spend(uint64_t work) { work_left_ -= std::min(work_left_, work); }

  // What all candidates with the same permanent buffers share.
  struct Base {
    Base(Plan lowered) : plan(std::move(lowered)), least(plan.program) {}
    Plan plan;  // lowered for the first candidate
    Least least;
  };
  const Base& base(const Candidate& c) const;
  const Base& base(uint32_t waves) const {
    return base(Candidate{.backward = first_.backward, .waves = waves});
  }
  // The first of least_waves() with which the least arrangement fits.
  std::optional<uint32_t> feasible_waves(const std::vector<uint64_t>& capacities) const;
  // The numbers of waves that may need least memory.
  std::vector<uint32_t> least_waves() const;

  std::vector<Recompute> recompute_of(const Candidate& c) const;
  std::vector<TierId> homes_of_candidate(const Candidate& c) const {
    return homes_of(c, base(c).plan.program, capacities_, base(c).least);
  }
  // `usual_only`: as LowerOptions has it.
  Plan lowered(const Candidate& c, uint64_t shard_elements = 0, bool plain_step = true,
               bool usual_only = false) const;
  StepOrders orders_of(const Candidate& c) const;
  StepOrders orders_of(const Plan& plan) const;
  Arrangement arrange(const Program& program, const Candidate& c) const;
  Arrangement leading(const Program& program, std::vector<TierId> homes, uint32_t lead) const;
  std::vector<const Outcome*> ranked() const;
  std::vector<uint64_t> clearly_less() const;
  bool size_fits(const ProgramSize& size) const;
  std::optional<Plan> assembled_best() const;
  std::optional<Plan> assembled(const Outcome& outcome) const;
  Plan finished(Plan plan, double seconds, const StepOrders& orders, const Arrangement& arrangement,
                std::optional<HomeRule> rule) const;
  Infeasible infeasible(uint64_t memory_bytes) const;
  Infeasible infeasible(uint32_t waves, uint64_t memory_bytes) const;
  bool has_upper() const { return lowest_memory_tier(request_.machine) > 0; }

  PlanRequest request_;
  Model model_;
  std::shared_ptr<const SegmentPlans> segments_;
  uint32_t layers_;
  uint64_t program_bytes_;
  std::vector<Recompute> levels_;  // that layers may have, the one that keeps least first
  uint32_t most_raised_ = 0;       // KeptLayers::raised at most
  CandidateChoices choices_;
  std::vector<uint64_t> capacities_;
  uint64_t all_tiers_ = 0;           // their sum
  uint64_t search_shard_ = 0;        // elements; 0: as the plan will have
  std::vector<uint32_t> backwards_;  // values of Candidate::backward
  std::vector<uint32_t> waves_;      // values of Candidate::waves
  Candidate first_;
  mutable std::map<std::pair<uint32_t, uint32_t>, Base> bases_;  // by Candidate::backward and waves
  std::map<Way, Outcome> weighed_;
  Candidate best_;
  double best_seconds_ = kNotFeasible;
  std::map<std::pair<uint32_t, bool>, uint32_t> too_much_kept_;  // raised, by waves and KeptLayers::first
  std::map<uint32_t, double> least_with_waves_;                  // least_moving_seconds(), by waves
  double least_seconds_ = 0;                                     // least_step_seconds() of the request
  bool explored_ = false;
  uint64_t work_left_ = 0;
  uint64_t tasks_weighed_ = 0;  // of the steps of all candidates
};

}  // namespace sluice
