// Lowering: model x batch x recompute set x optimizer -> bodies of tasks over buffers, before tiers exist.
//
// Order of tasks with the schedule layer_major (what shall overlap stands together, since lanes are in
// order); schedule.h has it as data:
//   first     for each layer: forwards of all micro-batches; the loss; for each layer, the last one first:
//             the backwards of all micro-batches, then round(shard) of every group that gets no gradient
//             later; norm; set_scalars
//   step      as first; in front of the forwards that first use a group stands optimize(shard) of that group,
//             for the step before
//   drain     optimize of everything
//   evaluate  forwards of one validation batch
//   load      fills every shard; save writes every shard
// When updates do not wait for the norm of all gradients, set_scalars comes first, optimize follows each
// round, first and step are one body, and there is no drain. What several ranks add stands below, as does the
// order of operands.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string_view>

#include "engine/graph/segment.h"
#include "engine/plan/lower/schedule.h"
#include "engine/plan/lower/sharing.h"
#include "engine/program/low_rank.h"
#include "engine/program/program.h"

namespace sluice {

struct OptimizerLayout {
  uint32_t planes = 3;  // fp32 planes of a shard's state: master weights (16-bit only), moments
  std::function<uint64_t(uint64_t)> plane_stride;  // elements of a shard -> bytes between planes
  bool whole_tensors = false;  // updates need whole tensors: a group is one shard, of one rank
};

struct LowerOptions {
  int64_t batch = 1;                  // sequences of one step; a multiple of the model's micro-batch
  bool update_waits_for_norm = true;  // clip > 0 or fp16
  bool evaluate = false;              // with a validation body
  uint32_t ranks = 1;
  int zero_stage = 3;             // with several ranks
  uint32_t node_group_ranks = 0;  // ranks of a node group: a power of two, or all; 0: all
  bool weights_in_node_group = false;
  // By group, where it differs from the four above; may be empty.
  std::vector<std::optional<StateSharing>> sharing;
  uint32_t compress_rank = 0;      // matrix rank of the factors; 0: gradients travel whole
  int64_t compress_after = 0;      // the first steps, whose gradients travel whole
  int64_t share_layers_until = 0;  // the first steps: layers that are alike share groups; no compression
  std::vector<bool> recompute;     // by segment use in forward order; empty = all
  std::function<StepSchedule(const Model&, uint32_t slices)> schedule = layer_major;
  uint64_t shard_elements = 0;  // 0: default_shard_elements
  OptimizerLayout optimizer;
  WorkspaceBytes workspace_bytes;
};

// With several ranks every shard is divided into one part for each rank, and the rank owns its part: whole
// gradients are rounded, exchanged, and summed part by part by the owners. sharing.h says what else is
// shared. All ranks run the same program, and bits do not depend on what is shared.
//
// With several node groups, a gradient is exchanged and summed within each of them first, in fp32. Then the
// ranks of each cross-node group exchange those sums, add them and round once. A gather goes the same way
// back. So a node group sends and receives everything once, however many ranks it has. With
// weights_in_node_group, stage 3 shares weights within a node group only: gathers for forwards and backwards
// stay inside (Zhang et al. 2022, "MiCS: near-linear scaling for training gigantic model on public cloud").
// Sums are trees with node groups of 2^n ranks as subtrees (gpu/ranks/reduce.h), so node groups change no
// bits.
//
// At stages 0 and 1 gradients may travel as factors of low rank instead (low_rank.h). The owner's part, or
// the whole gradient, is expanded from factors that were summed over ranks. What a rank's factors leave out
// stays in its error buffer for the next step.
//
// A run may begin with phases that have other bodies. In one, all layers that are alike use the groups of the
// first such layer, until the body `unlock` copies these groups to those of the other layers. In the next,
// gradients travel whole; after it, they are compressed.

// Buffers on the way from parts to the whole: a rank's part, what the ranks of its cross-node group have
// together (across), and the whole. kNone: this gather has no such buffer; `across` is also kNone where there
// is one node group only.
struct SharedBuffers {
  BufferId part = kNone, across = kNone, whole = kNone;
};

// Buffers of a reduction. own: this rank's gradient, with parts for all ranks. in_node_group: the parts that
// its node group sent it; partial_sum: their fp32 sum. received: what its cross-node group sent it, or with
// one node group, what all ranks sent it. sum: this rank's part of the whole sum.
struct ReductionBuffers {
  BufferId own = kNone, in_node_group = kNone, partial_sum = kNone, received = kNone, sum = kNone;
};

// One factor of a group's gradient, fp32.
struct FactorBuffers {
  ReductionBuffers reduction;
  SharedBuffers sum;
};

struct CompressionBuffers {
  LowRankLayout layout;
  BufferId error = kNone;     // compression error: fp32, a piece for each shard; permanent
  FactorBuffers left, right;  // the right one's sum is permanent: the next step begins with it
};

struct GroupBuffers {
  std::vector<uint64_t> shards;  // element boundaries: shard k is [shards[k], shards[k+1])
  BufferId weights = kNone, gradient = kNone, accumulator = kNone, block_sums = kNone;
  std::vector<BufferId> state;  // by shard; empty when frozen
  // Weights on their way from the optimizer, and to forwards and backwards, which read them whole.
  SharedBuffers updated, forward, backward;
  // With several ranks, `reduction` leads to this rank's part of the sum; `summed` and all_block_sums carry
  // the sum and its block sums to all ranks. A rank that trains alone has both whole from the start.
  ReductionBuffers reduction;
  SharedBuffers summed, all_block_sums;
  std::optional<CompressionBuffers> compression;  // where factors are smaller than the gradient
  StateSharing sharing;
  SharingProcesses processes;

  // Elements of a shard that each rank sums (its part), and that it updates.
  uint64_t part_elements(uint32_t shard) const { return (shards[shard + 1] - shards[shard]) / sharing.ranks; }
  uint64_t updated_elements(uint32_t shard) const {
    return part_elements(shard) * (sharing.shares_state() ? 1 : sharing.ranks);
  }
};

struct UseInfo {                     // one segment use, in forward order
  uint32_t layer = 0, position = 0;  // position: within the layer
  uint32_t plan = 0;                 // index into Lowering::plans
  bool recompute = true;
};

// The bodies of a phase of the run: for steps below `until`, counted from 0.
struct BodyIds {
  int64_t until = INT64_MAX;
  std::optional<BodyId> load, first, step, drain, evaluate, save;
  std::optional<BodyId> unlock;  // before the next phase, in the clean state
};

constexpr uint8_t kTrainRing = 0, kValidationRing = 1;

struct Lowering {
  std::vector<SegmentPlan> plans;
  std::vector<UseInfo> uses;
  std::vector<GroupBuffers> groups;
  BufferId scalars = kNone;                     // in kTrainRing
  BufferId validation_loss = kNone;             // in kValidationRing
  std::array<std::vector<BufferId>, 2> inputs;  // by ring, then by activation; kNone: not the model's input
  std::vector<BodyIds> phases;                  // in order; the last has no end
  uint32_t slices = 1;
  uint32_t ranks = 1;    // of the run
  StateSharing sharing;  // of groups that have no other

  const BodyIds& bodies() const { return phases.back(); }
  size_t phase_of(int64_t step) const {
    size_t phase = 0;
    while (step >= phases[phase].until) ++phase;
    return phase;
  }
};

// The ring buffer of the model's input of that name; a piece is a micro-batch.
BufferId input_buffer(const Model& model, const Lowering& lowering, uint8_t ring, std::string_view name);

enum ScalarPiece : uint32_t { kScalarInput, kScalarLoss, kScalarNorm, kScalarUpdate };

// Operand order by kind, on which the runner (engine/run/execute) relies; forwards and backwards:
// SegmentOperands.
//   round         accumulator read, gradient write, block sums write; several ranks: accumulator read,
//                 rounded write
//   gather        part read, whole write
//   exchange      parts for each rank read, received write
//   sum           received read, sum write[, block sums write: the last sum of a gradient]
//   compress      rounded read, error add, right factors read, left factors write
//   project       left factors add, error add, right factors write
//   expand        left factors read, right factors read, gradient write, block sums write
//   clone         pairs of read and write: state, and whatever weights stay between bodies
//   norm          for each trainable group, block sums of all ranks read; update (back 1) read, norm write
//   set_scalars   input read, update (back 1) read, update write[, norm read]
//   optimize      state add, gradient read, update read, weights write (16-bit) or add (fp32)
//   load          [state write (trainable),] weights write[, error write[, right factors write]]
//   save          [state read (trainable),] [weights read (only where the checkpoint stores weights: frozen,
//                 or fp32)][, error read[, right factors read]]
//                 right factors: with a group's first shard

// Positions of a segment task's operands; kNone where there is none.
struct SegmentOperands {
  std::vector<uint32_t> inputs, weights, outputs, output_gradients, input_gradients, accumulators;
  uint32_t saved = kNone, workspace = kNone, loss = kNone, input_scalars = kNone, update_scalars = kNone;
  uint32_t count = 0;
};
// `saves`: a forward that keeps its saved tensors. `recompute`: a backward that runs the forward again.
SegmentOperands segment_operands(const SegmentPlan& plan, const Segment& segment, TaskKind kind,
                                 bool recompute, bool saves);

// max(4 Mi parameters, model / 2048), rounded up to 512 Ki: pieces of 16-bit weights in a file begin at
// multiples of 1 MiB, and a norm block never straddles shards.
uint64_t default_shard_elements(const Model& model);

// The bodies have tasks and no instructions; buffers have no homes yet. Throws std::invalid_argument if the
// model cannot be trained as asked.
Lowering lower(const Model& model, const LowerOptions& options, Program& program);

}  // namespace sluice
