#include "engine/plan/lower/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace sluice {

StateSharing sharing_of(const LowerOptions& options) {
  const uint32_t ranks = options.ranks,
                 node_group = options.node_group_ranks ? options.node_group_ranks : ranks;
  // There are no node groups of one rank.
  StateSharing sharing{ranks, 1, node_group > 1 ? node_group : ranks, options.zero_stage};
  if (ranks % node_group != 0)
    throw std::invalid_argument("the number of ranks is not a multiple of the ranks of a node group");
  sharing.weights_in_node_group =
      options.weights_in_node_group && sharing.has_node_groups() && sharing.shares_weights();
  return sharing;
}

StateSharing divided_sharing(StateSharing sharing, uint32_t experts_over) {
  if (experts_over == 1) return sharing;
  if (sharing.ranks % experts_over != 0)
    throw std::invalid_argument(
        "the number of ranks is not a multiple of those that experts are divided over");
  sharing.ranks /= experts_over, sharing.stride *= experts_over;
  const uint32_t in_node_group = sharing.node_group_ranks / experts_over;
  const bool several = sharing.node_group_ranks % experts_over == 0 && in_node_group > 1;
  sharing.node_group_ranks = several ? in_node_group : sharing.ranks;
  sharing.weights_in_node_group = sharing.weights_in_node_group && sharing.has_node_groups();
  return sharing;
}

uint8_t process_group(const char* name, uint32_t count, uint32_t stride, Program& program) {
  std::vector<ProcessGroup>& all = program.processes;
  const auto same = [&](const ProcessGroup& g) { return g.count == count && g.stride == stride; };
  const auto found = std::find_if(all.begin(), all.end(), same);
  if (found != all.end()) return static_cast<uint8_t>(found - all.begin());
  const bool taken =
      std::any_of(all.begin(), all.end(), [&](const ProcessGroup& g) { return g.name == name; });
  all.push_back({taken ? fmt::format("{}.{}x{}", name, count, stride) : name, count, stride});
  return static_cast<uint8_t>(all.size() - 1);
}

SharingProcesses processes_for(const StateSharing& sharing, Program& program) {
  const auto find_or_add = [&](const char* name, uint32_t count, uint32_t stride) {
    return process_group(name, count, stride, program);
  };
  SharingProcesses processes;
  if (sharing.ranks == 1) return processes;
  processes.all = find_or_add("all", sharing.ranks, sharing.stride);
  if (!sharing.has_node_groups()) return processes;
  processes.in_node_group = find_or_add("block", sharing.node_group_ranks, sharing.stride);
  processes.across_node_groups = find_or_add("across", sharing.ranks / sharing.node_group_ranks,
                                             sharing.node_group_ranks * sharing.stride);
  return processes;
}

void count_operand_bytes(const Program& program, Task& task) {
  for (const Operand& o : task.operands) task.bytes += operand_bytes(program.buffers[o.buffer], o);
}

Task& RankTasks::task(BodyBuilder& body, TaskKind kind, const Subject& of, std::span<const BufferId> from,
                      BufferId to) const {
  Task& t = body.task(kind, of.group, of.shard.value_or(0));
  const auto add = [&](BufferId buffer, Access access) {
    if (of.shard) return body.add(t, buffer, *of.shard, *of.shard + 1, access);
    body.add(t, buffer, access);
  };
  for (const BufferId buffer : from) add(buffer, Access::read);
  add(to, Access::write);
  count_operand_bytes(program_, t);
  return t;
}

void RankTasks::collective(BodyBuilder& body, TaskKind kind, uint8_t SharingProcesses::*among,
                           const Subject& of, BufferId from, BufferId to) const {
  task(body, kind, of, from, to).processes = out_.groups[of.group].processes.*among;
}

Task& RankTasks::sum(BodyBuilder& body, const Subject& of, const ReductionBuffers& r) const {
  if (r.in_node_group != kNone) {
    collective(body, TaskKind::exchange, &SharingProcesses::in_node_group, of, r.own, r.in_node_group);
    task(body, TaskKind::sum, of, r.in_node_group, r.partial_sum);
    collective(body, TaskKind::exchange, &SharingProcesses::across_node_groups, of, r.partial_sum,
               r.received);
  } else {
    collective(body, TaskKind::exchange, &SharingProcesses::all, of, r.own, r.received);
  }
  return task(body, TaskKind::sum, of, r.received, r.sum);
}

// Leaves out a step that lacks a buffer, or would gather into the buffer that it reads.
void RankTasks::gather(BodyBuilder& body, const Subject& of, const SharedBuffers& s) const {
  const auto step = [&](uint8_t SharingProcesses::*among, BufferId from, BufferId to) {
    if (from != kNone && to != kNone && from != to) collective(body, TaskKind::gather, among, of, from, to);
  };
  if (s.across == kNone) return step(&SharingProcesses::all, s.part, s.whole);
  step(&SharingProcesses::across_node_groups, s.part, s.across);
  step(&SharingProcesses::in_node_group, s.across, s.whole);
}

// From the ranks with other experts.
void RankTasks::gather_norm_sums(BodyBuilder& body, uint32_t g) const {
  const GroupBuffers& b = out_.groups[g];
  if (b.norm_sums == b.all_block_sums.whole) return;
  task(body, TaskKind::gather, {g, {}}, b.all_block_sums.whole, b.norm_sums).processes = b.divided;
}

// From the accumulator to the gradient, rounded and summed over ranks.
void RankTasks::reduce_shard(BodyBuilder& body, uint32_t g, uint32_t shard, BufferId gradient) const {
  const GroupBuffers& b = out_.groups[g];
  const Subject of{g, shard};
  const auto into = [&](BufferId buffer) { return buffer == b.gradient ? gradient : buffer; };
  ReductionBuffers reduction = b.reduction;
  reduction.sum = into(reduction.sum);
  const bool alone = b.sharing.ranks == 1;
  if (!alone) task(body, TaskKind::round, of, b.accumulators, b.reduction.own);
  Task& t = alone ? task(body, TaskKind::round, of, b.accumulators, gradient) : sum(body, of, reduction);
  body.add(t, b.block_sums, shard, shard + 1, Access::write);
  gather(body, of, {into(b.summed.part), b.summed.across, into(b.summed.whole)});
}

void RankTasks::reduce_factors(BodyBuilder& body, uint32_t g) const {
  const GroupBuffers& b = out_.groups[g];
  const CompressionBuffers& c = *b.compression;
  for (uint32_t k = 0; k < b.state.size(); ++k)
    task(body, TaskKind::round, {g, k}, b.accumulators, b.reduction.own);
  Task& compress = body.task(TaskKind::compress, g, 0);
  body.add(compress, b.reduction.own, Access::read);
  body.add(compress, c.error, Access::add);
  body.add(compress, c.right.sum.whole, Access::read);
  body.add(compress, c.left.reduction.own, Access::write);
  count_operand_bytes(program_, compress);
  sum_factor(body, g, c.left);
  Task& project = body.task(TaskKind::project, g, 0);
  body.add(project, c.left.sum.whole, Access::add);
  body.add(project, c.error, Access::add);
  body.add(project, c.right.reduction.own, Access::write);
  count_operand_bytes(program_, project);
  project.bytes += program_.buffers[c.error].bytes();  // two passes
  sum_factor(body, g, c.right);
}

void RankTasks::sum_factor(BodyBuilder& body, uint32_t g, const FactorBuffers& factor) const {
  sum(body, {g, {}}, factor.reduction);
  gather(body, {g, {}}, factor.sum);
}

void RankTasks::expand(BodyBuilder& body, uint32_t g, uint32_t shard, BufferId gradient) const {
  const GroupBuffers& b = out_.groups[g];
  Task& t = body.task(TaskKind::expand, g, shard);
  body.add(t, b.compression->left.sum.whole, Access::read);
  body.add(t, b.compression->right.sum.whole, Access::read);
  body.add(t, gradient, shard, shard + 1, Access::write);
  t.bytes += operand_bytes(program_.buffers[gradient], t.operands.back());
  body.add(t, b.block_sums, shard, shard + 1, Access::write);
}

void RankTasks::gather_weights(BodyBuilder& body, uint32_t g, SharedBuffers GroupBuffers::*weights) const {
  const GroupBuffers& b = out_.groups[g];
  if (!b.sharing.shares_weights() || body.written((b.*weights).whole)) return;
  for (uint32_t k = 0; k + 1 < b.shards.size(); ++k) gather(body, {g, k}, b.*weights);
}

void RankTasks::gather_updated(BodyBuilder& body, uint32_t g, uint32_t shard) const {
  gather(body, {g, shard}, out_.groups[g].updated);
}

}  // namespace sluice
