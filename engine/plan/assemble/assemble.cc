#include "engine/plan/assemble/assemble.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/pack.h"
#include "engine/plan/assemble/sync.h"

namespace sluice {

namespace {

// The home of the task's largest permanent operand; the lowest tier if the task has no such operand.
TierId home_of(const Program& program, const Task& task) {
  TierId home = lowest_tier(program.machine);
  uint64_t most = 0;
  for (const Operand& o : task.operands) {
    const Buffer& b = program.buffers[o.buffer];
    if (!b.permanent || operand_bytes(b, o) <= most) continue;
    most = operand_bytes(b, o);
    home = b.home;
  }
  return home;
}

// The lowest unit that is not below the task's home. If all units are below it, the highest one.
const Unit& unit_of(const Program& program, const Task& task) {
  const TierId home = home_of(program, task);
  const Unit* best = nullptr;
  for (const Unit& unit : program.machine.units) {
    if (unit.kind != task.kind) continue;
    const bool reaches = unit.tier <= home;
    if (!best || (reaches ? best->tier > home || best->tier < unit.tier : best->tier > unit.tier))
      best = &unit;
  }
  CHECK(best, std::string("no unit for ") + task_kind_name(task.kind));
  return *best;
}

void instructions_from_tasks(const Program& program, Body& body) {
  body.instructions.clear();
  body.instructions.reserve(body.tasks.size());
  for (uint32_t t = 0; t < body.tasks.size(); ++t) {
    const Unit& unit = unit_of(program, body.tasks[t]);
    Instruction in;
    in.lane = unit.lane;
    in.task = t;
    in.operands = body.tasks[t].operands;
    in.places.assign(in.operands.size(), {unit.tier, 0});
    if (const auto k = by_host(in.operands)) in.places[*k].tier = lowest_memory_tier(program.machine);
    body.instructions.push_back(std::move(in));
  }
}

}  // namespace

std::vector<TierId> lowest_touches(const Program& program) {
  std::vector<TierId> of_kind(kTaskKinds, 0), touches(program.buffers.size(), 0);
  for (const Unit& unit : program.machine.units) {
    TierId& tier = of_kind[static_cast<size_t>(unit.kind)];
    tier = std::max(tier, unit.tier);
  }
  for (const Body& body : program.bodies)
    for (const Task& task : body.tasks)
      for (const Operand& o : task.operands)
        touches[o.buffer] = std::max(touches[o.buffer], o.by_host ? lowest_memory_tier(program.machine)
                                                                  : of_kind[static_cast<size_t>(task.kind)]);
  return touches;
}

std::vector<uint64_t> place_homes(Program& program, const std::vector<TierId>& homes) {
  const TierId memory = lowest_memory_tier(program.machine);
  const std::vector<TierId> touches = lowest_touches(program);
  std::vector<uint64_t> end(program.machine.tiers.size(), 0);
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    Buffer& b = program.buffers[i];
    b.home = b.kind == BufferClass::scalars     ? memory
             : b.kind == BufferClass::workspace ? touches[i]
             : b.permanent                      ? homes[i]
                                                : std::max(homes[i], touches[i]);
    if (!b.owns_home()) continue;
    uint64_t& top = end[b.home];
    b.home_offset = round_up(top, placement_alignment(program.machine, b.home));
    top = b.home_offset + home_bytes(program, b);
  }
  for (Buffer& b : program.buffers)
    if (b.pick) {
      b.home = program.buffers[b.pick->bank].home;
      b.home_offset = program.buffers[b.pick->bank].home_offset;
    }
  for (size_t t = 0; t < end.size(); ++t)
    end[t] = round_up(end[t], placement_alignment(program.machine, static_cast<TierId>(t)));
  return end;
}

std::optional<BodyShortage> stage_all(Program& program, const Arrangement& arrangement,
                                      const std::function<void(Body&)>& on_staged) {
  const std::vector<uint64_t> permanent = place_homes(program, arrangement.homes);
  const size_t tiers = program.machine.tiers.size();
  program.arena_bytes.assign(tiers, 0);
  for (size_t b = 0; b < program.bodies.size(); ++b) {
    Body& body = program.bodies[b];
    instructions_from_tasks(program, body);
    if (arrangement.notes) arrangement.notes->bodies.emplace_back();
    body.peak_bytes.assign(tiers, 0);
    for (size_t t = 0; t < tiers; ++t) {
      const StageOptions options{
          static_cast<TierId>(t),
          permanent[t],
          program.machine.tiers[t].capacity,
          arrangement.leads[t],
          arrangement.task_costs.empty() ? std::span<const uint32_t>{} : arrangement.task_costs[b],
          arrangement.keep,
          arrangement.transient_only,
          arrangement.notes};
      if (permanent[t] > options.capacity)
        return BodyShortage{static_cast<BodyId>(b), {options.tier, kNoTask, permanent[t]}};
      if (const auto shortage = stage(program, body, options))
        return BodyShortage{static_cast<BodyId>(b), *shortage};
      program.arena_bytes[t] = std::max(program.arena_bytes[t], body.peak_bytes[t]);
    }
    if (on_staged) on_staged(body);
  }
  return std::nullopt;
}

std::optional<BodyShortage> assemble(Program& program, const Arrangement& arrangement) {
  const auto shortage = stage_all(program, arrangement);
  if (!shortage) synchronise(program);
  return shortage;
}

}  // namespace sluice
