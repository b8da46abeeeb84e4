#include "engine/plan/search/search.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "engine/base/error.h"
#include "engine/base/pack.h"
#include "engine/plan/search/bytes_at_once.h"
#include "engine/plan/search/task_costs.h"
#include "engine/simulate/simulate.h"

namespace sluice {

namespace {

constexpr uint64_t kSearchShards = 256;    // of a whole model
constexpr double kCoarseWorthwhile = 0.9;  // of the plan's own shards; small groups (experts) are not cut
constexpr uint64_t kMarginShare = 8;       // a margin is a capacity divided by this
constexpr uint32_t kWholeMost = 4;         // candidates that are assembled and simulated whole
constexpr double kSeemsBetter = 0.97;      // of the seconds of the best whole plan
constexpr double kHopeless = 1.3;          // of the best seconds: above that, keeping even more is not tried

// Units of work (kSearchWork) to lower a program, and to assemble and simulate its step. A unit is about a
// microsecond.
// A long program counts for more, since all else that is done with it takes longer, too.
uint64_t work_of(uint64_t instructions) { return 200 + 4 * instructions + instructions * instructions / 500; }
constexpr uint64_t kRepeatWork = 1;      // to simulate an instruction once more
constexpr uint64_t kStepsSimulated = 3;  // steady_step_seconds() simulates one step, then two

// Adds up the work of the bodies that have tasks. `length` gives a body's number of tasks or instructions.
template <typename Length>
uint64_t work_of_bodies(const Program& program, Length length) {
  uint64_t work = 0;
  for (const Body& body : program.bodies)
    if (!body.tasks.empty()) work += work_of(length(body));
  return work;
}

// As steady_step_seconds(), but of many waves only kWavesSimulated are simulated. Each further wave counts as
// long as one more simulated wave in the middle takes.
constexpr size_t kWavesSimulated = 4;
double estimated_step_seconds(const Program& program, const MachineRates& rates,
                              const std::vector<BodyId>& step) {
  if (step.size() <= 2 * kWavesSimulated) return steady_step_seconds(program, rates, step);
  std::vector<BodyId> few(step.end() - kWavesSimulated, step.end());
  few.front() = step.front();
  const double of_few = steady_step_seconds(program, rates, few);
  few.insert(few.end() - 1, few[1]);
  const double a_wave = steady_step_seconds(program, rates, few) - of_few;
  return of_few + static_cast<double>(step.size() - kWavesSimulated) * a_wave;
}

uint64_t repeat_work(const Program& program, const std::vector<BodyId>& step) {
  uint64_t instructions = 0;
  for (size_t wave = 1; wave < std::min(step.size(), 2 * kWavesSimulated); ++wave)
    instructions += program.bodies[step[wave]].instructions.size();
  return kRepeatWork * kStepsSimulated * instructions;
}

// Counts the shards of all groups.
uint64_t shard_count(const Model& model, uint64_t shard_elements) {
  uint64_t shards = 0;
  for (const Group& group : model.groups) shards += (group.elements + shard_elements - 1) / shard_elements;
  return shards;
}

// Removes the tasks of all bodies but these.
void keep_only(Program& program, const std::vector<BodyId>& bodies) {
  for (size_t b = 0; b < program.bodies.size(); ++b)
    if (std::find(bodies.begin(), bodies.end(), b) == bodies.end()) program.bodies[b].tasks.clear();
}

}  // namespace

// As a rule the smallest micro-batch needs least memory, but more micro-batches have more padding.
Infeasible better_of(Infeasible a, Infeasible b) {
  if (b.least_together < a.least_together) std::swap(a, b);
  for (size_t t = 0; t < a.least.size(); ++t) {
    if (!b.least[t] || (a.least[t] && *a.least[t] <= *b.least[t])) continue;
    a.least[t] = b.least[t];
    if (t == a.tier) a.planning = b.planning;
  }
  return a;
}

Search::Search(const PlanRequest& request, int64_t micro_batch, uint64_t program_bytes)
    : request_(request),
      model_(request.model(micro_batch, request.sequence)),
      segments_(plan_segments(model_, request.lower.workspace_bytes)),
      layers_(model_.generates() ? static_cast<uint32_t>(model_.layers.size()) : model_.trained_layers()),
      program_bytes_(program_bytes),
      choices_(choices_for(request.placement)),
      backwards_(backward_choices(request, model_.precision)) {
  request_.rates.precision = model_.precision;
  for (const Tier& t : request.machine.tiers) capacities_.push_back(t.capacity);
  all_tiers_ = std::accumulate(capacities_.begin(), capacities_.end(), uint64_t{0});
  const uint64_t fine = default_shard_elements(model_),
                 coarse = round_up(parameter_count(model_) / kSearchShards, fine);
  const bool saves = request.lower.shard_elements == 0 &&
                     kCoarseWorthwhile * static_cast<double>(shard_count(model_, fine)) >
                         static_cast<double>(shard_count(model_, coarse));
  levels_ = {request.recompute.value_or(Recompute::all)};
  waves_ = wave_choices(request, model_);
  start(saves ? coarse : 0);
}

// Lowers with large shards, since what layers keep and make again does not depend on shards. `all` comes
// first: of levels with equal costs, worthwhile() takes the first.
std::vector<Recompute> Search::find_levels() const {
  std::vector<LevelCost> costs;
  for (size_t l = kRecomputes.size(); l-- > 0;) {
    const Recompute level = kRecomputes[l];
    Program program;
    program.machine = request_.machine;
    LowerOptions options = request_.lower;
    options.shard_elements = UINT64_C(1) << 40;
    uint32_t uses = 0;
    for (uint32_t layer = 0; layer < layers_; ++layer)
      uses += static_cast<uint32_t>(model_.layers[layer].segments.size());
    options.recompute.assign(uses, level);
    options.usual_only = !model_.generates();
    const Lowering lowering = lower(model_, options, program, segments_);
    LevelCost cost{level};
    for (const UseInfo& use : lowering.uses)
      cost.bytes += lowering.plans()[use.plan].at(use.recompute).saved_bytes;
    for (const Task& task : program.bodies[lowering.bodies().usual().front()].tasks)
      if (is_of_segment(task.kind)) cost.seconds += task_seconds(program, request_.rates, task);
    costs.push_back(cost);
  }
  return worthwhile(std::move(costs));
}

void Search::start(uint64_t search_shard) {
  search_shard_ = search_shard;
  weighed_.clear();
  best_seconds_ = kNotFeasible;
  too_much_kept_.clear();
  explored_ = false;
  tasks_weighed_ = 0;
  bases_.clear();
  first_ = {.backward = backwards_.front(), .waves = waves_.front()};
  first_.waves = feasible_waves(capacities_).value_or(waves_.front());
  best_ = first_;
}

// Guesses have no permanent buffers of their own, so a base does not depend on them.
const Search::Base& Search::base(const Candidate& c) const {
  Candidate first = first_;
  first.waves = c.waves;
  if (!request_.lower.update_waits_for_norm) first.backward = c.backward;
  const std::pair key{first.backward, first.waves};
  const auto known = bases_.find(key);
  if (known != bases_.end()) return known->second;
  Base& made = bases_.try_emplace(key, lowered(first, search_shard_)).first->second;
  // Only the least arrangement looks at tasks. Tasks take most of the memory, so other bases have none.
  const bool may_be_least =
      key.first == first_.backward && (c.waves == waves_.front() || c.waves == waves_.back());
  if (!may_be_least)
    for (Body& body : made.plan.program.bodies) std::vector<Task>().swap(body.tasks);
  return made;
}

// Memory is least with the fewest waves or with the most: activations shrink with more waves, and
// accumulators stay between bodies as soon as there are two waves.
std::optional<uint32_t> Search::feasible_waves(const std::vector<uint64_t>& capacities) const {
  if (base(waves_.front()).least.arrangement(capacities)) return waves_.front();
  for (const uint32_t waves : least_waves())
    if (base(waves).least.arrangement(capacities)) return waves;
  return std::nullopt;
}
std::vector<uint32_t> Search::least_waves() const {
  if (waves_.size() == 1 || !size_fits(size_at_most(base(waves_.back()).plan.program)))
    return {waves_.front()};
  return {waves_.front(), waves_.back()};
}

double Search::weigh(const Candidate& c, double to_beat, bool whatever_the_work) {
  const bool has_work = work_left_ > 0 || (whatever_the_work && tasks_weighed_ < kTasksInAnyCase);
  // Without work left, a candidate that needs another base is not weighed: making a base takes long.
  if (!has_work && std::ranges::none_of(weighed_, [&](const auto& known) {
        return known.first.backward == c.backward && known.first.waves == c.waves;
      }))
    return kNotFeasible;
  Way way{recompute_of(c), c.lead, c.backward, c.waves, homes_of_candidate(c)};
  auto known = weighed_.find(way);
  if (known == weighed_.end()) {
    if (!has_work) return kNotFeasible;
    const auto too_much = too_much_kept_.find({c.waves, c.kept.first});
    if (layers_ > kFewLayers && too_much != too_much_kept_.end() && c.kept.raised >= too_much->second)
      return kNotFeasible;
    known = weighed_.emplace(std::move(way), simulated(c)).first;
  }
  Outcome& o = known->second;
  if (!o.fits_whole && o.seconds < std::max(to_beat, kWorthwhile * best_seconds_)) {
    o.fits_whole = search_shard_ > 0 || other_bodies_fit(c);
    if (!o.fits_whole) o.seconds = kNotFeasible;
  }
  if (o.seconds < kWorthwhile * best_seconds_) {
    best_seconds_ = o.seconds;
    best_ = c;
  } else if (o.seconds < kNotFeasible && o.seconds > kHopeless * best_seconds_ && c.waves == best_.waves &&
             c.kept.raised > best_.kept.raised) {
    uint32_t& too_much = too_much_kept_.try_emplace({c.waves, c.kept.first}, UINT32_MAX).first->second;
    too_much = std::min(too_much, c.kept.raised);
  }
  return o.seconds;
}

Search::Outcome Search::simulated(const Candidate& c) {
  Outcome out{c};
  Plan plan = lowered(c, search_shard_, true, !model_.generates());
  const std::vector<BodyId> step = plan.lowering.bodies().usual();
  keep_only(plan.program, step);
  const uint64_t lowering_work = work_of_bodies(plan.program, [](const Body& b) { return b.tasks.size(); });
  spend(lowering_work);
  for (const Body& body : plan.program.bodies) tasks_weighed_ += body.tasks.size();
  for (const Body& body : plan.program.bodies)
    if (bytes_at_once(plan.program, body) > all_tiers_) return out;
  if (assemble(plan.program, arrange(plan.program, c))) return out;
  const uint64_t work = work_of_bodies(plan.program, [](const Body& b) { return b.instructions.size(); });
  spend(work + repeat_work(plan.program, step) - lowering_work);
  out.seconds = estimated_step_seconds(plan.program, request_.rates, step);
  out.written = bytes_to_files(plan.program, step);
  return out;
}

bool Search::other_bodies_fit(const Candidate& c) {
  Plan plan = lowered(c, search_shard_);
  for (const BodyId body : plan.lowering.bodies().usual()) plan.program.bodies[body].tasks.clear();
  const bool fit = !stage_all(plan.program, arrange(plan.program, c));
  uint64_t instructions = 0;
  for (const Body& body : plan.program.bodies) instructions += body.instructions.size();
  spend(work_of(instructions));
  return fit;
}

bool Search::is_feasible() {
  if (search_shard_ > 0 && feasible_waves(clearly_less())) return true;
  if (search_shard_ > 0) start(0);
  return feasible_waves(capacities_).has_value();
}

// If layers have different levels, single tasks may have a few more operands than with one level. Only the
// size of the whole program counts.
bool Search::size_fits(const ProgramSize& size) const {
  const auto& bytes = request_.program_memory.running;
  return !bytes || bytes(size) <= program_bytes_;
}

// Capacities less a margin, so that smaller shards make no difference.
std::vector<uint64_t> Search::clearly_less() const {
  std::vector<uint64_t> less = capacities_;
  for (uint64_t& bytes : less) bytes -= bytes / kMarginShare;
  return less;
}

std::variant<Plan, Infeasible> Search::finish(uint64_t memory_bytes) {
  if (!is_feasible()) return infeasible(memory_bytes);
  if (auto plan = assembled_best()) return std::move(*plan);
  if (search_shard_ > 0) {
    start(0);
    for (int call = 0; call < 2; ++call) explore(request_.search_work / 2);
    if (auto plan = assembled_best()) return std::move(*plan);
  }
  const std::optional<uint32_t> waves = feasible_waves(capacities_);
  if (!waves) return infeasible(memory_bytes);
  const auto arrangement = base(*waves).least.arrangement(capacities_);
  const Candidate first{.backward = first_.backward, .waves = *waves};
  Plan plan = lowered(first, 0, !request_.shape || request_.shape->plain_step);
  Arrangement least = leading(plan.program, arrangement->homes, Candidate{}.lead);
  if (assemble(plan.program, least)) {
    least = *arrangement;
    CHECK(!assemble(plan.program, least), "the least arrangement does not fit");
  }
  return finished(std::move(plan), 0, {}, least, std::nullopt);
}

// By segment, in forward order. The forward of a segment that ends in the loss runs within its backward
// anyway.
std::vector<Recompute> Search::recompute_of(const Candidate& c) const {
  std::vector<Recompute> recompute;
  for (uint32_t l = 0; l < layers_; ++l)
    for (const SegmentUse& use : model_.layers[l].segments)
      recompute.push_back(model_.segments[use.segment].loss ? Recompute::all
                                                            : level_of(c.kept, levels_, l, layers_));
  return recompute;
}

Plan Search::lowered(const Candidate& c, uint64_t shard_elements, bool plain_step, bool usual_only) const {
  Plan plan;
  plan.model = model_;
  plan.program.machine = request_.machine;
  LowerOptions options = request_.lower;
  if (shard_elements) options.shard_elements = shard_elements;
  options.recompute = recompute_of(c);
  options.plain_step = plain_step;
  options.usual_only = usual_only;
  options.waves = c.waves;
  options.updated_in_backward = updated_in_backward(c, model_, options.update_waits_for_norm);
  plan.lowering = lower(model_, options, plan.program, segments_);
  plan.shape = {model_.micro_batch, c.waves, c.backward, plan.lowering.bodies().step.has_value()};
  return plan;
}

// Seconds as the search predicts them, with its shards.
StepOrders Search::orders_of(const Candidate& c) const {
  const Plan plan = lowered(c, search_shard_);
  const BodyIds& bodies = plan.lowering.bodies();
  if (!bodies.guess) return {};
  const auto seconds = [&](BodyId begin) {
    const std::vector<BodyId> step = bodies.step_from(begin);
    Program program = plan.program;
    keep_only(program, step);
    return assemble(program, arrange(program, c)) ? std::numeric_limits<double>::infinity()
                                                  : estimated_step_seconds(program, request_.rates, step);
  };
  return {seconds(*bodies.step), seconds(*bodies.guess), seconds(*bodies.repair)};
}

// Seconds with the plan's own shards. If the plan has no plain step, the plain order keeps the seconds that
// the search predicted.
StepOrders Search::orders_of(const Plan& plan) const {
  StepOrders orders = plan.orders;
  const BodyIds& bodies = plan.lowering.bodies();
  if (!bodies.guess) return orders;
  const auto seconds = [&](BodyId begin) {
    return estimated_step_seconds(plan.program, request_.rates, bodies.step_from(begin));
  };
  orders.guessed = plan.step_seconds;
  orders.repaired = seconds(*bodies.repair);
  if (bodies.step) orders.plain = seconds(*bodies.step);
  return orders;
}

// The best plan that fits whole. A candidate that was searched with larger shards may be slower with the
// plan's own. Then others, which had seemed slower, are tried too.
std::optional<Plan> Search::assembled_best() const {
  std::optional<Plan> best;
  Candidate of_best;
  uint32_t left = kWholeMost;
  const Outcome* before = nullptr;
  for (const Outcome* o : ranked()) {
    const Outcome* const last = std::exchange(before, o);
    if (last && o->seconds == last->seconds && o->written == last->written) continue;  // as good, or the same
    if (left == 0 || (best && o->seconds >= kSeemsBetter * best->step_seconds)) break;
    std::optional<Plan> whole = assembled(*o);
    if (!whole) continue;
    --left;
    if (best && whole->step_seconds >= best->step_seconds) continue;
    best = std::move(whole);
    of_best = o->candidate;
  }
  if (!best) return best;
  best->orders = orders_of(*best);
  if (best->orders.break_even() > 0 || std::ranges::count(backwards_, 0u) == 0) return best;
  // With the plan's own shards, no guess makes up for its cost.
  of_best.backward = 0;
  std::optional<Plan> waits = assembled(Outcome{of_best});
  return waits && waits->step_seconds <= best->step_seconds ? std::move(waits) : std::move(best);
}

// Assembles the candidate's whole plan; none: the plan does not fit.
std::optional<Plan> Search::assembled(const Outcome& o) const {
  const Candidate& c = o.candidate;
  const StepOrders orders = orders_of(c);
  const bool plain_step = request_.shape ? request_.shape->plain_step
                                         : orders.break_even() < 1 && request_.overlap != Overlap::always;
  Plan whole = lowered(c, 0, plain_step);
  const Arrangement arrangement = arrange(whole.program, c);
  if (assemble(whole.program, arrangement) || !size_fits(size_of(whole.program))) return std::nullopt;
  const bool is_known = search_shard_ == 0 && c.waves <= 2 * kWavesSimulated && o.seconds < kNotFeasible;
  HomeRule rule = home_rule(c, whole.program, capacities_, base(c).least);
  return finished(std::move(whole), is_known ? o.seconds : 0, orders, arrangement, std::move(rule));
}

// The fastest first; of equals, those that are known to fit whole. Outcomes about as fast as the best then
// form classes by bytes written to files, compared with the best: at most half as many, at most a quarter,
// and so on. The class that writes least comes first.
std::vector<const Search::Outcome*> Search::ranked() const {
  std::vector<const Outcome*> list;
  for (const auto& [way, outcome] : weighed_)
    if (outcome.seconds < kNotFeasible) list.push_back(&outcome);
  std::stable_sort(list.begin(), list.end(), [](const Outcome* a, const Outcome* b) {
    return std::pair(a->seconds, b->fits_whole) < std::pair(b->seconds, a->fits_whole);
  });
  const auto slower = std::find_if(
      list.begin(), list.end(), [&](const Outcome* o) { return o->seconds > kWorthWear * list[0]->seconds; });
  const auto halvings = [most = list.empty() ? 0 : list[0]->written](const Outcome* o) {
    return std::bit_width(most / std::max(o->written, uint64_t{1}));
  };
  std::stable_sort(list.begin(), slower,
                   [&](const Outcome* a, const Outcome* b) { return halvings(a) > halvings(b); });
  return list;
}

Arrangement Search::arrange(const Program& program, const Candidate& c) const {
  return leading(program, homes_of(c, program, capacities_, base(c).least), c.lead);
}
Arrangement Search::leading(const Program& program, std::vector<TierId> homes, uint32_t lead) const {
  Arrangement a{std::move(homes), std::vector<uint32_t>(capacities_.size(), lead)};
  a.task_costs = task_costs(program, request_.rates);
  return a;
}

Plan Search::finished(Plan plan, double seconds, const StepOrders& orders, const Arrangement& arrangement,
                      std::optional<HomeRule> rule) const {
  plan.leads = arrangement.leads;
  plan.keeps_copies = arrangement.keep;
  plan.home_rule = std::move(rule);
  plan.step_seconds = seconds > 0
                          ? seconds
                          : steady_step_seconds(plan.program, request_.rates, plan.lowering.bodies().usual());
  plan.orders = orders;
  plan.least_seconds = least_seconds_;
  plan.rates = request_.rates;
  plan.placement = request_.placement;
  plan.candidates = static_cast<uint32_t>(weighed_.size());
  const TierId memory = lowest_memory_tier(request_.machine);
  std::vector<bool> is_loss;  // by segment use
  for (const Layer& layer : model_.layers)
    for (const SegmentUse& use : layer.segments) is_loss.push_back(model_.segments[use.segment].loss);
  for (const auto& [way, outcome] : weighed_) {
    const bool upper_is_free =
        std::all_of(way.homes.begin(), way.homes.end(), [&](TierId home) { return home >= memory; });
    Weighed& weighed = plan.weighed.emplace_back(Weighed{
        .first = first_class(outcome.candidate),
        .first_keep_more = outcome.candidate.kept.first,
        .waves = way.waves,
        .upper_is_free = upper_is_free,
        .moved = !outcome.candidate.moved.empty(),
        .seconds = outcome.seconds < kNotFeasible ? outcome.seconds : 0,
        .written = outcome.written,
    });
    for (size_t u = 0; u < way.recompute.size(); ++u)
      if (!is_loss[u]) ++weighed.segments[static_cast<size_t>(way.recompute[u])];
  }
  return plan;
}

Infeasible Search::infeasible(uint64_t memory_bytes) const {
  const std::vector<uint32_t> all = least_waves();
  Infeasible out = infeasible(all.front(), memory_bytes);
  for (size_t i = 1; i < all.size(); ++i) out = better_of(std::move(out), infeasible(all[i], memory_bytes));
  return out;
}

Infeasible Search::infeasible(uint32_t waves, uint64_t memory_bytes) const {
  Infeasible out;
  out.micro_batch = model_.micro_batch;
  const auto& [plan, least] = base(waves);
  out.least_together = least.together(memory_bytes);
  while (out.tier + 1u < capacities_.size() && out.least_together[out.tier] <= capacities_[out.tier])
    ++out.tier;
  for (TierId t = 0; t < capacities_.size(); ++t) {
    uint64_t most = request_.most.empty() ? Least::kPlenty : std::min(request_.most[t], Least::kPlenty);
    if (t == out.tier) most = std::max(most, out.least_together[t]);
    out.least.push_back(least.of_tier(t, capacities_, most));
  }
  std::vector<uint64_t> mended = capacities_;
  mended[out.tier] = out.least[out.tier].value_or(mended[out.tier]);
  const BodyShortage largest = least.largest_task(out.tier, mended);
  if (largest.shortage.task == kNoTask) return out;
  const Task& t = plan.program.bodies[largest.body].tasks[largest.shortage.task];
  out.task = task_kind_name(t.kind);
  if (is_of_segment(t.kind)) out.task += " of " + model_.layers[plan.lowering.uses[t.subject].layer].name;
  return out;
}

}  // namespace sluice
