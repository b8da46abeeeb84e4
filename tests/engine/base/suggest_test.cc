// The nearest known word to a mistyped one.
#include "engine/base/suggest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice {
namespace {

TEST(Suggest, Nearest) {
  const std::vector<std::string> words = {"host-mem", "host-memory", "gpu-mem", "lr", "steps"};
  EXPECT_EQ(nearest("hostmem", words), "host-mem");
  EXPECT_EQ(nearest("HOST-MEM", words), "host-mem");
  EXPECT_EQ(nearest("setps", words), "steps");  // a swap is one edit
  EXPECT_EQ(nearest("rl", words), "lr");
  EXPECT_EQ(nearest("banana", words), "");
  EXPECT_EQ(nearest("x", words), "");
  EXPECT_EQ(nearest("", words), "");
  EXPECT_EQ(nearest(std::string(100000, 'a'), words), "");
  EXPECT_EQ(nearest("steps", std::vector<std::string>{}), "");
  EXPECT_EQ(suggestion("stesp", words), "Did you mean steps?");
  EXPECT_EQ(suggestion("qqqqqq", words), "Known are host-mem, host-memory, gpu-mem, lr, steps.");
}

}  // namespace
}  // namespace sluice
