// Planes of optimizer state: what they take, and where they lie.
#include "engine/program/state_plane.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr StatePlane kCodes{"codes", "", DType::u8}, kHalves{"halves", "", DType::bf16};

TEST(StatePlane, HasAValueForEachElement) {
  EXPECT_EQ(kMasterWeights.bytes(2048), 8192u);
  EXPECT_EQ(kCodes.bytes(2048), 2048u);
  EXPECT_EQ(kCodes.page_bytes(2048), 4096u);
  EXPECT_EQ(kCodes.page_bytes(4096), 4096u);
  EXPECT_EQ(kCodes.page_bytes(0), 0u);
  EXPECT_EQ((OptimizerLayout{{kMasterWeights, kCodes, kHalves}}).bytes(2048), 8192u + 2048 + 4096);
}

TEST(StatePlane, PlanesNeverLieAPowerOfTwoApart) {
  const StatePlane planes[] = {kMasterWeights, kCodes, kHalves};
  for (const uint64_t n : {1ull, 2048ull, 4ull << 20, (4ull << 20) + 2048, 64ull << 20, 1ull << 34}) {
    const StatePlaneOffsets offsets = plane_offsets(planes, n);
    EXPECT_EQ(offsets[0], 0u);
    for (size_t p = 0; p < std::size(planes); ++p) {
      const uint64_t stride = offsets[p + 1] - offsets[p];
      EXPECT_GE(stride, planes[p].bytes(n));
      EXPECT_LE(stride, planes[p].bytes(n) + 2 * 4096);
      EXPECT_EQ(stride % 4096, 0u);
      EXPECT_NE(stride % 8192, 0u);
    }
  }
  const StatePlaneOffsets one = plane_offsets({planes, 1}, 2048);
  EXPECT_EQ(one.back(), one[1]);  // behind the last plane is the end
}

}  // namespace
}  // namespace sluice
