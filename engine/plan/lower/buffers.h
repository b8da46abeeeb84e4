// Inside of lower: makes the SegmentPlans (lower.h), and every buffer but workspaces. For the files of lower
// only.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "engine/plan/lower/lower.h"
#include "engine/program/program.h"

namespace sluice {

constexpr uint64_t kPieceAlignment = 4096;  // O_DIRECT needs it of every range that may go to a file

inline bool any(const std::vector<bool>& v) { return std::find(v.begin(), v.end(), true) != v.end(); }

// A segment use of an expert, in a reading that has fewer places than the layer has experts (Pick). The first
// uses, one for each place, run what is picked, and the other uses do not run.
struct PickedUse {
  std::vector<BufferId> weights;  // by slot; empty: nothing is picked
  BufferId index = kNone;
  double part = 1;  // mean rows of an expert / mean rows at a place
  bool runs = true;
};

struct SliceBuffers {
  // By activation and micro-batch. Empty for a model's input or output. A kept activation's buffer is
  // permanent.
  std::vector<std::vector<BufferId>> activations;
  std::vector<std::vector<BufferId>> gradients;  // by activation, micro-batch; empty: none is asked for
  std::vector<std::vector<BufferId>> saved;      // by use, micro-batch; empty: nothing is kept
  std::vector<PickedUse> picked;                 // by use
};

// Adds a buffer of one piece, which has at least `bytes` and is padded to kPieceAlignment.
BufferId add_flat_buffer(Program& program, std::string name, BufferClass kind, uint64_t bytes,
                         bool permanent = false);

// Adds the buffers to the program, and fills all of `lowering` but its phases. `segments`, `slices`, waves,
// mesh and sharing of `lowering` must be set already.
SliceBuffers make_buffers(const Model& model, const LowerOptions& options, Program& program,
                          Lowering& lowering);

}  // namespace sluice
