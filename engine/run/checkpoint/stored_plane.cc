#include "engine/run/checkpoint/stored_plane.h"

#include <fmt/format.h>

#include "cpu_optim/optimizer.h"

namespace sluice {

std::vector<StoredPlane> stored_planes(OptimizerKind optimizer, DType precision) {
  std::vector<StoredPlane> planes;
  for (const StatePlane& plane : planes_of(optimizer_of(optimizer))) planes.push_back({plane});
  planes.push_back({frozen_weights(precision), Owned::state, true});
  planes.push_back({kCompressionError, Owned::error});
  planes.push_back({kRightFactors, Owned::factors});
  return planes;
}

std::string plane_file_name(const StatePlane& plane, size_t writer, size_t writers) {
  return writers == 1 ? fmt::format("{}.safetensors", plane.name)
                      : fmt::format("{}-{:05}-of-{:05}.safetensors", plane.name, writer + 1, writers);
}

}  // namespace sluice
