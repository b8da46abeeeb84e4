// The planes that checkpoints store. Each has a file of every rank that writes some of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu_optim/optimizer_kind.h"
#include "engine/program/state_plane.h"

namespace sluice {

// What a rank writes of a group: its values for the flat buffer's elements, or what it has for itself.
enum class Owned : uint8_t { state, error, factors };

struct StoredPlane : StatePlane {
  Owned what = Owned::state;
  bool frozen = false;  // the state's plane of frozen groups, which have no other
};

// All planes of a run's checkpoints, in the order of files: those of the state first.
std::vector<StoredPlane> stored_planes(OptimizerKind optimizer, DType precision);

// A rank's file: "exp_avg.safetensors", or "exp_avg-00002-of-00004.safetensors" with several writers.
std::string plane_file_name(const StatePlane& plane, size_t writer, size_t writers);

}  // namespace sluice
