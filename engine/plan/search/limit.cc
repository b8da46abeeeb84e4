#include "engine/plan/search/limit.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <span>

#include "engine/plan/assemble/assemble.h"
#include "engine/simulate/simulate.h"

namespace sluice {

namespace {

struct Choice {  // a task that either of two lanes may run, and its seconds on each
  LaneId first, second;
  double on_first, on_second;
};

// Seconds that two lanes take at least. They have `first` and `second` seconds of other work, and the choices
// are divided between them: tasks that gain most on the first lane go there, until both lanes end at once.
double seconds_shared(double first, double second, std::vector<Choice> choices) {
  std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
    return a.on_first * b.on_second < b.on_first * a.on_second;
  });
  for (const Choice& c : choices) second += c.on_second;
  for (const Choice& c : choices) {
    const double both = c.on_first + c.on_second;
    const double part = both > 0 ? std::clamp((second - first) / both, 0.0, 1.0) : 0.0;
    first += part * c.on_first;
    second -= part * c.on_second;
  }
  return std::max(first, second);
}

double longest(const Loads& loads) {
  double most = 0;
  for (const std::vector<double>* all : {&loads.lanes, &loads.pools, &loads.drives})
    for (const double seconds : *all) most = std::max(most, seconds);
  return most;
}

// A program for loads_of(), not to be run: its last body has the tasks and transfers of a step, without
// order.
class Work {
 public:
  Work(const Machine& machine, const MachineRates& rates, const Model& model, LowerOptions options,
       std::shared_ptr<const SegmentPlans> segments)
      : rates_(rates) {
    program_.machine = machine;
    size_t uses = 0;
    for (const Layer& layer : model.layers) uses += layer.segments.size();
    options.recompute.assign(uses, Recompute::none);
    // Without guesses, the usual step is the plain one.
    options.usual_only = options.updated_in_backward.empty() && !model.generates();
    const Lowering lowering = lower(model, options, program_, std::move(segments));
    for (const BodyId wave : lowering.bodies().plain_step()) ++waves_[wave];
    step_ = static_cast<BodyId>(program_.bodies.size());
    program_.bodies.emplace_back();
  }

  double seconds_of_moves() {
    for (const auto& [wave, times] : waves_)
      for (TierId tier = 0; tier < lowest_tier(program_.machine); ++tier)
        add_moves(tier, program_.bodies[wave], times);
    return longest(loads_of(program_, rates_, {&step_, 1}));
  }

  double seconds() {
    seconds_of_moves();
    for (const auto& [wave, times] : waves_)
      for (uint32_t time = 0; time < times; ++time)
        for (const Task& task : program_.bodies[wave].tasks) add_task(task);
    Loads loads = loads_of(program_, rates_, {&step_, 1});
    add_least_of_choices(loads.pools);
    double most = longest(loads);
    for (LaneId first = 0; first < loads.lanes.size(); ++first)
      for (LaneId second = 0; second < loads.lanes.size(); ++second) {
        std::vector<Choice> theirs;
        std::copy_if(choices_.begin(), choices_.end(), std::back_inserter(theirs),
                     [&](const Choice& c) { return c.first == first && c.second == second; });
        if (theirs.empty()) continue;
        most = std::max(most, seconds_shared(loads.lanes[first], loads.lanes[second], std::move(theirs)));
      }
    return most;
  }

 private:
  Body& body() { return program_.bodies[step_]; }

  // The lowest tier in which the task can run.
  TierId lowest_of(const Task& task) const {
    TierId down = 0;
    for (const Unit& unit : program_.machine.units)
      if (unit.kind == task.kind) down = std::max(down, unit.tier);
    return down;
  }

  void add_task(const Task& task) {
    const auto t = static_cast<uint32_t>(body().tasks.size());
    body().tasks.push_back(task);
    std::vector<const Unit*> units;
    for (const Unit& unit : program_.machine.units)
      if (unit.kind == task.kind && seconds_on(unit, task) < kUnlimited) units.push_back(&unit);
    if (units.size() == 1) return body().instructions.push_back(run_on(*units[0], t));
    alternatives_.resize(std::max(alternatives_.size(), units.size()));
    for (size_t k = 0; k < units.size(); ++k) alternatives_[k].push_back(run_on(*units[k], t));
    if (units.size() == 2)
      choices_.push_back(
          {units[0]->lane, units[1]->lane, seconds_on(*units[0], task), seconds_on(*units[1], task)});
  }

  double seconds_on(const Unit& unit, const Task& task) const {
    return unit_seconds(program_, rates_, task, unit);
  }
  Instruction run_on(const Unit& unit, uint32_t t) {
    const Task& task = body().tasks[t];
    Instruction instruction{.lane = unit.lane, .task = t, .operands = task.operands};
    instruction.places.assign(task.operands.size(), {unit.tier, 0});
    return instruction;
  }

  // Adds to each pool the least that tasks with a choice take of it. Such tasks differ only in size.
  void add_least_of_choices(std::vector<double>& pools) {
    std::vector<double> least(pools.size(), alternatives_.empty() ? 0 : kUnlimited);
    for (std::vector<Instruction>& instructions : alternatives_) {
      body().instructions = std::move(instructions);
      const Loads loads = loads_of(program_, rates_, {&step_, 1});
      for (size_t p = 0; p < pools.size(); ++p) least[p] = std::min(least[p], loads.pools[p]);
    }
    for (size_t p = 0; p < pools.size(); ++p) pools[p] += least[p];
  }

  bool counts(const Operand& o) const {
    const Buffer& buffer = program_.buffers[o.buffer];
    return buffer.permanent && buffer.ring == kNoRing;
  }

  // The least bytes that come up over the boundary below `tier` while these tasks run. At any moment, tasks
  // above the boundary still have to read some bytes before anything writes them anew. At most `room` of
  // these bytes lie above.
  uint64_t bytes_up(std::span<const Task> tasks, TierId tier, uint64_t room) const {
    uint64_t needed = 0, most = 0;
    std::vector<uint64_t> of(program_.buffers.size());
    for (auto task = tasks.rbegin(); task != tasks.rend(); ++task) {
      const bool is_above = lowest_of(*task) <= tier;
      for (const Operand& o : task->operands) {
        if (!counts(o) || (!is_above && o.access == Access::read)) continue;
        const bool reads = is_above && o.access != Access::write;
        const uint64_t bytes = reads ? operand_bytes(program_.buffers[o.buffer], o) : 0;
        needed += bytes - of[o.buffer];
        of[o.buffer] = bytes;
      }
      most = std::max(most, needed);
    }
    return most - std::min(most, room);
  }

  // The least bytes that go down: what is written above the boundary and has content after the wave, less
  // `room`.
  uint64_t bytes_down(const Body& wave, TierId tier, uint64_t room) const {
    std::set<BufferId> written;
    for (const Task& task : wave.tasks)
      for (const Operand& o : task.operands)
        if (counts(o) && o.access != Access::read && lowest_of(task) <= tier &&
            !program_.buffers[o.buffer].is_empty_in(wave.end))
          written.insert(o.buffer);
    uint64_t bytes = 0;
    for (const BufferId b : written) bytes += program_.buffers[b].bytes();
    return bytes - std::min(bytes, room);
  }

  // Adds the transfers over the boundary below `tier`, of a wave that runs `times` times in a step. Its
  // forward and its backward each bring up what they need.
  void add_moves(TierId tier, const Body& wave, uint32_t times) {
    uint64_t room = 0;
    for (TierId above = 0; above <= tier; ++above) room += program_.machine.tiers[above].capacity;
    const std::span tasks(wave.tasks);
    const auto backward =
        std::find_if(tasks.begin(), tasks.end(), [](const Task& t) { return t.kind == TaskKind::backward; });
    const auto forward = static_cast<size_t>(backward - tasks.begin());
    const uint64_t up =
        std::max(bytes_up(tasks, tier, room),
                 bytes_up(tasks.first(forward), tier, room) + bytes_up(tasks.subspan(forward), tier, room));
    const auto below = static_cast<TierId>(tier + 1);
    move(below, tier, times * up);
    move(tier, below, times * bytes_down(wave, tier, room));
  }

  void move(TierId from, TierId to, uint64_t bytes) {
    const auto& links = program_.machine.links;
    const auto link =
        std::find_if(links.begin(), links.end(), [&](const Link& l) { return l.from == from && l.to == to; });
    if (bytes == 0 || link == links.end()) return;
    const auto buffer = static_cast<BufferId>(program_.buffers.size());
    program_.buffers.push_back({.name = "moved", .cuts = {0, bytes}});
    Instruction copy{.lane = link->lane};
    copy.operands = {{buffer, 0, 1, Access::read}, {buffer, 0, 1, Access::write}};
    copy.places = {{from, 0}, {to, 0}};
    body().instructions.push_back(std::move(copy));
  }

  const MachineRates& rates_;
  Program program_;
  std::map<BodyId, uint32_t> waves_;  // how often each runs in a step
  BodyId step_ = 0;
  std::vector<Choice> choices_;
  std::vector<std::vector<Instruction>> alternatives_;  // tasks with a choice: on the first unit, on the next
};

}  // namespace

double least_step_seconds(const Machine& machine, const MachineRates& rates, const Model& model,
                          LowerOptions options, std::shared_ptr<const SegmentPlans> segments) {
  return Work(machine, rates, model, std::move(options), std::move(segments)).seconds();
}

double least_moving_seconds(const Machine& machine, const MachineRates& rates, const Model& model,
                            LowerOptions options, std::shared_ptr<const SegmentPlans> segments) {
  return Work(machine, rates, model, std::move(options), std::move(segments)).seconds_of_moves();
}

}  // namespace sluice
