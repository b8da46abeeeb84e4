#include "engine/network.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/error.h"

namespace sluice {

namespace {

// By level, while a phase of a collective lasts: messages that each rank of a unit sends out of it.
using Phase = std::vector<uint64_t>;

// How many ranks share what the level gives a unit.
uint64_t unit_ranks(const std::vector<NetworkLevel>& levels, size_t level) {
  return level == 0 ? 1 : levels[level - 1].ranks;
}

// A message is one rank's part.
std::vector<Phase> phases_of(TaskKind kind, const std::vector<NetworkLevel>& levels) {
  const uint64_t ranks = levels.back().ranks, node = levels.front().ranks;
  Phase direct, across, inside(levels.size());
  for (size_t l = 0; l < levels.size(); ++l) {
    const uint64_t unit = unit_ranks(levels, l);
    direct.push_back(ranks - unit);
    across.push_back((ranks - std::max(unit, node)) / node);
  }
  inside.front() = (node - 1) * (ranks / node);
  if (kind == TaskKind::exchange) return {direct};
  return {across, inside};
}

uint64_t part_bytes(const Program& program, const std::vector<NetworkLevel>& levels, const Task& task) {
  const Operand& gives = task.operands.front();
  const uint64_t bytes = operand_bytes(program.buffers[gives.buffer], gives);
  return task.kind == TaskKind::exchange ? bytes / levels.back().ranks : bytes;
}

}  // namespace

std::vector<NetworkLevel> levels_for(const MachineRates& rates, uint32_t ranks, uint32_t per_node) {
  if (rates.network.empty()) return {};
  const uint32_t most = rates.network.back().ranks;
  if (ranks > most)
    throw Error(ExitCode::usage,
                fmt::format("Machine description {} joins at most {} ranks, not {}.", printable(rates.name),
                            most, ranks),
                "Name another machine, or give a description whose last network level joins as many.");
  std::vector<NetworkLevel> levels;
  for (NetworkLevel level : rates.network) {
    if (levels.empty() && per_node > 0) level.ranks = per_node;
    level.ranks = std::min(level.ranks, ranks);
    if (levels.empty() || level.ranks > levels.back().ranks) levels.push_back(std::move(level));
  }
  return levels;
}

double network_seconds(const Program& program, const std::vector<NetworkLevel>& levels, const Task& task) {
  if (levels.empty() || !is_collective(task.kind)) return 0;
  const auto part = static_cast<double>(part_bytes(program, levels, task));
  double seconds = 0;
  for (const Phase& messages : phases_of(task.kind, levels)) {
    double longest = 0;
    for (size_t l = 0; l < levels.size(); ++l) {
      const auto of_rank = static_cast<double>(messages[l]);
      const double bytes = part * of_rank * static_cast<double>(unit_ranks(levels, l));
      longest = std::max(longest, bytes / levels[l].bytes_per_second + of_rank * levels[l].latency_seconds);
    }
    seconds += longest;
  }
  return seconds;
}

std::vector<uint64_t> network_bytes(const Program& program, const std::vector<NetworkLevel>& levels,
                                    const Body& body) {
  std::vector<uint64_t> bytes(levels.size());
  for (const Task& task : body.tasks) {
    if (levels.empty() || !is_collective(task.kind)) continue;
    const uint64_t part = part_bytes(program, levels, task);
    for (const Phase& messages : phases_of(task.kind, levels))
      for (size_t l = 0; l < levels.size(); ++l) bytes[l] += part * messages[l] * unit_ranks(levels, l);
  }
  return bytes;
}

}  // namespace sluice
