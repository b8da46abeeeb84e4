#include "engine/plan/lower/ranks.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {

namespace {

std::optional<uint8_t> find_process_group(const ProcessGroup& group, const Program& program) {
  const auto found = std::ranges::find_if(program.processes,
                                          [&](const ProcessGroup& known) { return known.is_same_as(group); });
  if (found == program.processes.end()) return std::nullopt;
  return static_cast<uint8_t>(found - program.processes.begin());
}

}  // namespace

StateSharing sharing_of(const Mesh& mesh, Axes divided, const LowerOptions& options) {
  const ProcessGroup all = mesh.group_of(~divided);
  const Mesh::Levels levels = mesh.summing_levels_of(all);
  StateSharing sharing;
  const auto set = [](ProcessGroup& group, const ProcessGroup& ranks) {
    group.count = ranks.count, group.stride = ranks.stride;
  };
  set(sharing.all, all);
  set(sharing.in_node_group, levels.in_node);
  set(sharing.across_node_groups, levels.across);
  sharing.zero_stage = options.zero_stage;
  sharing.weights_in_node_group =
      options.weights_in_node_group && sharing.has_node_groups() && sharing.shares_weights();
  return sharing;
}

uint8_t process_group(const ProcessGroup& group, Program& program) {
  if (const std::optional<uint8_t> found = find_process_group(group, program)) return *found;
  ProcessGroup added = group;
  if (std::ranges::any_of(program.processes, [&](const ProcessGroup& g) { return g.name == group.name; }))
    added.name = fmt::format("{}.{}x{}", group.name, group.count, group.stride);
  program.processes.push_back(std::move(added));
  return static_cast<uint8_t>(program.processes.size() - 1);
}

void add_process_groups(const StateSharing& sharing, Program& program) {
  if (sharing.ranks() == 1) return;
  process_group(sharing.all, program);
  if (!sharing.has_node_groups()) return;
  process_group(sharing.in_node_group, program);
  process_group(sharing.across_node_groups, program);
}

void count_operand_bytes(const Program& program, Task& task) {
  for (const Operand& o : task.operands) task.bytes += operand_bytes(program.buffers[o.buffer], o);
}

Task& RankTasks::task(BodyBuilder& body, TaskKind kind, const Subject& of, const Read& from,
                      const Written& to) const {
  Task& t = body.task(kind, of.group, of.shard.value_or(0));
  const auto add = [&](Role role, BufferId buffer, Access access) {
    if (of.shard) return body.add(t, role, buffer, *of.shard, *of.shard + 1, access);
    body.add(t, role, buffer, access);
  };
  for (const BufferId buffer : from.buffers) add(from.role, buffer, Access::read);
  add(to.role, to.buffer, Access::write);
  count_operand_bytes(program_, t);
  return t;
}

void RankTasks::collective(BodyBuilder& body, TaskKind kind, const ProcessGroup& among, const Subject& of,
                           const Read& from, const Written& to) const {
  task(body, kind, of, from, to).processes = find_process_group(among, program_).value();
}

Task& RankTasks::round(BodyBuilder& body, const Subject& of, BufferId to) const {
  return task(body, TaskKind::round, of, {Role::accumulator, out_.groups[of.group].accumulators},
              {Role::gradient, to});
}

void RankTasks::exchange(BodyBuilder& body, const ProcessGroup& among, const Subject& of, BufferId from,
                         BufferId to) const {
  collective(body, TaskKind::exchange, among, of, {Role::sent, {&from, 1}}, {Role::received, to});
}

Task& RankTasks::add_up(BodyBuilder& body, const Subject& of, BufferId from, BufferId to) const {
  return task(body, TaskKind::sum, of, {Role::received, {&from, 1}}, {Role::sum, to});
}

Task& RankTasks::sum(BodyBuilder& body, const Subject& of, const ReductionBuffers& r) const {
  const StateSharing& sharing = out_.groups[of.group].sharing;
  if (r.in_node_group != kNone) {
    exchange(body, sharing.in_node_group, of, r.own, r.in_node_group);
    add_up(body, of, r.in_node_group, r.partial_sum);
    exchange(body, sharing.across_node_groups, of, r.partial_sum, r.received);
  } else {
    exchange(body, sharing.all, of, r.own, r.received);
  }
  return add_up(body, of, r.received, r.sum);
}

// Leaves out a gather that lacks a buffer, or that would write into the buffer that it reads.
void RankTasks::gather(BodyBuilder& body, const Subject& of, const SharedBuffers& s) const {
  const StateSharing& sharing = out_.groups[of.group].sharing;
  const auto step = [&](const ProcessGroup& among, BufferId from, BufferId to) {
    if (from != kNone && to != kNone && from != to)
      collective(body, TaskKind::gather, among, of, {Role::part, {&from, 1}}, {Role::whole, to});
  };
  if (s.across == kNone) return step(sharing.all, s.part, s.whole);
  step(sharing.across_node_groups, s.part, s.across);
  step(sharing.in_node_group, s.across, s.whole);
}

// Gathers the block sums of the ranks that have other parts of the model.
void RankTasks::gather_norm_sums(BodyBuilder& body, uint32_t g) const {
  const GroupBuffers& b = out_.groups[g];
  if (b.norm_sums == b.all_block_sums.whole) return;
  collective(body, TaskKind::gather, b.parts, {g, {}}, {Role::part, {&b.all_block_sums.whole, 1}},
             {Role::whole, b.norm_sums});
}

// Makes the gradient from the accumulators: rounds them and sums over ranks.
void RankTasks::reduce_shard(BodyBuilder& body, uint32_t g, uint32_t shard, BufferId gradient) const {
  const GroupBuffers& b = out_.groups[g];
  const Subject of{g, shard};
  const auto into = [&](BufferId buffer) { return buffer == b.gradient ? gradient : buffer; };
  ReductionBuffers reduction = b.reduction;
  reduction.sum = into(reduction.sum);
  const bool alone = b.sharing.ranks() == 1;
  if (!alone) round(body, of, b.reduction.own);
  Task& t = alone ? round(body, of, gradient) : sum(body, of, reduction);
  body.add(t, Role::block_sums, b.block_sums, shard, shard + 1, Access::write);
  gather(body, of, {into(b.summed.part), b.summed.across, into(b.summed.whole)});
}

void RankTasks::reduce_factors(BodyBuilder& body, uint32_t g) const {
  const GroupBuffers& b = out_.groups[g];
  const CompressionBuffers& c = *b.compression;
  for (uint32_t k = 0; k < b.state.size(); ++k) round(body, {g, k}, b.reduction.own);
  Task& compress = body.task(TaskKind::compress, g, 0);
  body.add(compress, Role::gradient, b.reduction.own, Access::read);
  body.add(compress, Role::error, c.error, Access::add);
  body.add(compress, Role::right_factor, c.right.sum.whole, Access::read);
  body.add(compress, Role::left_factor, c.left.reduction.own, Access::write);
  count_operand_bytes(program_, compress);
  sum_factor(body, g, c.left);
  Task& project = body.task(TaskKind::project, g, 0);
  body.add(project, Role::left_factor, c.left.sum.whole, Access::add);
  body.add(project, Role::error, c.error, Access::add);
  body.add(project, Role::right_factor, c.right.reduction.own, Access::write);
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
  body.add(t, Role::left_factor, b.compression->left.sum.whole, Access::read);
  body.add(t, Role::right_factor, b.compression->right.sum.whole, Access::read);
  body.add(t, Role::gradient, gradient, shard, shard + 1, Access::write);
  t.bytes += operand_bytes(program_.buffers[gradient], t.operands.back());
  body.add(t, Role::block_sums, b.block_sums, shard, shard + 1, Access::write);
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
