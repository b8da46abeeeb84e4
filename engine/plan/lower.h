// Lower: model x batch x recompute set x optimizer -> bodies of tasks over buffers, before tiers exist.
//
// Order of tasks (what shall overlap are neighbours, since lanes are in order):
//   first     for each layer: forwards of all slices; the loss; for each layer backwards: backwards of all
//             slices, then round(shard) of every group whose last contribution this was; norm; set_scalars
//   step      as first, with optimize(shard) of the step before in front of the forwards that first use the
//             group
//   drain     optimize of everything
//   evaluate  forwards of one validation batch
//   load      fills every shard; save writes every shard
// When the update needs no factor of all gradients, set_scalars comes first, optimize follows each round,
// first and step are one body and there is no drain.
//
// With several ranks every shard has one part a rank, and its rank owns it: whole gradients are rounded,
// exchanged, and summed up part by part by the owners. What else is shared is ZeRO's stage (Rajbhandari et
// al. 2020, "ZeRO: memory optimizations toward training trillion parameter models"):
//   0     nothing: summed gradients are gathered, and every rank updates everything
//   1, 2  state: the owner updates its part, then weights are gathered; every rank holds them whole. The two
//         differ in when a whole gradient ends, which here is always when it was exchanged
//   3     weights too: they are gathered for the forwards that first use a group, and for its backwards
// All ranks run the same program, and bits do not depend on the stage.
//
// Gradients may travel as factors of low rank instead (low_rank.h), at stages 0 and 1: the owner's part, or
// all, is expanded from factors that were summed up over ranks. What a rank's factors leave out stays in its
// error buffer for the next step. A run may begin with phases of other bodies: gradients travel whole before
// they are compressed, and all layers alike may use the groups of the first of them, until the body unlock
// copies those out.
//
// Operand order by kind (the runner relies on it; see SegmentOperands for segments):
//   round         accumulator read, gradient write, block sums write; several ranks: accumulator read,
//                 rounded write
//   gather        part read, whole write
//   exchange      rounded read, received write
//   sum           received read, gradient write, block sums write; of factors: received read, part write
//   compress      rounded read, error add, right factors read, left factors write
//   project       left factors add, error add, right factors write
//   expand        left factors read, right factors read, gradient write, block sums write
//   clone         pairs of read and write: state, and whatever weights stay between bodies
//   norm          block sums of each trainable group, of all ranks, update (back 1) read, norm write
//   set_scalars   input read, update (back 1) read, update write[, norm read]
//   optimize      state add, gradient read, update read, weights write (16-bit) or add (fp32)
//   load          [state write (trainable),] weights write[, error write[, right factors write]]
//   save          [state read (trainable),] [weights read (only where the checkpoint stores weights: frozen,
//                 or fp32)][, error read[, right factors read]]
//                 right factors: with a group's first shard
#pragma once

#include <functional>
#include <optional>

#include "engine/low_rank.h"
#include "engine/pack.h"
#include "engine/program.h"
#include "engine/segment.h"

namespace sluice {

struct OptimizerLayout {
  uint32_t planes = 3;  // fp32 planes of state a shard: master (16-bit only) and moments
  std::function<uint64_t(uint64_t)> plane_stride;  // elements of a shard -> bytes between planes
};

enum class LoopOrder : uint8_t { layer_major, slice_major };

struct LowerOptions {
  int64_t batch = 1;                  // sequences of one step; a multiple of the model's micro-batch
  bool update_waits_for_norm = true;  // clip > 0 or fp16
  bool evaluate = false;              // with a validation body
  uint32_t ranks = 1;
  int zero_stage = 3;  // of several ranks
  uint32_t compress_rank = 0;      // of several ranks, of factors; 0: gradients travel whole
  int64_t compress_after = 0;      // steps whose gradients travel whole
  int64_t share_layers_until = 0;  // steps in which all layers alike share groups; none are compressed
  std::vector<bool> recompute;        // by segment use in forward order; empty = all
  LoopOrder order = LoopOrder::layer_major;
  uint64_t shard_elements = 0;  // 0: default_shard_elements
  OptimizerLayout optimizer;
  WorkspaceBytes workspace_bytes;
};

// One factor of a group's gradient, fp32: what the rank has, what it received for its part, its part of the
// sum, and the sum.
struct FactorBuffers {
  BufferId own = kNone, received = kNone, part = kNone, sum = kNone;
};

struct CompressionBuffers {
  LowRankLayout layout;
  BufferId error = kNone;     // fp32, in pieces as the shards; permanent
  FactorBuffers left, right;  // right.sum is permanent: the next step begins with it
};

struct GroupBuffers {
  std::vector<uint64_t> shards;  // element boundaries: shard k is [shards[k], shards[k+1])
  BufferId weights = kNone, gradient = kNone, accumulator = kNone, block_sums = kNone;
  std::vector<BufferId> state;  // by shard; empty when frozen
  // What forwards and backwards read: `weights` itself, or whole shards that are gathered from it.
  BufferId forward_weights = kNone, backward_weights = kNone;
  // Of several ranks: the rank's own gradient before ranks exchange it, what it received of the others', its
  // part of the sums, and the block sums of all. A rank alone has `gradient` and `block_sums` instead.
  BufferId rounded = kNone, received = kNone, summed = kNone, all_block_sums = kNone;
  std::optional<CompressionBuffers> compression;  // where factors are less than the gradient
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

struct Lowering {
  std::vector<SegmentPlan> plans;
  std::vector<UseInfo> uses;
  std::vector<GroupBuffers> groups;
  BufferId scalars = kNone, tokens = kNone, labels = kNone;                                // ring 0
  BufferId validation_tokens = kNone, validation_labels = kNone, validation_loss = kNone;  // ring 1
  std::vector<BodyIds> phases;  // in order; the last has no end
  uint32_t slices = 1;
  uint32_t ranks = 1;
  int zero_stage = 3;

  const BodyIds& bodies() const { return phases.back(); }
  size_t phase_of(int64_t step) const {
    size_t phase = 0;
    while (step >= phases[phase].until) ++phase;
    return phase;
  }
  // A factor's length with padding: as many whole pages for every rank.
  uint64_t factor_elements(uint64_t used) const { return round_up(used, uint64_t{1024} * ranks); }
  bool shares_state() const { return ranks > 1 && zero_stage >= 1; }
  bool shares_weights() const { return ranks > 1 && zero_stage == 3; }
  // Of a shard: what each rank sums up, and what it updates.
  uint64_t part_elements(uint32_t group, uint32_t shard) const {
    return (groups[group].shards[shard + 1] - groups[group].shards[shard]) / ranks;
  }
  uint64_t updated_elements(uint32_t group, uint32_t shard) const {
    return part_elements(group, shard) * (shares_state() ? 1 : ranks);
  }
};

constexpr uint8_t kTrainRing = 0, kValidationRing = 1;
enum ScalarPiece : uint32_t { kScalarInput, kScalarLoss, kScalarNorm, kScalarUpdate, kScalarPieces };

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
