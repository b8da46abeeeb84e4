// Optimizers on fp32 master weights, as rows of one table: what the planner, the runner, checkpoints and
// devices need to know of each. adamw.h has the arithmetic of the first row.
//
// An update has two parts. prepare computes the constants of the update, once a step and in double; they
// travel with the step's scalars. apply makes one pass over memory: it unscales and clips the gradient,
// updates the state, that is the master weights and the optimizer's planes, and writes the 16-bit weights.
// Results have the same bits on every target, with any number of threads. Callers: the runner's optimizer
// lane, and devices.
//
// The state need not be updated at once. apply has three forms:
//   optimize   commits the update: stores the state, and writes the weights that it makes
//   repair     writes these weights and stores nothing
//   visit      commits the update with the gradient that waited; then writes the weights that the next update
//              would make, with the next gradient and guessed constants; and lets that gradient wait instead
// A visit with a right guess, and a repair, make the weights that `optimize` makes later, bit by bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu_optim/optimizer_kind.h"
#include "engine/base/parallel.h"
#include "engine/program/program.h"
#include "engine/program/state_plane.h"

namespace sluice {

// --beta1, --beta2, --eps and --weight-decay; an optimizer reads only the options that it has. `weight_decay`
// is for parameters that have no weight decay of their own.
struct OptimizerSettings {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
};

// What an update needs of its step. t >= 1 counts updates that were not skipped, this one included.
struct UpdateStep {
  int64_t t;
  double learning_rate, clip_factor, loss_scale;
};

// One range of parameters. The arrays may have any alignment and must not overlap. In working precision fp32,
// `master` is the weights, and `weights` is nullptr.
struct UpdateRange {
  float* master;
  void* planes[kStatePlanesMax - 1];  // those of the optimizer's row, not null
  void* gradient;                     // in `precision`; only read, except by a visit
  void* weights;                      // in `precision`; nullptr for fp32
  DType precision;                    // bf16, f16 or f32
  uint64_t elements;
  double weight_decay;                  // 0: none
  const void* next_gradient = nullptr;  // of a visit
  double learning_rate_factor = 1;      // the step's learning rate is multiplied by it
};

enum class UpdateForm : uint8_t { optimize, repair, visit };

struct UpdateScalars {
  const StepScalars::Update* update = nullptr;
  const StepScalars::Guess* guess = nullptr;  // of a visit
};

struct Optimizer {
  OptimizerKind kind;
  const char* name;                    // the value of --optimizer, and in manifests
  std::span<const StatePlane> planes;  // beside the master weights
  bool whole_tensors;                  // apply must be given whole tensors, so a group is one shard
  UpdateConstants (*prepare)(const OptimizerSettings& settings, const UpdateStep& step);
  // `guessed`: the guessed constants of a visit. fp32 has only `optimize`, since its weights are the master
  // weights.
  void (*apply)(const UpdateRange& range, const UpdateConstants& constants, Workers& workers, UpdateForm form,
                const UpdateConstants& guessed);
};
const Optimizer& optimizer_of(OptimizerKind kind);

// All planes of a shard: the master weights, and those of the row.
std::vector<StatePlane> planes_of(const Optimizer& optimizer);
// The planes that lie in buffers of state. In fp32 the master weights are not among these planes, since they
// lie in the buffer of the weights.
OptimizerLayout layout_of(const Optimizer& optimizer, DType precision);

// The optimizer's apply. An update that is skipped (fp16) leaves the state unchanged: then the weights of
// `optimize` and `repair` are the rounded master weights, and a visit guesses the next update from there.
void update_range(const Optimizer& optimizer, UpdateForm form, const UpdateRange& range,
                  const UpdateScalars& scalars, Workers& workers);

constexpr uint64_t kUpdatePart = 65536;  // elements of a part; AdamW moves 1.8 MB for each part
// Elements [begin, begin + elements) of a range with these planes.
UpdateRange part_of(const UpdateRange& range, std::span<const StatePlane> planes, uint64_t begin,
                    uint64_t elements);

// Cuts the range into parts of up to kUpdatePart elements and calls work(part) for all parts, in parallel.
template <typename Work>
void for_each_part(const UpdateRange& range, std::span<const StatePlane> planes, Workers& workers,
                   const Work& work) {
  const auto parts = static_cast<int64_t>((range.elements + kUpdatePart - 1) / kUpdatePart);
  workers.parallel_for(parts, [&](int64_t i, int) {
    const uint64_t begin = static_cast<uint64_t>(i) * kUpdatePart;
    work(part_of(range, planes, begin, std::min(kUpdatePart, range.elements - begin)));
  });
}

}  // namespace sluice
