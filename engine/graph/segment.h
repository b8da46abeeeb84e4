// How one segment runs: which tensors its backward needs, the derived backward, and where its inner tensors
// lie.
//
// A template is compiled once for each set of gradients that uses of it must give, and each time for every
// level of Recompute. The `saved` tensors are the inner tensors that a level keeps. They lie in one flat
// range, a buffer. A tensor that is made again lies in the workspace of the pass, as do all other inner
// tensors, gradients and op workspaces. The same op makes such a tensor from the same operands, so levels do
// not change bits. Lowering takes the sizes. The runner (engine/run/execute/runner.h), which carries out
// single instructions, takes the offsets. Both see the same struct, so neither knows the other.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/graph/graph.h"

namespace sluice {

using WorkspaceBytes = std::function<uint64_t(const OpShapes&, Pass)>;

constexpr uint64_t kTensorAlignment = 64;  // bytes
constexpr uint32_t kNone = UINT32_MAX;

// Where a tensor's bytes are during a pass.
enum class Storage : uint8_t { none, input, output, saved, workspace, output_gradient, input_gradient, loss };
struct TensorPlace {
  Storage storage = Storage::none;
  uint32_t index = 0;   // input, output and their gradients: position in the segment's list
  uint64_t offset = 0;  // saved, workspace: byte offset
};

// Only a step of backward has the lists below. An entry of output_gradients or addends says where a gradient,
// or its part so far, lies before the step. It names a tensor: the gradient lies in the place of that
// tensor's gradient. The tensor may be another one, since a sum passes its gradient on and no step copies it.
// kNone: there is no part of the gradient yet.
struct OpStep {
  uint32_t op;
  Pass pass;
  uint64_t workspace_offset = 0;
  std::vector<uint32_t> output_gradients;  // by output
  std::vector<bool> wants_gradient;        // by input: the step writes it, at the input's own place
  std::vector<uint32_t> addends;           // by input: what the step adds to the gradient that it writes
  // By parameter: the op can overwrite the gradient, and no earlier step of the pass adds to it.
  std::vector<bool> overwrites;
};

struct PassPlan {
  std::vector<OpStep> steps;
  std::vector<TensorPlace> tensors;    // by tensor
  std::vector<TensorPlace> gradients;  // by tensor; backward only
  uint64_t workspace_bytes = 0;
  SegmentPass work;
  double flops = 0;    // of all its ops
  uint64_t bytes = 0;  // memory traffic at least
};

// Which gradients a use of a segment must give.
struct WantedGradients {
  std::vector<bool> inputs;     // by segment input: its gradient
  std::vector<bool> added;      // by segment input: its gradient has a part already, to which backward adds
  std::vector<bool> trainable;  // by group slot
  // By segment output: only the host reads it, so it gets no gradient. Outputs past the list's end may get
  // one.
  std::vector<bool> host_only = {};
  // By segment parameter: it is frozen, whatever its group is. Parameters past the list's end are not.
  std::vector<bool> frozen = {};
  auto operator<=>(const WantedGradients&) const = default;
};

// A segment at one level.
struct SegmentPasses {
  std::vector<bool> reads_input;   // by segment input: read by backward
  std::vector<bool> reads_output;  // by segment output: read by backward
  uint64_t saved_bytes = 0;
  PassPlan forward;   // at level `all`, no tensor is saved
  PassPlan backward;  // the forward steps that are made again, then backward
};

struct SegmentPlan {
  uint32_t segment = 0;
  DType precision = DType::bf16;
  std::vector<OpShapes> shapes;  // by op
  WantedGradients wanted;
  std::vector<bool> has_output_gradient;    // by segment output: backward reads its gradient
  std::vector<bool> output_gradient_added;  // by segment output: inner consumers add to it
  std::array<SegmentPasses, kRecomputes.size()> levels;
  const SegmentPasses& at(Recompute level) const { return levels[static_cast<size_t>(level)]; }
  // Whether a gradient of this parameter of the segment is computed; `slot` is its slot.
  bool trains(uint32_t slot, uint32_t parameter) const {
    return wanted.trainable[slot] && (parameter >= wanted.frozen.size() || !wanted.frozen[parameter]);
  }
};

SegmentPlan plan_segment(const Model& model, uint32_t segment, const WantedGradients& wanted,
                         const WorkspaceBytes& workspace_bytes);

}  // namespace sluice
