// The nearest known word to a mistyped one.
#include "engine/base/suggest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice {
namespace {

using Names = std::vector<std::string>;

TEST(Suggest, FewestEdits) {
  const Names words = {"host-mem", "host-memory", "gpu-mem", "lr", "steps"};
  EXPECT_EQ(near_names("hsot-mem", words), Names{"host-mem"});
  EXPECT_EQ(near_names("setps", words), Names{"steps"});  // a swap is one edit
  EXPECT_EQ(near_names("rl", words), Names{"lr"});
  for (const char* far : {"banana", "x", "", "-", "\xff"}) EXPECT_EQ(near_names(far, words), Names{}) << far;
  EXPECT_EQ(near_names(std::string(100000, 'a'), words), Names{});
  EXPECT_EQ(near_names("steps", Names{}), Names{});
  EXPECT_EQ(suggestion("stesp", words), "Did you mean steps?");
  EXPECT_EQ(suggestion("qqqqqq", words), "Known are host-mem, host-memory, gpu-mem, lr, steps.");
}

TEST(Suggest, NamesThatContainTheWord) {
  const Names words = {"rtx-4090-4nvme", "rtx-4090", "rtx-3090", "a100-40gb", "a100-cluster", "h100", "b200"};
  EXPECT_EQ(near_names("RTX4090", words), Names{"rtx-4090"});  // the same letters
  EXPECT_EQ(near_names("4090", words), (Names{"rtx-4090", "rtx-4090-4nvme"}));
  EXPECT_EQ(near_names("a100", words), (Names{"a100-40gb", "a100-cluster"}));
  EXPECT_EQ(near_names("100", words), (Names{"h100", "a100-40gb", "a100-cluster"}));
  EXPECT_EQ(near_names("xt", words), Names{});  // two letters stand in too many names
  EXPECT_EQ(did_you_mean("rtx", words), "Did you mean rtx-4090, rtx-3090 or rtx-4090-4nvme?");
  EXPECT_EQ(did_you_mean("409", words, "--"), "Did you mean --rtx-4090 or --rtx-4090-4nvme?");
  EXPECT_EQ(near_names("aaa", Names(9, "aaaa")), Names{});
}

TEST(Suggest, NamesThatShareParts) {
  const Names words = {"a100-40gb", "a100-80gb", "a100-cluster", "qwen3-8b", "qwen3-235b-a22b", "falcon-7b"};
  EXPECT_EQ(near_names("A100-SXM4-80GB", words), Names{"a100-80gb"});
  EXPECT_EQ(near_names("nvidia-a100-pcie", words), (Names{"a100-40gb", "a100-80gb", "a100-cluster"}));
  EXPECT_EQ(near_names("qwen3-235b-thinking", words), Names{"qwen3-235b-a22b"});
  EXPECT_EQ(near_names("another-very-long-7b", words), Names{});  // many models have 7b
}

}  // namespace
}  // namespace sluice
