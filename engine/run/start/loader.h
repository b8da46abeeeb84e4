// First values of a shard: initial weights, weights of a Hugging Face directory, or a checkpoint. The hook of
// the task load.
#pragma once

#include <functional>

#include "engine/base/parallel.h"
#include "engine/graph/graph.h"
#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/execute/session.h"

namespace sluice {

// Writes elements [first, first + count) of a parameter as fp32. Called from several threads at once.
using ParameterSource =
    std::function<void(const Parameter& parameter, uint64_t first, uint64_t count, float* out)>;

// A checkpoint's masters (frozen groups: weights), or one plane of it. The checkpoint was checked against the
// model, and outlives the source.
ParameterSource source_of(const CheckpointReader& checkpoint);
ParameterSource source_of(const CheckpointReader& checkpoint, Plane plane);

// Elements [first, first + count) of a group's flat buffer; zeros in padding, and without a source.
void fill_flat(const Group& group, const ParameterSource& source, uint64_t first, uint64_t count, float* out);

// Fills master and weights from the source, zeros in padding and in the moments. The model and workers
// outlive the hook.
std::function<void(const ShardView&)> load_from(const Model& model, ParameterSource source, Workers& workers);

// As load_from, but masters, moments and frozen weights are a checkpoint's, and what compression has left
// out so far: each rank takes on the errors of some that wrote, so that their sum stays.
std::function<void(const ShardView&)> load_from(const Model& model, const CheckpointReader& checkpoint,
                                                const Ranks& ranks, Workers& workers);

// Issues the body load of the phase that `step` is in with the hook, and waits for it.
void load(Session& session, std::function<void(const ShardView&)> hook, int64_t step = 0);

}  // namespace sluice
