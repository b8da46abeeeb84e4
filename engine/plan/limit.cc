#include "engine/plan/limit.h"

#include <algorithm>

#include "engine/plan/assemble.h"
#include "engine/simulate.h"

namespace sluice {

namespace {

// A program of one body, to be loaded, not to be run: tasks and transfers without order.
class Work {
 public:
  Work(const Machine& machine, const MachineRates& rates, const Model& model, LowerOptions options)
      : rates_(rates) {
    program_.machine = machine;
    size_t uses = 0;
    for (const Layer& layer : model.layers) uses += layer.segments.size();
    options.recompute.assign(uses, false);
    const Lowering lowering = lower(model, options, program_);
    step_ = *lowering.bodies().step;
    visits_.resize(program_.buffers.size(), lowest_tier(machine));
    written_ = visits_;
  }

  double seconds() {
    for (uint32_t t = 0; t < body().tasks.size(); ++t) add_task(t);
    for (TierId tier = 0; tier < lowest_tier(program_.machine); ++tier) add_moves(tier);
    const Loads loads = loads_of(program_, rates_, step_);
    double most = 0;
    for (const std::vector<double>* all : {&loads.lanes, &loads.pools, &loads.drives})
      for (const double seconds : *all) most = std::max(most, seconds);
    return most;
  }

 private:
  Body& body() { return program_.bodies[step_]; }

  void add_task(uint32_t t) {
    const Task& task = body().tasks[t];
    const Unit* best = nullptr;
    double least = kUnlimited;
    TierId down = 0;  // the lowest tier in which it can run
    for (const Unit& unit : program_.machine.units) {
      if (unit.kind != task.kind) continue;
      down = std::max(down, unit.tier);
      const double seconds = unit_seconds(program_, rates_, task, unit);
      if (best && seconds >= least) continue;
      best = &unit;
      least = seconds;
    }
    for (const Operand& o : task.operands) {
      visits_[o.buffer] = std::min(visits_[o.buffer], down);
      if (o.access != Access::read) written_[o.buffer] = std::min(written_[o.buffer], down);
    }
    Instruction instruction{.lane = best->lane, .task = t, .operands = task.operands};
    instruction.places.assign(task.operands.size(), {best->tier, 0});
    body().instructions.push_back(std::move(instruction));
  }

  // Over the boundary below `tier`.
  void add_moves(TierId tier) {
    uint64_t room = 0, visited = 0, written = 0;
    for (TierId above = 0; above <= tier; ++above) room += program_.machine.tiers[above].capacity;
    for (BufferId b = 0; b < visits_.size(); ++b) {
      const Buffer& buffer = program_.buffers[b];
      if (!buffer.permanent || buffer.ring != kNoRing) continue;
      if (visits_[b] <= tier) visited += buffer.bytes();
      if (written_[b] <= tier) written += buffer.bytes();
    }
    const auto below = static_cast<TierId>(tier + 1);
    move(below, tier, visited - std::min(visited, room));
    move(tier, below, written - std::min(written, room));
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
  BodyId step_ = 0;
  std::vector<TierId> visits_, written_;  // by buffer: the highest tier that one of its tasks insists on
};

}  // namespace

double least_step_seconds(const Machine& machine, const MachineRates& rates, const Model& model,
                          LowerOptions options) {
  return Work(machine, rates, model, std::move(options)).seconds();
}

}  // namespace sluice
