// The search behind make_plan, for one micro-batch.
//
// 1. The least arrangement (least.h) decides whether the budgets can work at all where nothing else was found
//    to; if they cannot, it says what would.
// 2. A candidate (candidate.h) is lowered, its step body assembled and simulated. Among them are the rules
//    that one would think of (Placement), so that none of them seems better than what is found.
// 3. The two quantities that contend for the upper tiers are varied together, coarsely; then one at a time,
//    from the best so far, until a round brings nothing; where that ends single buffers move, and other
//    layers keep their tensors. Then the same from the first candidate, from one that keeps all, from the
//    rules, from every class as a whole in one tier or another, and from other sets of kept layers; all that
//    until enough work was done, which for large models is early. Under a rule only kept layers and leads
//    vary. What candidates come down to is weighed once.
// 4. Large models are searched with fewer, larger shards where those fit: it changes no bits, and homes by
//    less than a shard. Neither single buffers of theirs nor classes as a whole move, since state has a
//    buffer of each shard.
// 5. The winner is the fastest, unless another about as fast writes half as much to drives. It is assembled
//    whole. Should another body not fit, or the step take longer than it had seemed, the next best are looked
//    at; at last the homes of the least are, with prefetching and copies if those find room, without them
//    always.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/plan/search/candidate.h"
#include "engine/plan/search/least.h"

namespace sluice {

// Of all searches for one plan together: about microseconds of short programs, fewer of long ones. Once more
// for one of few layers, and for one that must be searched again with the plan's own shards.
constexpr uint64_t kSearchWork = 1'000'000;

class Search {
 public:
  static constexpr double kNotFeasible = 1e300;

  Search(const PlanRequest& request, int64_t micro_batch);
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  // Weighs candidates until that was as much work, or the best is found. Returns the best's seconds,
  // kNotFeasible if none fits so far. When it is called again the rules come, whatever the work, and single
  // buffers move at last, for which models of few layers have more work.
  double explore(uint64_t work);
  uint64_t work_left() const { return work_left_; }

  // The best candidate so far, assembled whole; at last the least arrangement.
  std::variant<Plan, Infeasible> finish();

 private:
  enum class Vary : uint8_t { kept_and_lead, quantities, buffers_too };
  struct Way {                    // to make a step: what candidates come down to
    std::vector<bool> recompute;  // by segment
    uint32_t lead = 0;
    std::vector<TierId> homes;  // by buffer
    auto operator<=>(const Way&) const = default;
  };
  struct Outcome {
    Candidate candidate;            // the first that came down to it
    double seconds = kNotFeasible;  // of a step
    uint64_t written = 0;           // by it, bytes to files
    bool fits_whole = false;        // other bodies fit, too, or need not: see weigh
  };

  void start(uint64_t search_shard);
  Candidate weigh_first(Placement placement, uint32_t kept);
  void vary_coarsely();
  Candidate descend(Candidate from, Vary what);
  bool improve(Candidate& from, Vary what);
  void forget_too_many_kept();
  std::vector<Candidate> corners() const;
  std::vector<Candidate> best_first(std::vector<Candidate> candidates);  // that fit
  std::vector<KeptLayers> kept_choices(KeptLayers given) const;
  // Its seconds. Below `to_beat`, or as the best so far, other bodies than the step's must fit, too; not
  // those of larger shards, of which finish() makes others.
  double weigh(const Candidate& c, double to_beat = 0, bool whatever_the_work = false);
  Outcome simulated(const Candidate& c);
  bool other_bodies_fit(const Candidate& c);
  void spend(uint64_t work) { work_left_ -= std::min(work_left_, work); }

  std::vector<bool> recompute_of(const Candidate& c) const;
  Plan lowered(const Candidate& c, uint64_t shard_elements = 0) const;
  Arrangement arrange(const Program& program, const Candidate& c) const;
  Arrangement leading(const Program& program, std::vector<TierId> homes, uint32_t lead) const;
  std::vector<const Outcome*> ranked() const;
  std::optional<Plan> assembled_best() const;
  Plan finished(Plan plan, double seconds, const Arrangement& arrangement,
                std::optional<HomeRule> rule) const;
  Infeasible infeasible() const;
  bool has_upper() const { return lowest_memory_tier(request_.machine) > 0; }

  PlanRequest request_;
  Model model_;
  uint32_t layers_, kept_at_first_;
  CandidateChoices choices_;
  std::vector<uint64_t> capacities_;
  uint64_t all_tiers_ = 0;     // their sum
  uint64_t search_shard_ = 0;  // elements; 0: as the plan will have
  Plan base_;                  // lowered for the first candidate
  std::optional<Least> least_;
  std::map<Way, Outcome> weighed_;
  Candidate best_;
  double best_seconds_ = kNotFeasible;
  std::array<uint32_t, 2> too_many_kept_{};  // layers, by KeptLayers::first
  bool explored_ = false;
  uint64_t work_left_ = 0;
};

}  // namespace sluice
