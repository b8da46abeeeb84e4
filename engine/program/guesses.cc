#include <algorithm>

#include "engine/program/program.h"

namespace sluice {

Wait when_decided(const Body& body) {
  if (!body.end.is_guessed()) return {};
  const std::vector<Instruction>& all = body.instructions;
  const auto decides = std::find_if(all.begin(), all.end(), [&](const Instruction& in) {
    return in.task != kNoTask && body.tasks[in.task].kind == TaskKind::set_scalars;
  });
  if (decides == all.end()) return {};
  const auto count = std::count_if(all.begin(), decides + 1,
                                   [&](const Instruction& in) { return in.lane == decides->lane; });
  return {.lane = decides->lane, .count = static_cast<uint32_t>(count)};
}

}  // namespace sluice
