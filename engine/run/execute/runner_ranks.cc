// What a runner does with other ranks: collectives, sums, and gradients as factors.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "engine/run/execute/runner.h"
#include "engine/verify/ranks.h"
#include "gpu/ranks/low_rank.h"
#include "gpu/ranks/reduce.h"

namespace sluice {

namespace {

bool is_collective(const Body& body, const Instruction& in) {
  return in.task != kNoTask && is_collective(body.tasks[in.task].kind);
}

}  // namespace

// "instruction 45 of body step on lane collective (gather of h.3.weights)"
std::unordered_map<const Instruction*, std::string> Runner::collective_names(const Program& program) {
  std::unordered_map<const Instruction*, std::string> names;
  for (const Body& body : program.bodies)
    for (const uint32_t i : collectives_of(body)) {
      const Instruction& in = body.instructions[i];
      names[&in] = fmt::format("instruction {} of body {} on lane {} ({} of {})", i, body.name,
                               program.machine.lanes[in.lane].name, task_kind_name(body.tasks[in.task].kind),
                               program.buffers[in.operands[0].buffer].name);
    }
  return names;
}

// What a collective is for, as the error names it when another rank does not answer.
std::string_view Runner::purpose(const Instruction& in, const RingPositions& rings, PurposeText& text) const {
  const auto end =
      fmt::format_to_n(text.data(), text.size(), "at step {} for {}",
                       steps_before_ + static_cast<int64_t>(rings[kTrainRing]), collectives_.at(&in));
  return {text.data(), std::min(end.size, text.size())};
}

// The communicator for the memory that holds the operands.
Communicator& Runner::communicator(const Instruction& in, const RingPositions& rings) {
  const bool above = in.places[0].tier < lowest_memory_tier(plan_.program.machine);
  Communicator& communicator = above && ranks_.device ? *ranks_.device : *ranks_.lane;
  PurposeText text;
  communicator.note(purpose(in, rings, text));
  return communicator;
}

void Runner::synchronize(const Body& body, const Instruction& in, const RingPositions& rings,
                         const Mark& mark) {
  if (!is_collective(body, in)) return memory_.streams->synchronize(mark);
  PurposeText text;
  ranks_.device->watch(purpose(in, rings, text), [&] { return memory_.streams->is_done(mark); });
}

void Runner::abandon(const Body& body, const Instruction& in) {
  if (is_collective(body, in)) ranks_.device->give_up();
}

const ProcessGroup& Runner::among(const Task& task) const { return plan_.program.processes[task.processes]; }

void Runner::gather(const Task& task, const Instruction& in, const RingPositions& rings) {
  communicator(in, rings).all_gather(among(task), operand(in, rings, Role::part),
                                     bytes_of(in, position_of(in, Role::part)),
                                     operand(in, rings, Role::whole));
}

void Runner::exchange(const Task& task, const Instruction& in, const RingPositions& rings) {
  const ProcessGroup& ranks = among(task);
  communicator(in, rings).all_to_all(ranks, operand(in, rings, Role::sent),
                                     bytes_of(in, position_of(in, Role::sent)) / ranks.count,
                                     operand(in, rings, Role::received));
}

// Gradients arrive and leave in working precision. The sums of node groups between the two stages, and all
// factors, are in fp32. Factors have no block sums.
void Runner::sum(const Task& task, const Instruction& in, const RingPositions& rings) {
  const ReductionBuffers& reduction = plan_.lowering.groups[task.subject].reduction;
  const bool has_node_groups = plan_.lowering.groups[task.subject].sharing.has_node_groups();
  const BufferId received = has_node_groups ? reduction.in_node_group : reduction.received;
  const DType precision = plan_.model.precision;
  const uint32_t arrived = position_of(in, Role::received), sum = position_of(in, Role::sum);
  const DType from = in.operands[arrived].buffer == received ? precision : DType::f32;
  const BufferId into = in.operands[sum].buffer;
  const GroupBuffers& group = plan_.lowering.groups[task.subject];
  const bool is_gradient = into == reduction.sum || (into == group.next_gradient && into != kNone);
  const DType to = is_gradient ? precision : DType::f32;
  const uint64_t elements = bytes_of(in, sum) / dtype_bytes(to);
  const auto ranks = static_cast<uint32_t>(bytes_of(in, arrived) / dtype_bytes(from) / elements);
  const std::byte* const parts = address(in, arrived, rings);
  std::byte* const out = address(in, sum, rings);
  auto* const sums = operand<double>(in, rings, Role::block_sums);
  if (in.lane == device_lane_)
    device_.sum(from, parts, ranks, elements, to, out, sums);
  else
    sum_ranks(from, parts, ranks, elements, to, out, sums, optimizer_workers_);
}

void Runner::compress(const Task& task, const Instruction& in, const RingPositions& rings) {
  const LowRankLayout& layout = plan_.lowering.groups[task.subject].compression->layout;
  compress_gradient(layout, plan_.model.precision, operand(in, rings, Role::gradient),
                    operand<float>(in, rings, Role::error), operand<float>(in, rings, Role::right_factor),
                    operand<float>(in, rings, Role::left_factor), optimizer_workers_);
  zero_rest(in, Role::left_factor, layout.left, rings);
}

void Runner::project(const Task& task, const Instruction& in, const RingPositions& rings) {
  const LowRankLayout& layout = plan_.lowering.groups[task.subject].compression->layout;
  project_error(layout, operand<float>(in, rings, Role::left_factor), operand<float>(in, rings, Role::error),
                operand<float>(in, rings, Role::right_factor), optimizer_workers_);
  zero_rest(in, Role::right_factor, layout.right, rings);
}

// Zeroes a factor's padding.
void Runner::zero_rest(const Instruction& in, Role factor, uint64_t elements, const RingPositions& rings) {
  const uint32_t position = position_of(in, factor);
  std::memset(address(in, position, rings) + 4 * elements, 0, bytes_of(in, position) - 4 * elements);
}

// Block sums cover the rank's own part of the shard, even where the rank expands the whole shard.
void Runner::expand(const Task& task, const Instruction& in, const RingPositions& rings) {
  const GroupBuffers& group = plan_.lowering.groups[task.subject];
  const bool shares_state = group.sharing.shares_state();
  const uint64_t begin = group.shards[task.slice], end = group.shards[task.slice + 1];
  const uint64_t part = group.part_elements(task.slice);
  const uint64_t own = begin + own_part(group) * part;
  std::byte* const gradient = operand(in, rings, Role::gradient);
  const uint64_t first = shares_state ? own : begin;  // first element of `gradient`
  const auto expand_range = [&](uint64_t from, uint64_t to, double* sums) {
    if (from == to) return;
    const DType precision = plan_.model.precision;
    expand_gradient(group.compression->layout, operand<float>(in, rings, Role::left_factor),
                    operand<float>(in, rings, Role::right_factor), from, to - from, precision,
                    gradient + (from - first) * dtype_bytes(precision), sums, optimizer_workers_);
  };
  expand_range(own, own + part, operand<double>(in, rings, Role::block_sums));
  if (shares_state) return;
  expand_range(begin, own, nullptr);
  expand_range(own + part, end, nullptr);
}

void Runner::clone(const Instruction& in, const RingPositions& rings) {
  for (size_t k = 0; k < in.operands.size(); k += 2)
    std::memcpy(address(in, k + 1, rings), address(in, k, rings), bytes_of(in, k));
}

}  // namespace sluice
