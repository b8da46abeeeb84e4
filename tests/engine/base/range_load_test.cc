#include "engine/base/range_load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace sluice {
namespace {

// The maxima are compared with those of a plain list.
TEST(RangeLoad, MaximaAreThoseOfAList) {
  std::mt19937 random(3);
  for (const uint32_t positions : {1u, 2u, 3u, 7u, 8u, 9u, 62u, 64u, 100u}) {
    RangeLoad load(positions);
    std::vector<int64_t> list(positions, 0);
    for (int round = 0; round < 400; ++round) {
      const auto range = [&] {
        const auto one = static_cast<uint32_t>(random() % positions),
                   other = static_cast<uint32_t>(random() % positions);
        return std::pair(std::min(one, other), std::max(one, other));
      };
      const auto [first, last] = range();
      const int64_t bytes = static_cast<int64_t>(random() % 1000) - 400;
      load.add(first, last, bytes);
      for (uint32_t p = first; p <= last; ++p) list[p] += bytes;
      const auto [from, to] = range();
      EXPECT_EQ(load.max(from, to), *std::max_element(list.begin() + from, list.begin() + to + 1))
          << positions << ": " << from << " to " << to;
    }
  }
}

}  // namespace
}  // namespace sluice
