// Lowering: from a model, batch, levels of recomputation and optimizer to bodies of tasks over buffers. Homes
// of buffers come later.
//
// All ranks run the same program. For a given number of ranks, bits of results do not depend on what ranks
// share, nor on how they are divided over nodes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "engine/graph/segment.h"
#include "engine/plan/lower/schedule.h"
#include "engine/plan/lower/sharing.h"
#include "engine/program/low_rank.h"
#include "engine/program/program.h"
#include "engine/program/state_plane.h"

namespace sluice {

struct LowerOptions {
  int64_t batch = 1;  // sequences of one step; a multiple of the model's micro-batch
  // The number of waves into which a step's micro-batches are divided evenly. Must be 1 if layers share
  // groups.
  uint32_t waves = 1;
  bool update_waits_for_norm = true;  // clip > 0 or fp16
  // By group: whether its update runs in backward, not in the forward of the next step. If updates wait for
  // the norm, the bodies `guess` and `repair` run in backward what these groups can do without the norm.
  // Empty: no group if updates wait for the norm, else all groups.
  std::vector<bool> updated_in_backward;
  bool plain_step = true;  // whether there is a body `step` beside bodies that guess
  bool evaluate = false;   // with a validation body
  // Only bodies of the usual step (BodyIds::usual) have tasks. Workspaces that only other bodies use are
  // missing. For a model that trains.
  bool usual_only = false;
  // For a model that only generates. If the tokens of a reading cannot need all experts of a layer, the
  // reading has a place for each expert that they can need at most, and reads no other weights (Pick). Bits
  // are the same.
  bool picks_experts = true;
  // For several ranks; StateSharing explains both.
  int zero_stage = 3;
  bool weights_in_node_group = false;
  uint32_t compress_rank = 0;  // PowerSGD: matrix rank of the factors; 0: gradients travel whole
  int64_t compress_after = 0;  // until this step, counted from 0, gradients travel whole
  int64_t share_layers_until =
      0;  // until this step, layers that are alike share groups, and gradients travel whole
  std::vector<Recompute> recompute;  // by segment use in forward order; empty: `all` for each
  std::function<StepSchedule(const Model&, uint32_t slices)> schedule = layer_major;
  uint64_t shard_elements = 0;  // 0: default_shard_elements
  OptimizerLayout optimizer;
  WorkspaceBytes workspace_bytes;

  bool updates_in_backward(uint32_t group) const {
    return updated_in_backward.empty() ? !update_waits_for_norm : updated_in_backward[group];
  }
  // Whether the group is updated in a later body than its backward. Its weights may still be guessed before.
  bool waits(uint32_t group) const { return update_waits_for_norm || !updates_in_backward(group); }
  // Whether the group's weights are guessed in backward. fp32 never guesses: its weights are the master
  // weights.
  bool guesses(uint32_t group, DType precision) const {
    return update_waits_for_norm && updates_in_backward(group) && precision != DType::f32;
  }
};

// The buffers of a gather: this rank's part; `across`, the parts that the ranks of its cross-node group hold
// together; and the whole. kNone: the gather has no such buffer. `across` exists only with several node
// groups.
struct SharedBuffers {
  BufferId part = kNone, across = kNone, whole = kNone;
};

// The buffers of a reduction, in the order in which data passes through them:
//   own            this rank's gradient, cut into one part for each rank
//   in_node_group  several node groups: what the ranks of the node group sent to this rank
//   partial_sum    several node groups: the fp32 sum of in_node_group
//   received       what the ranks of the cross-node group sent; with one node group, what all ranks sent
//   sum            this rank's part of the sum over all ranks
struct ReductionBuffers {
  BufferId own = kNone, in_node_group = kNone, partial_sum = kNone, received = kNone, sum = kNone;
};

// One of the two factors of a group's gradient, in fp32.
struct FactorBuffers {
  ReductionBuffers reduction;
  SharedBuffers sum;
};

// At stages 0 and 1, gradients may travel as factors of low rank (low_rank.h). Ranks sum the factors. From
// the sums, each rank then expands the gradient: at stage 1 only its own part, at stage 0 the whole gradient.
struct CompressionBuffers {
  LowRankLayout layout;
  // What this rank's factors leave out of its gradient, for the next step: fp32, a piece for each shard.
  BufferId error = kNone;     // permanent
  FactorBuffers left, right;  // right.sum is permanent: the next step begins with it
};

struct GroupBuffers {
  std::vector<uint64_t> shards;  // element boundaries: shard k is [shards[k], shards[k+1])
  BufferId weights = kNone, gradient = kNone, block_sums = kNone;
  uint32_t first_piece = 0;            // of the weights, where several groups share a bank (Pick)
  std::vector<BufferId> accumulators;  // by kind of its uses (GroupUses); empty when frozen
  BufferId next_gradient = kNone;      // this step's gradient, until a visit moves it to `gradient`
  std::vector<BufferId> state;         // by shard; empty when frozen
  SharedBuffers updated;               // gathers weights after an update
  SharedBuffers forward, backward;     // gather weights for forwards and for backwards
  ReductionBuffers reduction;          // several ranks: of the gradient
  SharedBuffers summed;                // stage 0: gathers the sum of gradients
  SharedBuffers all_block_sums;  // gathers the block sums of all parts of the summed gradient, for the norm
  BufferId norm_sums = kNone;    // all_block_sums of this rank and of the ranks that have other experts
  std::optional<CompressionBuffers> compression;  // none: the factors would not be smaller than the gradient
  StateSharing sharing;
  ProcessGroup parts;                // the ranks that have different parts of the model in this group
  bool saved = true;                 // into checkpoints; false: the base of adapters, which has its own files
  bool updated_in_backward = false;  // else in the forward of the next step

  uint32_t pieces() const { return static_cast<uint32_t>(shards.size() - 1); }  // of its weights
  // Elements of a shard that each rank sums: its part.
  uint64_t part_elements(uint32_t shard) const {
    return (shards[shard + 1] - shards[shard]) / sharing.ranks();
  }
  // Elements of a shard that each rank updates: its part, or at stage 0 the whole shard.
  uint64_t updated_elements(uint32_t shard) const {
    return part_elements(shard) * (sharing.shares_state() ? 1 : sharing.ranks());
  }
};

struct UseInfo {                     // one segment use, in forward order
  uint32_t layer = 0, position = 0;  // position: within the layer
  uint32_t plan = 0;                 // index into Lowering::plans()
  Recompute recompute = Recompute::all;
};

struct LaterWaves {  // after a step's first wave
  std::optional<BodyId> middle, last;
};

// A step runs its micro-batches in waves, one after the other: each wave is a body. Gradients are summed over
// all waves, in accumulators that stay between bodies. So a wave's activations are gone before the next wave
// begins, but every wave needs all weights twice.
//
// The bodies of one phase of a run: of the steps below `until`, counted from 0. A run has up to three phases:
// while layers that are alike share the groups of the first such layer (this phase ends with `unlock`, which
// copies these groups to the other layers); while gradients travel whole; while gradients are compressed.
//
// Tasks of a lane run in the order of the body, so tasks that shall overlap stand together. The orders, with
// the schedule layer_major:
//   first     1. layer by layer, the forwards of all micro-batches, without the head; 2. from the head, whose
//             backward also computes the loss, to the first layer: the backwards of all micro-batches, then
//             `round` for each shard of every group whose gradient is complete; 3. norm; 4. set_scalars
//   step      as `first`, but before the first forward that uses a group stands `optimize` for each shard of
//             that group, with the gradients of the step before
//   drain     `optimize` for every shard whose update is pending
//   guess     starts in `guessed`: as `step`, but begins with set_guess, and groups of updated_in_backward
//             have no `optimize`: their `visit` stands where their gradient is complete
//   repair    starts in `pending`: as `guess`, but before the first forward that uses such a group stands
//             `repair` for each of its shards
//   evaluate  forwards of one validation batch
//   load      fills every shard, and kept activations with zeros
//   save      reads every shard
// A model that generates text also has a body for each reading: the forwards of its layers. If the model is
// not trained, its only other body is load. If updates do not wait for the norm (LowerOptions), set_scalars
// stands at the start, and `optimize` of a shard stands after its `round` if its group is updated in
// backward. If all groups are, `first` and `step` are the same body, and there is no drain.
//
// With several waves, `first`, `step`, `guess` and `repair` are the first wave of a step. Only the last wave
// has set_guess, set_scalars and what comes once gradients are complete. Only the first wave has what makes
// weights before their forward. A validation batch has as many waves as a step.
struct BodyIds {
  int64_t until = INT64_MAX;
  uint32_t waves = 1;
  std::optional<BodyId> load, first, step, drain, evaluate, save;
  std::optional<BodyId> guess, repair;  // both or none; with them, `step` may be missing
  std::vector<BodyId> readings;         // by Model::readings
  LaterWaves plain, guessing;           // `guessing`: after `guess` and `repair`
  std::optional<BodyId> evaluate_more;  // every wave of a validation batch but the first

  // Returns the body of a wave. The step of the wave begins with body `begin`: first, step, guess or repair.
  BodyId wave_of(BodyId begin, uint32_t wave) const {
    if (wave == 0) return begin;
    const LaterWaves& later = begin == guess || begin == repair ? guessing : plain;
    return wave + 1 < waves ? *later.middle : *later.last;
  }
  std::vector<BodyId> step_from(BodyId begin) const {
    std::vector<BodyId> bodies;
    for (uint32_t wave = 0; wave < waves; ++wave) bodies.push_back(wave_of(begin, wave));
    return bodies;
  }
  // Every body that training may run.
  std::vector<BodyId> of_training() const;
  // The bodies that repeat while all guesses are right: a training step, or the first of the readings.
  std::vector<BodyId> usual() const { return begins_usual(guess ? guess : step); }
  // The bodies that repeat in training without guesses.
  std::vector<BodyId> plain_step() const { return begins_usual(step); }
  std::optional<BodyId> unlock;  // runs before the next phase; no update is pending then

 private:
  std::vector<BodyId> begins_usual(std::optional<BodyId> begin) const {
    return first ? step_from(*begin) : std::vector<BodyId>{readings.front()};
  }
};

// What segment uses compute. The only option that plans depend on is the workspaces' sizes, so lowerings of
// one model share the plans.
struct SegmentPlans {
  std::vector<SegmentPlan> plans;    // one for each template and set of wanted gradients
  std::vector<uint32_t> of_use;      // indices into `plans`
  std::vector<bool> differentiable;  // by activation: it has a gradient
};
std::shared_ptr<const SegmentPlans> plan_segments(const Model& model, const WorkspaceBytes& workspace_bytes);

// The first ring has a slot for each step, the second for each validation batch, the third for each wave, and
// the fourth for each call of a reading. A model that only generates has its readings in kWaveRing.
constexpr uint8_t kTrainRing = 0, kValidationRing = 1, kWaveRing = 2, kSampleRing = 3;

struct Lowering {
  std::shared_ptr<const SegmentPlans> segments = std::make_shared<SegmentPlans>();  // never null
  std::vector<UseInfo> uses;
  std::vector<GroupBuffers> groups;
  BufferId scalars = kNone;          // in kTrainRing; ScalarPiece names its pieces
  BufferId validation_loss = kNone;  // in kValidationRing
  // By activation; kNone if the activation is no input (or output) of the model. Buffers of a reading are in
  // reading_ring, others in kWaveRing.
  std::vector<BufferId> inputs, outputs;
  uint8_t reading_ring = kWaveRing;
  std::vector<BodyIds> phases;     // in order; the last one never ends
  uint32_t slices = 1, waves = 1;  // micro-batches of a wave; waves of a step
  bool update_waits_for_norm = true;
  Mesh mesh;             // the model's
  StateSharing sharing;  // of groups that are whole on all ranks

  const std::vector<SegmentPlan>& plans() const { return segments->plans; }
  uint32_t micro_batches() const { return slices * waves; }  // of a step

  const BodyIds& bodies() const { return phases.back(); }
  size_t phase_of(int64_t step) const {
    size_t phase = 0;
    while (step >= phases[phase].until) ++phase;
    return phase;
  }
};

// The ring buffer of the model's input or output with this name. The buffer has a piece for each micro-batch;
// the buffer of a reading has one piece.
BufferId input_buffer(const Model& model, const Lowering& lowering, std::string_view name);
BufferId output_buffer(const Model& model, const Lowering& lowering, std::string_view name);

enum ScalarPiece : uint32_t { kScalarInput, kScalarLoss, kScalarNorm, kScalarUpdate, kScalarGuess };

// Which operands of a forward or backward hold its segment's tensors. For each tensor, a list has the number
// of the tensor's operand among the operands of the list's role (`inputs`: Role::input), or kNone if the
// tensor has no operand. Role::weights has one operand for each slot.
struct SegmentOperands {
  std::vector<uint32_t> inputs, outputs, output_gradients, input_gradients, accumulators;
};
SegmentOperands segment_operands(const SegmentPlan& plan, const Segment& segment, TaskKind kind,
                                 Recompute level);

// Parameters of one rank's part of a shard: the larger of 4 Mi and a 2048th of the model, rounded up to a
// multiple of 512 Ki. So no block of a block sum (kNormBlock) crosses the border of two parts, and the 16-bit
// weights of each part begin at a multiple of 1 MiB in a file.
uint64_t default_shard_elements(const Model& model);

// Adds bodies of tasks, without instructions, and buffers, without homes, to `program`. Throws
// std::invalid_argument if the model cannot be trained as asked. `segments`: plan_segments() of the model and
// the options' workspace_bytes; nullptr: they are made here.
Lowering lower(const Model& model, const LowerOptions& options, Program& program,
               std::shared_ptr<const SegmentPlans> segments = nullptr);

}  // namespace sluice
