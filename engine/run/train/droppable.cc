#include "engine/run/train/droppable.h"

#include <algorithm>

namespace sluice {

namespace {

bool all_updates_wait(const Plan& plan) {
  const auto updates_early = [&](size_t g) {
    return plan.model.groups[g].trainable && plan.lowering.groups[g].updated_in_backward;
  };
  for (size_t g = 0; g < plan.model.groups.size(); ++g)
    if (updates_early(g)) return false;
  return true;
}

}  // namespace

Droppable droppable_parts(const Plan& plan) {
  const Program& program = plan.program;
  std::vector<bool> is_saved(program.buffers.size());
  for (const BodyIds& phase : plan.lowering.phases)
    for (const Instruction& in : program.bodies[*phase.save].instructions)
      for (const Operand& o : in.operands) is_saved[o.buffer] = true;
  const bool waits = all_updates_wait(plan);
  Droppable parts;
  for (const Body& body : program.bodies) {
    std::vector<bool>& changes = parts.changes.emplace_back();
    uint32_t needed = 0;
    for (const Instruction& in : body.instructions) {
      changes.push_back(std::ranges::any_of(
          in.operands, [&](const Operand& o) { return o.access != Access::read && is_saved[o.buffer]; }));
      if (changes.back()) needed = static_cast<uint32_t>(changes.size());
    }
    parts.needed.push_back(waits ? needed : static_cast<uint32_t>(changes.size()));
  }
  return parts;
}

}  // namespace sluice
