// place: the search behind make_plan.
//
// A candidate is: how many bytes of the lowest memory tier hold permanent homes, in which order buffer classes claim them
// (each buffer with the traffic that a home there saves), how far fetches lead their uses, and how many of the last layers
// keep their saved tensors. Every candidate is lowered, assembled and simulated; one quantity is varied at a time, from the
// best so far, until a round brings nothing. The order of trials is fixed, so that a plan is a function of its request.
#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "engine/error.h"
#include "engine/pack.h"
#include "engine/plan/plan.h"
#include "engine/simulate.h"

namespace sluice {

namespace {

struct Candidate {
  uint32_t home_share = 0;      // thousandths of the lowest memory tier that homes may fill
  uint32_t order = 0;           // index into kClassOrders
  uint32_t lead = 2;            // tasks
  uint32_t kept_layers = 0;     // of the last ones
  auto key() const { return std::tie(home_share, order, lead, kept_layers); }
  bool operator<(const Candidate& other) const { return key() < other.key(); }
};

using ClassOrder = std::array<BufferClass, 3>;
constexpr std::array<ClassOrder, 3> kClassOrders{{{BufferClass::weights, BufferClass::gradients, BufferClass::state},
                                                  {BufferClass::weights, BufferClass::state, BufferClass::gradients},
                                                  {BufferClass::gradients, BufferClass::weights, BufferClass::state}}};
constexpr std::array<uint32_t, 12> kHomeShares{1000, 0, 100, 250, 400, 550, 700, 800, 875, 925, 960, 985};
constexpr std::array<uint32_t, 6> kLeads{2, 1, 4, 8, 16, 0};

struct Trial {
  std::optional<Plan> plan;
  std::optional<BodyShortage> shortage;
  double seconds = 0;
};

class Search {
 public:
  Search(const PlanRequest& request, int64_t micro_batch) : request_(request), model_(request.model(micro_batch)) {}

  std::variant<Plan, Infeasible> run() {
    layers_ = static_cast<uint32_t>(model_.layers.size());
    Candidate best;
    best.kept_layers = request_.recompute == RecomputeChoice::none ? layers_ : 0;
    const bool file_tier = request_.machine.tiers.back().file;
    best.home_share = file_tier ? find_first_share(best) : 1000;
    try_candidate(best);
    if (!best_) return infeasible();
    for (bool improved = true; improved;) {
      improved = false;
      if (file_tier)
        for (const uint32_t share : kHomeShares) improved |= try_from_best(&Candidate::home_share, share);
      if (request_.machine.tiers.size() > 1)
        for (const uint32_t lead : kLeads) improved |= try_from_best(&Candidate::lead, lead);
      if (file_tier)
        for (uint32_t order = 0; order < kClassOrders.size(); ++order) improved |= try_from_best(&Candidate::order, order);
      if (request_.recompute == RecomputeChoice::automatic)
        for (const uint32_t part : {4, 2, 3, 1, 0}) improved |= try_from_best(&Candidate::kept_layers, layers_ * part / 4);
    }
    return std::move(*best_);
  }

 private:
  // The largest share of homes with which everything fits; 0 if none does.
  uint32_t find_first_share(Candidate c) {
    for (const uint32_t share : {1000u, 925u, 800u, 550u, 250u, 0u}) {
      c.home_share = share;
      if (try_candidate(c)) return share;
    }
    return 0;
  }

  bool try_from_best(uint32_t Candidate::*field, uint32_t value) {
    Candidate c = best_candidate_;
    c.*field = value;
    return try_candidate(c);
  }

  // True when it became the best.
  bool try_candidate(const Candidate& c) {
    if (!tried_.insert(c).second) return false;
    Plan plan;
    plan.model = model_;
    plan.program.machine = request_.machine;
    LowerOptions options = request_.lower;
    options.recompute.clear();
    for (uint32_t l = 0; l < layers_; ++l)
      options.recompute.insert(options.recompute.end(), model_.layers[l].segments.size(), l + c.kept_layers < layers_);
    plan.lowering = lower(model_, options, plan.program);
    plan.arrangement.homes = choose_homes(plan.program, c);
    plan.arrangement.leads.assign(request_.machine.tiers.size(), c.lead);
    if (const auto shortage = assemble(plan.program, plan.arrangement)) {
      if (!shortage_ || shortage->shortage.bytes_needed < shortage_->shortage.bytes_needed) {
        shortage_ = shortage;
        short_program_ = std::move(plan.program);
      }
      return false;
    }
    MachineRates rates = request_.rates;
    rates.precision = model_.precision;
    plan.step_seconds = steady_step_seconds(plan.program, rates, *plan.lowering.bodies.step);
    constexpr double kWorthwhile = 0.998;
    if (best_ && plan.step_seconds >= kWorthwhile * best_->step_seconds) return false;
    best_ = std::move(plan);
    best_candidate_ = c;
    return true;
  }

  // Buffers of each class claim homes in the lowest memory tier, in the order of the candidate, until its share is full.
  std::vector<TierId> choose_homes(const Program& program, const Candidate& c) const {
    const TierId memory = lowest_memory_tier(program.machine), lowest = lowest_tier(program.machine);
    std::vector<TierId> homes(program.buffers.size(), lowest);
    if (memory == lowest) return homes;
    const uint64_t alignment = placement_alignment(program.machine, memory);
    uint64_t room = program.machine.tiers[memory].capacity / 1000 * c.home_share;
    for (const Buffer& b : program.buffers)
      if (b.permanent && b.kind == BufferClass::scalars)
        room -= std::min(room, round_up(b.ring == kNoRing ? b.bytes() : kRingSlots * b.slot_stride, alignment));
    for (const BufferClass kind : kClassOrders[c.order])
      for (size_t i = 0; i < program.buffers.size(); ++i) {
        const Buffer& b = program.buffers[i];
        const uint64_t bytes = round_up(b.bytes(), alignment);
        if (!b.permanent || b.kind != kind || bytes > room) continue;
        homes[i] = memory;
        room -= bytes;
      }
    return homes;
  }

  Infeasible infeasible() const {
    CHECK(shortage_.has_value(), "no plan and no shortage");
    const Body& body = short_program_.bodies[shortage_->body];
    const Shortage& s = shortage_->shortage;
    Infeasible out{body.name, "", s.tier, s.bytes_needed, request_.machine.tiers[s.tier].capacity};
    if (s.task != kNoTask) {
      const Task& t = body.tasks[s.task];
      out.task = std::string(task_kind_name(t.kind)) + " " + std::to_string(t.subject) + "." + std::to_string(t.slice);
    }
    return out;
  }

  const PlanRequest& request_;
  Model model_;
  uint32_t layers_ = 0;
  std::set<Candidate> tried_;
  std::optional<Plan> best_;
  Candidate best_candidate_;
  std::optional<BodyShortage> shortage_;  // the smallest seen
  Program short_program_;
};

}  // namespace

std::variant<Plan, Infeasible> make_plan(const PlanRequest& request) {
  CHECK(!request.micro_batches.empty(), "no micro-batch to plan for");
  std::optional<Infeasible> why;
  for (const int64_t micro_batch : request.micro_batches) {
    auto result = Search(request, micro_batch).run();
    if (std::holds_alternative<Plan>(result)) return result;
    why = std::get<Infeasible>(result);
  }
  return *why;
}

}  // namespace sluice
