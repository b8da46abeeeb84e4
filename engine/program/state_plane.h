// Planes of a shard's optimizer state. A plane is an array with one value for each element of the shard. The
// row of an optimizer lists its planes (cpu_optim/optimizer.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/dtype.h"

namespace sluice {

struct StatePlane {
  // String literals: an error of a write may outlive whoever made the plane.
  const char* name;        // in manifests and file names: "exp_avg"
  const char* shown_file;  // in errors of writes: "the checkpoint's exp_avg.safetensors"
  DType type = DType::f32;

  constexpr uint64_t bytes(uint64_t elements) const { return elements * dtype_bytes(type); }
  // The bytes of a shard's plane in whole pages of 4096, as checkpoints store the plane.
  constexpr uint64_t page_bytes(uint64_t elements) const { return (bytes(elements) + 4095) / 4096 * 4096; }
};

inline constexpr StatePlane kMasterWeights{"master", "the checkpoint's master.safetensors"};
constexpr uint32_t kStatePlanesMax = 3;  // with the master weights
using StatePlaneOffsets = std::array<uint64_t, kStatePlanesMax + 1>;

// Checkpoints also have planes that no optimizer's row lists: frozen weights, and the compression error and
// the right factors of compressed gradients (low_rank.h), which each rank has for itself.
inline constexpr StatePlane kCompressionError{"error", "the checkpoint's error.safetensors"};
inline constexpr StatePlane kRightFactors{"factors", "the checkpoint's factors.safetensors"};
constexpr StatePlane frozen_weights(DType precision) {
  return {"frozen", "the checkpoint's frozen.safetensors", precision};
}

// What planning must know of an optimizer.
struct OptimizerLayout {
  std::vector<StatePlane> planes;  // of a shard's state, in its order
  bool whole_tensors = false;  // an update needs whole tensors: each group is one shard, which one rank owns

  uint64_t bytes(uint64_t elements) const;  // of all values
};

// Where the planes of a shard of `elements` elements begin in the shard's state, in bytes. Entries after the
// last plane's are the state's end. Each plane takes an odd number of pages of 4096: planes that lie a large
// power of two apart were measured to cost two thirds of the speed.
StatePlaneOffsets plane_offsets(std::span<const StatePlane> planes, uint64_t elements);

}  // namespace sluice
