// Inside of lower: from accumulators to gradients that are summed up over ranks, and what else ranks send
// each other. For the files of lower only.
#pragma once

#include "engine/plan/body_builder.h"
#include "engine/plan/lower.h"
#include "engine/program.h"

namespace sluice {

void count_operand_bytes(const Program& program, Task& task);

// Adds tasks to bodies; refers to the program's buffers and the lowering.
class RankTasks {
 public:
  RankTasks(const Program& program, const Lowering& lowering) : program_(program), out_(lowering) {}

  // The whole gradient of a group, shard by shard: `then(shard)` adds what follows each.
  template <typename Then>
  void reduce(BodyBuilder& body, uint32_t g, bool compress, const Then& then) const {
    const bool factors = compress && out_.groups[g].compression;
    if (factors) reduce_factors(body, g);
    for (uint32_t k = 0; k < out_.groups[g].state.size(); ++k) {
      factors ? expand(body, g, k) : reduce_shard(body, g, k);
      then(k);
    }
    gather_sums(body, g);
  }

  // Where weights are shared: whole ones, once for all uses that read `whole` in this body.
  void gather_weights(BodyBuilder& body, uint32_t g, BufferId whole) const;
  // Where only state is: after the owner has written its part.
  void gather_updated(BodyBuilder& body, uint32_t g, uint32_t shard) const;

 private:
  void reduce_shard(BodyBuilder& body, uint32_t g, uint32_t shard) const;
  void reduce_factors(BodyBuilder& body, uint32_t g) const;
  void sum_factor(BodyBuilder& body, uint32_t g, const FactorBuffers& factor) const;
  void expand(BodyBuilder& body, uint32_t g, uint32_t shard) const;
  void gather_sums(BodyBuilder& body, uint32_t g) const;
  void piece(BodyBuilder& body, TaskKind kind, uint32_t g, uint32_t shard, BufferId from, BufferId to) const;
  void whole(BodyBuilder& body, TaskKind kind, uint32_t g, BufferId from, BufferId to) const;

  const Program& program_;
  const Lowering& out_;
};

}  // namespace sluice
