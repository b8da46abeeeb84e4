// Inside of lower: from accumulators to gradients that are summed up over ranks, and what else ranks send
// each other. For the files of lower only.
#pragma once

#include <optional>
#include <span>

#include "engine/plan/lower/body_builder.h"
#include "engine/plan/lower/lower.h"
#include "engine/program/program.h"

namespace sluice {

// Returns the sharing of a group that is divided along these axes. Ranks that have the same part of the group
// share the state of that part.
StateSharing sharing_of(const Mesh& mesh, Axes divided, const LowerOptions& options);

// The index of a process group in the program. The process group is added unless the program has one with the
// same ranks. If its name is taken, its count and stride are appended to the name.
uint8_t process_group(const ProcessGroup& group, Program& program);

// Adds the process groups that a sharing needs to the program.
void add_process_groups(const StateSharing& sharing, Program& program);

void count_operand_bytes(const Program& program, Task& task);

// Adds tasks to bodies; refers to the program's buffers and the lowering.
class RankTasks {
 public:
  RankTasks(const Program& program, const Lowering& lowering) : program_(program), out_(lowering) {}

  // Reduces a group's gradient into `gradient`, shard by shard; `then(shard)` adds the tasks that follow the
  // shard's reduction.
  template <typename Then>
  void reduce(BodyBuilder& body, uint32_t g, bool compress, BufferId gradient, const Then& then) const {
    const bool factors = compress && out_.groups[g].compression;
    if (factors) reduce_factors(body, g);
    for (uint32_t k = 0; k < out_.groups[g].state.size(); ++k) {
      factors ? expand(body, g, k, gradient) : reduce_shard(body, g, k, gradient);
      then(k);
    }
    gather(body, {g, {}}, out_.groups[g].all_block_sums);
    gather_norm_sums(body, g);
  }

  // If weights are shared, gathers them whole, once in a body for all forwards or once for all backwards.
  // `weights` says for which.
  void gather_weights(BodyBuilder& body, uint32_t g, SharedBuffers GroupBuffers::*weights) const;
  // Called after the owner has written its part of the weights. At stages 1 and 2, gathers the weights whole.
  // Where weights are shared only within node groups, gathers them across node groups. Otherwise does
  // nothing.
  void gather_updated(BodyBuilder& body, uint32_t g, uint32_t shard) const;

 private:
  // What a task works on: pieces of one shard of a group, or the group's whole buffers.
  struct Subject {
    uint32_t group;
    std::optional<uint32_t> shard;
  };
  struct Read {
    Role role;
    std::span<const BufferId> buffers;
  };
  struct Written {
    Role role;
    BufferId buffer;
  };
  Task& task(BodyBuilder& body, TaskKind kind, const Subject& of, const Read& from, const Written& to) const;
  void collective(BodyBuilder& body, TaskKind kind, const ProcessGroup& among, const Subject& of,
                  const Read& from, const Written& to) const;
  Task& round(BodyBuilder& body, const Subject& of, BufferId to) const;  // rounds the accumulators
  void exchange(BodyBuilder& body, const ProcessGroup& among, const Subject& of, BufferId from,
                BufferId to) const;
  Task& add_up(BodyBuilder& body, const Subject& of, BufferId from, BufferId to) const;
  // Returns the task of the last sum.
  Task& sum(BodyBuilder& body, const Subject& of, const ReductionBuffers& r) const;
  void gather(BodyBuilder& body, const Subject& of, const SharedBuffers& s) const;
  void gather_norm_sums(BodyBuilder& body, uint32_t g) const;
  void reduce_shard(BodyBuilder& body, uint32_t g, uint32_t shard, BufferId gradient) const;
  void reduce_factors(BodyBuilder& body, uint32_t g) const;
  void sum_factor(BodyBuilder& body, uint32_t g, const FactorBuffers& factor) const;
  void expand(BodyBuilder& body, uint32_t g, uint32_t shard, BufferId gradient) const;

  const Program& program_;
  const Lowering& out_;
};

}  // namespace sluice
