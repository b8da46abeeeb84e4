// First values of a shard: initial weights, weights of a Hugging Face directory, or a checkpoint's. They are
// written by the hook of the task `load`.
#pragma once

#include <functional>

#include "engine/base/parallel.h"
#include "engine/graph/graph.h"
#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/execute/session.h"
#include "models/weights/hf_weights.h"

namespace sluice {

// Writes elements [first, first + count) of a parameter as fp32. Called from several threads at once.
using ParameterSource =
    std::function<void(const Parameter& parameter, uint64_t first, uint64_t count, float* out)>;

// Values from a Hugging Face directory, which outlives the source, or made from the seed.
ParameterSource source_of(const HfWeights& weights);
ParameterSource source_of(uint64_t seed);

// For a model with adapters: reads the base's values from `base`, and the adapters' values from `adapters`.
ParameterSource source_of(const HfWeights& base, ParameterSource adapters);

// Reads a checkpoint's master weights or, for frozen groups, its weights. The checkpoint was checked against
// the model, and outlives the source.
ParameterSource source_of(const CheckpointReader& checkpoint);

// Writes elements [first, first + count) of a group's flat buffer: zeros in padding, and where there is no
// source.
void fill_flat(const Group& group, const ParameterSource& source, uint64_t first, uint64_t count, float* out);

// Writes a plane's values for elements [first, first + count) of a group's flat buffer from a checkpoint that
// was checked against the model: zeros in padding.
void fill_plane(const Group& group, const CheckpointReader& checkpoint, const StatePlane& plane,
                uint64_t first, uint64_t count, std::byte* out);

// A hook that fills master weights and weights from the source, and padding and all other planes with zeros.
// The model and workers outlive the hook.
std::function<void(const ShardView&)> load_from(const Model& model, ParameterSource source, Workers& workers);

// A hook that fills all planes, frozen weights and compression errors from a checkpoint. Each
// rank takes on the errors of some of the checkpoint's writers, so that the sum of all errors stays the same.
// `base`: the frozen weights that the checkpoint lacks; nullptr: it lacks none.
std::function<void(const ShardView&)> load_from(const Model& model, const CheckpointReader& checkpoint,
                                                const Ranks& ranks, Workers& workers,
                                                const HfWeights* base = nullptr);

// Runs the body `load` of the phase (Lowering::phases) to which `step` belongs, with the hook, and waits for
// its end.
void load(Session& session, std::function<void(const ShardView&)> hook, int64_t step = 0);

}  // namespace sluice
