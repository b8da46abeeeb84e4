#include "engine/plan/search/raise.h"

#include <algorithm>
#include <numeric>

#include "engine/base/pack.h"
#include "engine/plan/assemble/assemble.h"

namespace sluice {

namespace {

struct Life {  // tasks of a body that touch a buffer
  uint32_t first = 0, last = 0;
  bool any = false;
};

bool has_choice(const Buffer& b) {
  return !b.permanent && b.kind != BufferClass::scalars && b.kind != BufferClass::workspace;
}

// By buffer.
std::vector<Life> lives(const Program& program, const Body& body) {
  std::vector<Life> all(program.buffers.size());
  for (uint32_t t = 0; t < body.tasks.size(); ++t)
    for (const Operand& o : body.tasks[t].operands) {
      Life& life = all[o.buffer];
      if (!life.any) life.first = t;
      life.last = t;
      life.any = true;
    }
  return all;
}

void add_choices(TierId tier, uint32_t portions, Raised& raised, std::vector<Raised>& choices) {
  if (tier + 1u == raised.size()) return choices.push_back(raised);
  for (uint32_t here = 0; here <= portions; ++here) {
    raised[tier] = here;
    add_choices(static_cast<TierId>(tier + 1), portions - here, raised, choices);
  }
  raised[tier] = 0;
}

// What a task needs in a tier beside scalars and what lives there; 0 if the task may run below, or cannot run
// in this tier. If homes are as low as they can be, a task runs in its lowest tier.
uint64_t visiting_bytes(const Program& program, const std::vector<TierId>& homes, const Task& task,
                        TierId tier) {
  TierId runs_in = 0;
  for (const Unit& unit : program.machine.units)
    if (unit.kind == task.kind) runs_in = std::max(runs_in, unit.tier);
  if (runs_in != tier) return 0;
  const uint64_t alignment = placement_alignment(program.machine, tier);
  uint64_t bytes = 0;
  for (const Operand& o : task.operands) {
    const Buffer& b = program.buffers[o.buffer];
    if (b.kind == BufferClass::scalars || homes[o.buffer] <= tier) continue;
    bytes += round_up(operand_bytes(b, o), alignment);
  }
  return bytes;
}

}  // namespace

std::vector<Raised> raised_choices(const Machine& machine) {
  std::vector<Raised> choices;
  Raised raised(machine.tiers.size(), 0);
  add_choices(0, kRaisedPortions, raised, choices);
  const auto in_all = [](const Raised& r) { return std::accumulate(r.begin(), r.end(), 0u); };
  std::stable_sort(choices.begin(), choices.end(),
                   [&](const Raised& a, const Raised& b) { return in_all(a) < in_all(b); });
  return choices;
}

std::vector<BufferId> raisable(const Program& program) {
  std::vector<uint32_t> length(program.buffers.size(), 0);
  for (const Body& body : program.bodies) {
    const std::vector<Life> of_body = lives(program, body);
    for (size_t b = 0; b < length.size(); ++b)
      length[b] = std::max(length[b], of_body[b].last - of_body[b].first);
  }
  std::vector<BufferId> list;
  for (BufferId b = 0; b < program.buffers.size(); ++b)
    if (has_choice(program.buffers[b])) list.push_back(b);
  std::stable_sort(list.begin(), list.end(), [&](BufferId a, BufferId b) { return length[a] > length[b]; });
  return list;
}

std::vector<TierId> raised_homes(const Program& program, const std::vector<BufferId>& raisable,
                                 const Raised& raised) {
  const TierId lowest = lowest_tier(program.machine);
  const std::vector<TierId> touches = lowest_touches(program);
  std::vector<TierId> homes(program.buffers.size(), lowest);
  uint64_t total = 0, passed = 0;
  for (const BufferId b : raisable) total += program.buffers[b].bytes();
  uint32_t portions = raised.front();
  TierId tier = 0;
  for (const BufferId b : raisable) {
    passed += program.buffers[b].bytes();
    while (tier < lowest && passed > total * portions / kRaisedPortions) portions += raised[++tier];
    if (touches[b] <= tier) homes[b] = tier;
  }
  return homes;
}

std::vector<uint64_t> transient_bytes_at_least(const Program& program, const std::vector<TierId>& homes) {
  const size_t tiers = program.machine.tiers.size();
  std::vector<uint64_t> most(tiers, 0);
  for (const Body& body : program.bodies) {
    const std::vector<Life> of_body = lives(program, body);
    std::vector<std::vector<uint64_t>> begins(tiers, std::vector<uint64_t>(body.tasks.size() + 1, 0));
    std::vector<std::vector<uint64_t>> ends = begins;
    for (BufferId b = 0; b < program.buffers.size(); ++b) {
      if (!of_body[b].any || !has_choice(program.buffers[b])) continue;
      const TierId home = homes[b];
      const uint32_t first = of_body[b].first + (home > 0);  // it arrives at home after its first task
      if (first > of_body[b].last) continue;
      const uint64_t bytes = round_up(program.buffers[b].bytes(), placement_alignment(program.machine, home));
      begins[home][first] += bytes;
      ends[home][of_body[b].last] += bytes;
    }
    for (TierId tier = 0; tier < tiers; ++tier) {
      uint64_t now = 0;
      for (uint32_t t = 0; t < body.tasks.size(); ++t) {
        now += begins[tier][t];
        const uint64_t visiting = tier + 1u < tiers ? visiting_bytes(program, homes, body.tasks[t], tier) : 0;
        most[tier] = std::max(most[tier], now + visiting);
        now -= ends[tier][t];
      }
    }
  }
  return most;
}

}  // namespace sluice
