#include "engine/program/state_plane.h"

#include <cstddef>

#include "engine/base/error.h"

namespace sluice {

uint64_t OptimizerLayout::bytes(uint64_t elements) const {
  uint64_t sum = 0;
  for (const StatePlane& plane : planes) sum += plane.bytes(elements);
  return sum;
}

StatePlaneOffsets plane_offsets(std::span<const StatePlane> planes, uint64_t elements) {
  CHECK(planes.size() <= kStatePlanesMax, "more planes than a shard's state may have");
  constexpr uint64_t kPage = 4096;
  StatePlaneOffsets offsets{};
  uint64_t end = 0;
  for (size_t p = 0; p < offsets.size(); ++p) {
    offsets[p] = end;
    if (p < planes.size()) end += (planes[p].page_bytes(elements) / kPage | 1) * kPage;
  }
  return offsets;
}

}  // namespace sluice
