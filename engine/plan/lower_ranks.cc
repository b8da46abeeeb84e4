#include "engine/plan/lower_ranks.h"

namespace sluice {

void count_operand_bytes(const Program& program, Task& task) {
  for (const Operand& o : task.operands) task.bytes += operand_bytes(program.buffers[o.buffer], o);
}

void RankTasks::piece(BodyBuilder& body, TaskKind kind, uint32_t g, uint32_t shard, BufferId from,
                      BufferId to) const {
  Task& t = body.task(kind, g, shard);
  body.add(t, from, shard, shard + 1, Access::read);
  body.add(t, to, shard, shard + 1, Access::write);
  count_operand_bytes(program_, t);
}

void RankTasks::whole(BodyBuilder& body, TaskKind kind, uint32_t g, BufferId from, BufferId to) const {
  Task& t = body.task(kind, g, 0);
  body.add(t, from, Access::read);
  body.add(t, to, Access::write);
  count_operand_bytes(program_, t);
}

// From the accumulator to the gradient, rounded, and summed up over ranks.
void RankTasks::reduce_shard(BodyBuilder& body, uint32_t g, uint32_t shard) const {
  const GroupBuffers& b = out_.groups[g];
  const bool alone = out_.ranks == 1;
  if (!alone) {
    piece(body, TaskKind::round, g, shard, b.accumulator, b.rounded);
    piece(body, TaskKind::exchange, g, shard, b.rounded, b.received);
  }
  Task& t = body.task(alone ? TaskKind::round : TaskKind::sum, g, shard);
  body.add(t, alone ? b.accumulator : b.received, shard, shard + 1, Access::read);
  body.add(t, b.summed, shard, shard + 1, Access::write);
  count_operand_bytes(program_, t);
  body.add(t, b.block_sums, shard, shard + 1, Access::write);
  if (b.summed != b.gradient) piece(body, TaskKind::gather, g, shard, b.summed, b.gradient);
}

void RankTasks::reduce_factors(BodyBuilder& body, uint32_t g) const {
  const GroupBuffers& b = out_.groups[g];
  const CompressionBuffers& c = *b.compression;
  for (uint32_t k = 0; k < b.state.size(); ++k) piece(body, TaskKind::round, g, k, b.accumulator, b.rounded);
  Task& compress = body.task(TaskKind::compress, g, 0);
  body.add(compress, b.rounded, Access::read);
  body.add(compress, c.error, Access::add);
  body.add(compress, c.right.sum, Access::read);
  body.add(compress, c.left.own, Access::write);
  count_operand_bytes(program_, compress);
  sum_factor(body, g, c.left);
  Task& project = body.task(TaskKind::project, g, 0);
  body.add(project, c.left.sum, Access::add);
  body.add(project, c.error, Access::add);
  body.add(project, c.right.own, Access::write);
  count_operand_bytes(program_, project);
  project.bytes += program_.buffers[c.error].bytes();  // two passes
  sum_factor(body, g, c.right);
}

void RankTasks::sum_factor(BodyBuilder& body, uint32_t g, const FactorBuffers& factor) const {
  whole(body, TaskKind::exchange, g, factor.own, factor.received);
  whole(body, TaskKind::sum, g, factor.received, factor.part);
  whole(body, TaskKind::gather, g, factor.part, factor.sum);
}

void RankTasks::expand(BodyBuilder& body, uint32_t g, uint32_t shard) const {
  const GroupBuffers& b = out_.groups[g];
  Task& t = body.task(TaskKind::expand, g, shard);
  body.add(t, b.compression->left.sum, Access::read);
  body.add(t, b.compression->right.sum, Access::read);
  body.add(t, b.gradient, shard, shard + 1, Access::write);
  t.bytes += operand_bytes(program_.buffers[b.gradient], t.operands.back());
  body.add(t, b.block_sums, shard, shard + 1, Access::write);
}

void RankTasks::gather_sums(BodyBuilder& body, uint32_t g) const {
  const GroupBuffers& b = out_.groups[g];
  if (b.all_block_sums != b.block_sums) whole(body, TaskKind::gather, g, b.block_sums, b.all_block_sums);
}

void RankTasks::gather_weights(BodyBuilder& body, uint32_t g, BufferId whole) const {
  if (!out_.shares_weights() || body.written(whole)) return;
  const GroupBuffers& b = out_.groups[g];
  for (uint32_t k = 0; k + 1 < b.shards.size(); ++k) piece(body, TaskKind::gather, g, k, b.weights, whole);
}

void RankTasks::gather_updated(BodyBuilder& body, uint32_t g, uint32_t shard) const {
  const GroupBuffers& b = out_.groups[g];
  if (out_.shares_state() && !out_.shares_weights())
    piece(body, TaskKind::gather, g, shard, b.weights, b.forward_weights);
}

}  // namespace sluice
