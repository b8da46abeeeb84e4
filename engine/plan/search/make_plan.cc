// make_plan() of plan.h: the search (search.h) over micro-batches, in the memory that programs leave.
//
// With several micro-batches, half of the search's work budget (PlanRequest::search_work) is divided among
// all of them. The best micro-batch gets the rest. If its whole plan is slower than its search predicted, the
// searches of the others go on, too. A smaller micro-batch must be clearly faster: the cost model does not
// know what fewer rows cost a matrix product.
#include <algorithm>
#include <list>
#include <map>
#include <numeric>
#include <set>

#include "engine/base/error.h"
#include "engine/plan/assemble/program_size.h"
#include "engine/plan/lower/picks.h"
#include "engine/plan/plan.h"
#include "engine/plan/search/search.h"

namespace sluice {

namespace {

constexpr double kSmallerWorthwhile = 0.95;  // of the larger micro-batch's seconds

// What a program itself takes of the lowest memory tier, beside its arena. With a larger budget, the arena
// never has less.
class ProgramShare {
 public:
  explicit ProgramShare(const PlanRequest& request)
      : memory_(lowest_memory_tier(request.machine)), own_(request.program_memory) {
    if (!own_.running) return;
    std::vector<ProgramSize> sizes;
    for (const int64_t micro_batch : request.micro_batches) {
      sizes.push_back(program_size(request, micro_batch));
      running_[micro_batch] = own_.running(sizes.back());
    }
    planning_ = own_.planning(sizes);
  }

  uint64_t running(int64_t micro_batch) const { return own_.running ? running_.at(micro_batch) : 0; }

  // Bytes that the arena can have in any case: planning takes them, and the running program does not.
  uint64_t arena_in_any_case(int64_t micro_batch) const {
    return planning_ - std::min(planning_, running(micro_batch));
  }

  PlanRequest without(PlanRequest request, int64_t micro_batch) const {
    uint64_t& capacity = request.machine.tiers[memory_].capacity;
    const uint64_t taken = capacity < planning_ ? capacity : running(micro_batch);
    capacity -= std::min(capacity, taken);
    return request;
  }

  void add_to(Infeasible& why) const {
    why.planning = planning_;
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

std::variant<Plan, Infeasible> plan_with_these_waves(const PlanRequest& request) {
  CHECK(!request.micro_batches.empty(), "no micro-batch to plan for");
  const ProgramShare program(request);
  std::list<Search> searches;  // the best first
  const uint64_t share = request.search_work / 2 / request.micro_batches.size();
  uint64_t left = request.search_work;
  double best_seconds = Search::kNotFeasible;
  for (const int64_t micro_batch : request.micro_batches) {
    Search& search = searches.emplace_back(program.without(request, micro_batch), micro_batch,
                                           program.running(micro_batch));
    const double seconds = search.explore(share);
    left -= share - search.work_left();
    const bool is_best =
        seconds < (best_seconds < Search::kNotFeasible ? kSmallerWorthwhile : 1) * best_seconds;
    if (is_best) {
      best_seconds = seconds;
      searches.splice(searches.begin(), searches, std::prev(searches.end()));
    }
    if (searches.size() > 1 && best_seconds < Search::kNotFeasible)
      (is_best ? *std::next(searches.begin()) : searches.back()).free_bases();
  }
  searches.front().explore(left);
  std::optional<Infeasible> why;
  std::optional<Plan> best;  // a whole plan may be slower than its search predicted
  for (Search& search : searches) {
    if (best) {
      if (search.best_seconds() >= kSmallerWorthwhile * best->step_seconds) continue;
      search.explore(request.search_work / 2);
    }
    auto result = search.finish(program.arena_in_any_case(search.micro_batch()));
    if (auto* plan = std::get_if<Plan>(&result)) {
      plan->program_bytes = program.running(plan->model.micro_batch);
      if (!best || plan->step_seconds < kSmallerWorthwhile * best->step_seconds) best = std::move(*plan);
      continue;
    }
    Infeasible& reason = std::get<Infeasible>(result);
    program.add_to(reason);
    why = why ? better_of(*std::move(why), std::move(reason)) : std::move(reason);
  }
  if (best) return *std::move(best);
  return *std::move(why);
}

// Lowers programs whose layers all recompute alike, with as few waves as the request allows.
class AlikeLowerer {
 public:
  AlikeLowerer(const PlanRequest& request, int64_t micro_batch)
      : request_(request),
        model_(request.model(micro_batch, request.sequence)),
        segments_(plan_segments(model_, request.lower.workspace_bytes)) {}

  // The fewest and the most groups that may be updated in backward. A group's part of a size depends on
  // whether this group is updated in backward, and not on others.
  std::set<uint32_t> backward_extremes() const {
    const std::vector<uint32_t> backward = backward_choices(request_, model_.precision);
    return {std::ranges::min(backward), std::ranges::max(backward)};
  }

  Program lowered(Recompute level, uint32_t in_backward) const {
    Program program;
    program.machine = request_.machine;
    LowerOptions options = request_.lower;
    options.recompute.clear();
    options.waves = wave_choices(request_, model_).front();
    options.updated_in_backward =
        updated_in_backward({.backward = in_backward}, model_, options.update_waits_for_norm);
    for (const Layer& layer : model_.layers)
      for (const SegmentUse& use : layer.segments)
        options.recompute.push_back(model_.segments[use.segment].loss ? Recompute::all : level);
    lower(model_, options, program, segments_);
    return program;
  }

 private:
  const PlanRequest& request_;
  Model model_;
  std::shared_ptr<const SegmentPlans> segments_;
};

// The request with long waves allowed; none: this would not allow fewer waves.
std::optional<PlanRequest> with_long_waves(PlanRequest request) {
  const auto fewest = [&] {
    std::vector<uint32_t> waves;
    for (const int64_t micro_batch : request.micro_batches)
      waves.push_back(wave_choices(request, request.model(micro_batch, request.sequence)).front());
    return waves;
  };
  const std::vector<uint32_t> without = fewest();
  request.long_waves = true;
  if (fewest() == without) return std::nullopt;
  return request;
}

// The request without banks; none: it has none. A bank has one home. Where the bank fits nowhere as a whole,
// its experts may fit several tiers.
std::optional<PlanRequest> without_banks(PlanRequest request) {
  const Model model = request.model(request.micro_batches.front(), request.sequence);
  if (!request.lower.picks_experts || find_picks(model, home_alignment(request.machine)).uses.empty())
    return std::nullopt;
  request.lower.picks_experts = false;
  return request;
}

}  // namespace

ProgramSize program_size(const PlanRequest& request, int64_t micro_batch) {
  const AlikeLowerer lowerer(request, micro_batch);
  ProgramSize size;
  for (const Recompute level : kRecomputes)
    for (const uint32_t in_backward : lowerer.backward_extremes())
      if (!request.recompute || level == *request.recompute)
        size = larger_of(size, size_at_most(lowerer.lowered(level, in_backward)));
  return size;
}

uint64_t program_tasks(const PlanRequest& request, int64_t micro_batch) {
  const AlikeLowerer lowerer(request, micro_batch);
  const Program program =
      lowerer.lowered(request.recompute.value_or(Recompute::all), *lowerer.backward_extremes().rbegin());
  return std::accumulate(program.bodies.begin(), program.bodies.end(), uint64_t{0},
                         [](uint64_t tasks, const Body& body) { return tasks + body.tasks.size(); });
}

bool is_feasible(const PlanRequest& request) {
  const ProgramShare program(request);
  const bool feasible =
      std::any_of(request.micro_batches.begin(), request.micro_batches.end(), [&](int64_t micro_batch) {
        return Search(program.without(request, micro_batch), micro_batch, program.running(micro_batch))
            .is_feasible();
      });
  if (feasible) return true;
  const std::optional<PlanRequest> finer = without_banks(request);
  return finer && is_feasible(*finer);
}

bool is_short_enough(const PlanRequest& request, int64_t micro_batch) {
  return !wave_choices(request, request.model(micro_batch, request.sequence)).empty();
}

std::variant<Plan, Infeasible> make_plan(const PlanRequest& request) {
  auto result = plan_with_these_waves(request);
  auto* const why = std::get_if<Infeasible>(&result);
  if (!why) return result;
  std::optional<PlanRequest> otherwise = without_banks(request);
  if (!otherwise) otherwise = with_long_waves(request);
  if (!otherwise) return result;
  auto other = plan_with_these_waves(*otherwise);
  if (auto* const reason = std::get_if<Infeasible>(&other))
    return better_of(std::move(*why), std::move(*reason));
  return other;
}

}  // namespace sluice
