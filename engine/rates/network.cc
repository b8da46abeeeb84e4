#include "engine/rates/network.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"

namespace sluice {

namespace {

// Ranks of one member of the level (NetworkLevel), which share the member's bandwidth.
uint32_t unit_ranks(const std::vector<NetworkLevel>& levels, size_t level) {
  return level == 0 ? 1 : levels[level - 1].ranks;
}

// The number of ranks of the group outside of a rank's own member of the level, which has `unit` ranks.
uint32_t messages_out(const ProcessGroup& group, uint32_t unit) {
  return group.count - std::clamp(unit / group.stride, 1u, group.count);
}

const ProcessGroup& group_of(const Program& program, const Task& task) {
  return program.processes[task.processes];
}

// Bytes that a rank sends to each other rank. Rows that travel count as if all experts had equally many.
uint64_t part_bytes(const Program& program, const Task& task) {
  if (is_of_segment(task.kind)) return task.bytes / 2 / group_of(program, task).count;  // read and written
  const Operand& gives = task.operands.front();
  const uint64_t bytes = operand_bytes(program.buffers[gives.buffer], gives);
  return task.kind == TaskKind::exchange ? bytes / group_of(program, task).count : bytes;
}

// Seconds until the parts of a checkpoint have left each member of the levels above the lowest. Machines
// share the directory of checkpoints, so it is outside of every member. All ranks write equally many bytes,
// at once.
double save_seconds(const std::vector<NetworkLevel>& levels, double bytes) {
  double longest = 0;
  for (size_t l = 1; l < levels.size(); ++l)
    longest = std::max(longest, bytes * unit_ranks(levels, l) / levels[l].bytes_per_second);
  return longest;
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
  if (task.kind == TaskKind::save) return save_seconds(levels, static_cast<double>(task.bytes));
  if (!is_collective(task.kind)) return 0;
  const auto part = static_cast<double>(part_bytes(program, task));
  double longest = 0;
  for (size_t l = 0; l < levels.size(); ++l) {
    const uint32_t unit = unit_ranks(levels, l), messages = messages_out(group_of(program, task), unit);
    longest = std::max(
        longest, part * messages * unit / levels[l].bytes_per_second + messages * levels[l].latency_seconds);
  }
  return longest;
}

uint64_t sent_bytes(const Program& program, const Task& task) {
  return part_bytes(program, task) * (group_of(program, task).count - 1);
}

uint64_t counted_bytes(const Program& program, const Body& body, const Instruction& in) {
  if (in.task == kNoTask) return operand_bytes(program.buffers[in.operands[0].buffer], in.operands[0]);
  const Task& task = body.tasks[in.task];
  return is_collective(task.kind) ? sent_bytes(program, task) : task.bytes;
}

std::vector<uint64_t> network_bytes(const Program& program, const std::vector<NetworkLevel>& levels,
                                    std::span<const BodyId> bodies) {
  std::vector<uint64_t> bytes(levels.size());
  for (const BodyId body : bodies)
    for (const Task& task : program.bodies[body].tasks) {
      if (!is_collective(task.kind)) continue;
      for (size_t l = 0; l < levels.size(); ++l) {
        const uint32_t unit = unit_ranks(levels, l);
        bytes[l] += part_bytes(program, task) * unit * messages_out(group_of(program, task), unit);
      }
    }
  return bytes;
}

}  // namespace sluice
