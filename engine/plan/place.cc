// place: the search behind make_plan.
//
// 1. The least arrangement (least.h) decides whether the budgets can work at all; if not, it says what would.
//    (Large models are searched first: where larger shards leave a margin, smaller ones fit.)
// 2. A candidate is: how much of the lowest memory tier, as a multiple of what the largest task needs, and
//    of those above it, between that and all, is left to staging; the order in which buffer classes claim
//    homes in the rest; by how much work a fetch leads its use; how many of the last layers keep their saved
//    tensors. Its step body is lowered, assembled and simulated.
// 3. The two that contend for the upper tiers are varied together, coarsely; then one quantity at a time,
//    from the best so far, until a round brings nothing or enough has been weighed.
// 4. Large models are searched with fewer, larger shards where those fit: it changes neither homes nor bits.
// 5. The winner is assembled whole. Should another body not fit, or the step take longer than it had seemed,
//    the next best are looked at; at last the homes of the least are, with prefetching and copies if those
//    find room, without them always.
// 6. Of several micro-batches all are explored with half of the effort together, the best with the rest. A
//    smaller one must be clearly faster: what fewer rows cost a matrix product is not in the cost model.
#include <algorithm>
#include <array>
#include <cmath>
#include <list>
#include <map>
#include <numeric>
#include <tuple>

#include "engine/error.h"
#include "engine/pack.h"
#include "engine/plan/least.h"
#include "engine/plan/limit.h"
#include "engine/plan/plan.h"
#include "engine/simulate.h"

namespace sluice {

namespace {

// What is left to staging, in tenths of the least working bytes.
constexpr uint32_t kAllOfIt = UINT32_MAX;
constexpr std::array<uint32_t, 7> kWorkingTenths{20, 13, 16, 30, 50, 11, kAllOfIt};
// Above the lowest memory tier it may be a small part of the capacity, so: from the least, a little more of
// which makes room to move, to all of it in equal ratios.
constexpr uint32_t kUpperLevels = 6;
constexpr double kRoomToMove = 1.3;
constexpr uint32_t kSegmentWeight = 16;  // of the mean segment task; others by their estimated seconds
constexpr std::array<uint32_t, 6> kLeads{32, 16, 64, 128, 8, 256};  // in such weights
constexpr uint64_t kSearchShards = 256;                             // of a whole model
constexpr uint64_t kMarginShare = 8;                                // of a capacity
constexpr uint32_t kWholeMost = 4;      // candidates that are assembled and simulated whole
constexpr double kSeemsBetter = 0.97;  // of the best whole one's seconds
// Of all candidates together: some 5 us each, so a third of a second.
constexpr uint64_t kInstructionsMax = 60'000;
constexpr double kSmallerWorthwhile = 0.95;   // of the larger micro-batch's seconds
using ClassOrder = std::array<BufferClass, 3>;
constexpr std::array<ClassOrder, 4> kClassOrders{
    {{BufferClass::weights, BufferClass::gradients, BufferClass::state},
     {BufferClass::state, BufferClass::weights, BufferClass::gradients},
     {BufferClass::gradients, BufferClass::state, BufferClass::weights},
     {BufferClass::weights, BufferClass::state, BufferClass::gradients}}};

struct Candidate {
  uint32_t working = kWorkingTenths.front();  // tenths
  uint32_t upper = kUpperLevels;
  uint32_t order = 0;
  uint32_t lead = kLeads.front();
  uint32_t kept_layers = 0;
  bool operator<(const Candidate& o) const {
    return std::tie(working, upper, order, lead, kept_layers) <
           std::tie(o.working, o.upper, o.order, o.lead, o.kept_layers);
  }
};

// What lies in one tier or another at once, whatever the arrangement: permanent buffers, and pieces of the
// others from the task that writes them to the last that uses what it wrote.
uint64_t bytes_at_once(const Program& program, const Body& body) {
  struct Stay {
    uint32_t first = kNoTask, last = 0;  // tasks
  };
  std::vector<std::vector<Stay>> stays(program.buffers.size());  // by piece
  std::vector<int64_t> changes(body.tasks.size() + 1);
  const auto end = [&](const Stay& s, uint64_t bytes) {
    changes[s.first] += static_cast<int64_t>(bytes);
    changes[s.last + 1] -= static_cast<int64_t>(bytes);
  };
  for (uint32_t t = 0; t < body.tasks.size(); ++t)
    for (const Operand& o : body.tasks[t].operands) {
      const Buffer& b = program.buffers[o.buffer];
      if (b.permanent) continue;
      stays[o.buffer].resize(b.cuts.size() - 1);
      for (uint32_t p = o.first; p < o.last; ++p) {
        Stay& s = stays[o.buffer][p];
        const bool anew = s.first != kNoTask && o.access == Access::write && s.last != t;
        if (anew) end(s, b.cuts[p + 1] - b.cuts[p]);
        if (anew || s.first == kNoTask) s.first = t;
        s.last = t;
      }
    }
  int64_t now = 0, most = 0;
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& b = program.buffers[i];
    if (b.permanent) now += static_cast<int64_t>(b.bytes());
    for (size_t p = 0; p < stays[i].size(); ++p)
      if (stays[i][p].first != kNoTask) end(stays[i][p], b.cuts[p + 1] - b.cuts[p]);
  }
  for (const int64_t change : changes) most = std::max(most, now += change);
  return static_cast<uint64_t>(most);
}

class Search {
 public:
  Search(const PlanRequest& request, int64_t micro_batch)
      : request_(request),
        model_(request.model(micro_batch)),
        layers_(static_cast<uint32_t>(model_.layers.size())),
        kept_at_first_(request.recompute == RecomputeChoice::none ? layers_ : 0),
        has_files_(request.machine.tiers.back().file) {
    request_.rates.precision = model_.precision;
    for (const Tier& t : request.machine.tiers) capacities_.push_back(t.capacity);
    all_tiers_ = std::accumulate(capacities_.begin(), capacities_.end(), uint64_t{0});
    const uint64_t coarse = round_up(parameter_count(model_) / kSearchShards, default_shard_elements(model_));
    const bool large = request.lower.shard_elements == 0 && coarse > default_shard_elements(model_);
    start(large ? coarse : 0);
  }
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  // Weighs candidates until it has weighed `instructions` more in all, or the best is found. Returns the
  // best's seconds, kNotFeasible if none fits so far. May be called again.
  double explore(uint64_t instructions) {
    instructions_left_ = instructions;
    Candidate first;
    first.kept_layers = kept_at_first_;
    for (first.upper = kUpperLevels + 1; first.upper-- > 0;)
      for (const uint32_t working : kWorkingTenths) {
        first.working = working;
        if (best_seconds_ < kNotFeasible) break;
        weigh(first);
      }
    if (best_seconds_ < kNotFeasible) vary();
    return best_seconds_;
  }
  uint64_t instructions_left() const { return instructions_left_; }

  // The best candidate so far, assembled whole; at last the least arrangement.
  std::variant<Plan, Infeasible> finish() {
    if (search_shard_ > 0) {
      std::vector<uint64_t> clearly_less = capacities_;
      for (uint64_t& bytes : clearly_less) bytes -= bytes / kMarginShare;
      if (least_->arrangement(clearly_less))
        if (auto plan = assembled_best()) return std::move(*plan);
      start(0);
      if (least_->arrangement(capacities_)) explore(kInstructionsMax);
    }
    const auto arrangement = least_->arrangement(capacities_);
    if (!arrangement) return infeasible();
    if (auto plan = assembled_best()) return std::move(*plan);
    if (assemble(base_.program, leading(base_.program, arrangement->homes, kLeads.front())))
      CHECK(!assemble(base_.program, *arrangement), "the least arrangement does not fit");
    return finished(std::move(base_), 0);
  }

  static constexpr double kNotFeasible = 1e300;

 private:
  void start(uint64_t search_shard) {
    search_shard_ = search_shard;
    weighed_.clear();
    best_seconds_ = kNotFeasible;
    base_ = lowered(kept_at_first_, search_shard_);
    least_.emplace(base_.program);
  }

  Plan lowered(uint32_t kept_layers, uint64_t shard_elements = 0) const {
    Plan plan;
    plan.model = model_;
    plan.program.machine = request_.machine;
    LowerOptions options = request_.lower;
    if (shard_elements) options.shard_elements = shard_elements;
    options.recompute.clear();
    for (uint32_t l = 0; l < layers_; ++l)
      options.recompute.insert(options.recompute.end(), model_.layers[l].segments.size(),
                               l + kept_layers < layers_);
    plan.lowering = lower(model_, options, plan.program);
    return plan;
  }

  // The best of those that fit whole. What was searched with larger shards may be slower with its own: then
  // others, which had seemed slower, are looked at too.
  std::optional<Plan> assembled_best() const {
    std::optional<Plan> best;
    uint32_t left = kWholeMost;
    for (const auto& [seconds, candidate] : ranked()) {
      if (left == 0 || (best && seconds >= kSeemsBetter * best->step_seconds)) break;
      Plan whole = lowered(candidate.kept_layers);
      if (assemble(whole.program, arrange(whole.program, candidate))) continue;
      --left;
      whole = finished(std::move(whole), search_shard_ > 0 ? 0 : seconds);
      if (!best || whole.step_seconds < best->step_seconds) best = std::move(whole);
    }
    return best;
  }

  void vary() {
    const bool may_keep = request_.recompute == RecomputeChoice::automatic;
    const bool has_upper = lowest_memory_tier(request_.machine) > 0;
    if (may_keep && has_upper) vary_both();
    for (bool better = true; better;) {
      better = false;
      if (may_keep)
        for (const uint32_t quarters : {4u, 2u, 3u, 1u, 0u})
          better |= vary_one(&Candidate::kept_layers, layers_ * quarters / 4);
      if (has_upper)
        for (uint32_t level = 0; level <= kUpperLevels; ++level)
          better |= vary_one(&Candidate::upper, level);
      if (request_.machine.tiers.size() > 1)
        for (uint32_t order = 0; order < kClassOrders.size(); ++order)
          better |= vary_one(&Candidate::order, order);
      if (request_.machine.tiers.size() > 1)
        for (const uint32_t lead : kLeads) better |= vary_one(&Candidate::lead, lead);
      if (has_files_)
        for (const uint32_t working : kWorkingTenths) better |= vary_one(&Candidate::working, working);
    }
  }
  // Kept tensors and homes above contend for the same bytes: it may take less of one to have more of the
  // other.
  void vary_both() {
    Candidate c = best_;
    for (const uint32_t quarters : {4u, 2u, 0u})
      for (c.upper = 0; c.upper <= kUpperLevels; c.upper += 2) {
        c.kept_layers = layers_ * quarters / 4;
        weigh(c);
      }
  }
  bool vary_one(uint32_t Candidate::*field, uint32_t value) {
    Candidate c = best_;
    c.*field = value;
    return weigh(c);
  }

  // Assembles and simulates the step body; true when it is the best so far.
  bool weigh(const Candidate& c) {
    if (instructions_left_ == 0) return false;
    const auto [it, fresh] = weighed_.try_emplace(c, kNotFeasible);
    if (!fresh) return false;
    Plan plan = lowered(c.kept_layers, search_shard_);
    const BodyId step = *plan.lowering.bodies().step;
    for (size_t b = 0; b < plan.program.bodies.size(); ++b)
      if (b != step) plan.program.bodies[b].tasks.clear();
    // Most candidates that do not fit keep more than all tiers hold, which shows without an arrangement.
    if (bytes_at_once(plan.program, plan.program.bodies[step]) > all_tiers_) return false;
    if (assemble(plan.program, arrange(plan.program, c))) return false;
    instructions_left_ -= std::min(instructions_left_, plan.program.bodies[step].instructions.size());
    it->second = steady_step_seconds(plan.program, request_.rates, step);
    constexpr double kWorthwhile = 0.998;  // a tie is no reason to move
    if (it->second >= kWorthwhile * best_seconds_) return false;
    best_seconds_ = it->second;
    best_ = c;
    return true;
  }

  std::vector<std::pair<double, Candidate>> ranked() const {
    std::vector<std::pair<double, Candidate>> list;
    for (const auto& [candidate, seconds] : weighed_)
      if (seconds < kNotFeasible) list.emplace_back(seconds, candidate);
    std::stable_sort(list.begin(), list.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    return list;
  }

  Arrangement arrange(const Program& program, const Candidate& c) const {
    return leading(program, choose_homes(program, c), c.lead);
  }
  Arrangement leading(const Program& program, std::vector<TierId> homes, uint32_t lead) const {
    Arrangement a{std::move(homes), std::vector<uint32_t>(capacities_.size(), lead)};
    for (const Body& body : program.bodies) a.task_weights.push_back(weights_of(program, body));
    return a;
  }

  // Weights in proportion to what the tasks take alone on their lanes.
  std::vector<uint32_t> weights_of(const Program& program, const Body& body) const {
    std::vector<double> seconds;
    double segment_seconds = 0, segments = 0;
    for (const Task& t : body.tasks) {
      seconds.push_back(task_seconds(program, request_.rates, t));
      if (t.kind != TaskKind::forward && t.kind != TaskKind::backward) continue;
      segment_seconds += seconds.back();
      segments += 1;
    }
    const double scale = segment_seconds > 0 ? kSegmentWeight * segments / segment_seconds : 0;
    std::vector<uint32_t> weights;
    for (const double s : seconds) weights.push_back(static_cast<uint32_t>(s * scale + 0.5));
    return weights;
  }

  // From the top memory tier down, classes claim homes in the candidate's order, as long as the working bytes
  // stay free.
  std::vector<TierId> choose_homes(const Program& program, const Candidate& c) const {
    const TierId memory = lowest_memory_tier(program.machine), lowest = lowest_tier(program.machine);
    std::vector<TierId> homes(program.buffers.size(), lowest);
    for (TierId tier = 0; tier <= memory && tier < lowest; ++tier) {
      const uint64_t alignment = placement_alignment(program.machine, tier);
      uint64_t room = capacities_[tier];
      room -= std::min(room, tier == memory ? left_in_lowest(c.working) : left_above(tier, c.upper));
      for (const BufferClass kind : kClassOrders[c.order])
        for (size_t i = 0; i < program.buffers.size(); ++i) {
          const Buffer& b = program.buffers[i];
          const uint64_t bytes = round_up(b.bytes(), alignment);
          if (!b.permanent || b.kind != kind || homes[i] != lowest || bytes > room) continue;
          homes[i] = tier;
          room -= bytes;
        }
    }
    return homes;
  }
  uint64_t left_in_lowest(uint32_t tenths) const {
    const TierId tier = lowest_memory_tier(request_.machine);
    if (tenths == kAllOfIt) return capacities_[tier];
    return least_->working_bytes(tier) / 10 * tenths + least_->permanent_bytes(tier);
  }
  uint64_t left_above(TierId tier, uint32_t level) const {
    const auto least = kRoomToMove * static_cast<double>(least_->working_bytes(tier));
    const auto all = static_cast<double>(capacities_[tier]);
    if (level == kUpperLevels || least >= all) return capacities_[tier];
    return static_cast<uint64_t>(least * std::pow(all / least, static_cast<double>(level) / kUpperLevels));
  }

  Plan finished(Plan plan, double seconds) const {
    plan.step_seconds =
        seconds > 0 ? seconds
                    : steady_step_seconds(plan.program, request_.rates, *plan.lowering.bodies().step);
    plan.least_seconds = least_step_seconds(request_.machine, request_.rates, model_, request_.lower);
    plan.rates = request_.rates;
    plan.candidates = static_cast<uint32_t>(weighed_.size());
    for (const auto& [candidate, took] : weighed_)
      plan.weighed.push_back({kClassOrders[candidate.order][0], candidate.kept_layers,
                              candidate.upper == kUpperLevels, took < kNotFeasible ? took : 0});
    return plan;
  }

  Infeasible infeasible() const {
    Infeasible out;
    out.micro_batch = model_.micro_batch;
    out.least_together = least_->together();
    for (TierId t = 0; t < capacities_.size(); ++t) out.least.push_back(least_->of_tier(t, capacities_));
    while (out.tier + 1u < capacities_.size() && out.least_together[out.tier] <= capacities_[out.tier])
      ++out.tier;
    std::vector<uint64_t> mended = capacities_;
    mended[out.tier] = out.least[out.tier].value_or(mended[out.tier]);
    const BodyShortage largest = least_->largest_task(out.tier, mended);
    if (largest.shortage.task == kNoTask) return out;
    const Task& t = base_.program.bodies[largest.body].tasks[largest.shortage.task];
    out.task = task_kind_name(t.kind);
    if (t.kind == TaskKind::forward || t.kind == TaskKind::backward)
      out.task += " of " + model_.layers[base_.lowering.uses[t.subject].layer].name;
    return out;
  }

  PlanRequest request_;
  Model model_;
  uint32_t layers_, kept_at_first_;
  bool has_files_;
  std::vector<uint64_t> capacities_;
  uint64_t all_tiers_ = 0;     // their sum
  uint64_t search_shard_ = 0;  // elements; 0: as the plan will have
  Plan base_;                  // lowered for the first candidate
  std::optional<Least> least_;
  std::map<Candidate, double> weighed_;
  Candidate best_;
  double best_seconds_ = kNotFeasible;
  uint64_t instructions_left_ = 0;
};

// Of several micro-batches the smallest needs least as a rule, but not always: more slices, more rounding up.
Infeasible better_of(Infeasible a, Infeasible b) {
  if (b.least_together < a.least_together) std::swap(a, b);
  for (size_t t = 0; t < a.least.size(); ++t)
    if (b.least[t] && (!a.least[t] || *b.least[t] < *a.least[t])) a.least[t] = b.least[t];
  return a;
}

uint64_t task_count(const PlanRequest& request, int64_t micro_batch) {
  Program program;
  program.machine = request.machine;
  lower(request.model(micro_batch), request.lower, program);
  uint64_t tasks = 0;
  for (const Body& body : program.bodies) tasks += body.tasks.size();
  return tasks;
}

// What the lowest memory tier holds apart from its arena, whatever the budgets are: more is never less.
class ProgramShare {
 public:
  explicit ProgramShare(const PlanRequest& request)
      : memory_(lowest_memory_tier(request.machine)), own_(request.program_memory) {
    if (!own_.running) return;
    uint64_t tasks = 0;
    for (const int64_t micro_batch : request.micro_batches) {
      const uint64_t these = task_count(request, micro_batch);
      running_[micro_batch] = own_.running(these);
      tasks += these;
    }
    planning_ = own_.planning(tasks);
  }

  uint64_t running(int64_t micro_batch) const { return own_.running ? running_.at(micro_batch) : 0; }

  PlanRequest without(PlanRequest request, int64_t micro_batch) const {
    uint64_t& capacity = request.machine.tiers[memory_].capacity;
    const uint64_t taken = capacity < planning_ ? capacity : running(micro_batch);
    capacity -= std::min(capacity, taken);
    return request;
  }

  void add_to(Infeasible& why) const {
    const auto add = [&](uint64_t& bytes) { bytes = std::max(bytes + running(why.micro_batch), planning_); };
    if (why.least[memory_]) add(*why.least[memory_]);
    add(why.least_together[memory_]);
  }

 private:
  TierId memory_;
  const ProgramMemory& own_;
  std::map<int64_t, uint64_t> running_;  // by micro-batch
  uint64_t planning_ = 0;
};

}  // namespace

std::variant<Plan, Infeasible> make_plan(const PlanRequest& request) {
  CHECK(!request.micro_batches.empty(), "no micro-batch to plan for");
  const ProgramShare program(request);
  std::list<Search> searches;  // the best first
  const uint64_t share = kInstructionsMax / 2 / request.micro_batches.size();
  uint64_t left = kInstructionsMax;
  double best_seconds = Search::kNotFeasible;
  for (const int64_t micro_batch : request.micro_batches) {
    Search& search = searches.emplace_back(program.without(request, micro_batch), micro_batch);
    const double seconds = search.explore(share);
    left -= share - search.instructions_left();
    if (seconds >= (best_seconds < Search::kNotFeasible ? kSmallerWorthwhile : 1) * best_seconds) continue;
    best_seconds = seconds;
    searches.splice(searches.begin(), searches, std::prev(searches.end()));
  }
  searches.front().explore(left);
  std::optional<Infeasible> why;
  for (Search& search : searches) {
    auto result = search.finish();
    if (auto* plan = std::get_if<Plan>(&result)) {
      plan->program_bytes = program.running(plan->model.micro_batch);
      return result;
    }
    Infeasible& reason = std::get<Infeasible>(result);
    program.add_to(reason);
    why = why ? better_of(*std::move(why), std::move(reason)) : std::move(reason);
  }
  return *std::move(why);
}

}  // namespace sluice
