// Tests what our kernels move against what they must move at least, with a bar for every op of two models.
// Also tests that the counts are right.
#include "tests/emulation/traffic.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "models/families/config.h"
#include "models/families/family.h"
#include "tests/emulation/op_traffic.h"

namespace sluice::emulation {
namespace {

// The bar: bytes that our own kernels of an op visit, divided by the bytes that they must move at least.
constexpr double kBar = 1.25;

// Ops above the bar, by the start of their names; each has a bar of its own.
struct Exception {
  const char* op;
  double bar;
  const char* reason;
};
constexpr Exception kExceptions[] = {
    {"attention forward", 1.35, "every block of queries reads the keys and values that they see"},
    {"attention backward", 2.0, "two kernels, one by queries, one by keys, each read q, k, v and dy"},
    {"embedding backward", 2.3,
     "adds to rows of fp32, which are read too; sums by token and by position each read dy"},
    {"linear_cross_entropy backward of bf16 [32 64] [32] [50257 64]", 1.35,
     "an RTX 4090 keeps 24832 logits of a row in shared memory and reads the others twice"},
    {"linear_cross_entropy backward of bf16 [32 64] [32] [128256 64]", 1.4, "so does an H100 with 57600"},
};

double bar_of(const CountedOp& op) {
  const auto* const found = std::find_if(std::begin(kExceptions), std::end(kExceptions),
                                         [&](const Exception& e) { return op.name.starts_with(e.op); });
  return found == std::end(kExceptions) ? kBar : found->bar;
}

void expect_within_bars(const std::vector<CountedOp>& ops) {
  for (const CountedOp& op : ops) {
    EXPECT_LE(op.kernels.ratio_of_visits(), bar_of(op)) << op.name;
    EXPECT_TRUE(op.kernels.least == 0 || op.kernels.ratio() >= 0.99) << op.name << ": not all was counted";
  }
}

const CountedOp& find(const std::vector<CountedOp>& ops, const std::string& name) {
  const auto found =
      std::find_if(ops.begin(), ops.end(), [&](const CountedOp& op) { return op.name.starts_with(name); });
  EXPECT_NE(found, ops.end()) << name;
  return *found;
}

TEST(Traffic, OpsOfGpt2) {
  const auto ops = count_ops(build_model(config_from_name("gpt2-xl:vocab=8201"), DType::bf16, 1, 256));
  expect_within_bars(ops);
  // Two ops must move every byte once: one that copies to shared memory in the background, one that does not.
  const Moved& attention = find(ops, "attention forward").kernels;
  EXPECT_EQ(attention.read, 256u * 3 * 64 * 2);
  EXPECT_EQ(attention.written, 256u * (64 * 2 + 4));
  const Moved& sum = find(ops, "add forward").kernels;
  EXPECT_EQ(sum.read, 2u * 256 * 1600 * 2);
  EXPECT_EQ(sum.written, 256u * 1600 * 2);
  EXPECT_EQ(sum.visited, sum.read + sum.written);
  // A block of a norm's backward has 8 rows for each parameter of the norm.
  EXPECT_EQ(find(ops, "layer_norm backward").launches[0].blocks, 256 / 16);
  // A product: x, weight and bias are read, y is written.
  const Moved& product = find(ops, "linear forward of bf16 [256 1600] [1600 4800]").all;
  EXPECT_EQ(product.read, 2u * (256 * 1600 + 1600 * 4800 + 4800));
  EXPECT_EQ(product.written, 2u * 256 * 4800);
}

TEST(Traffic, OpsOfLlama) {
  const auto ops = count_ops(build_model(config_from_name("llama-7b:vocab=8200"), DType::bf16, 1, 256));
  expect_within_bars(ops);
  EXPECT_EQ(find(ops, "rms_norm backward").launches[0].blocks, 256 / 8);
}

// A logit has 4 bytes, its gradient 2. Logits beyond those that shared memory keeps are read again.
TEST(Traffic, LossOfLongRows) {
  const auto expect_loss = [](int64_t vocabulary, const EmulatedGpu& gpu, double ratio) {
    const auto ops = count_loss(32, 64, vocabulary, gpu);
    expect_within_bars(ops);
    EXPECT_NEAR(find(ops, "linear_cross_entropy forward").kernels.ratio_of_visits(), 1, 0.01) << vocabulary;
    EXPECT_NEAR(find(ops, "linear_cross_entropy backward").kernels.ratio_of_visits(), ratio, 0.01)
        << vocabulary;
  };
  expect_loss(57600, h100(), 1);
  expect_loss(128256, h100(), 1 + 4.0 * (128256 - 57600) / (6 * 128256));
  expect_loss(24832, rtx_4090(), 1);
  expect_loss(50257, rtx_4090(), 1 + 4.0 * (50257 - 24832) / (6 * 50257));
}

TEST(Traffic, GradientsAndUpdates) { expect_within_bars(count_updates(uint64_t{1} << 19)); }

// A block that reads its input twice is seen where the second time is far from the first, and so are two
// blocks or two launches that read the same.
TEST(Traffic, SecondReadingsCount) {
  alignas(kSectorBytes) static std::byte memory[2 * kNear * kSectorBytes];
  Traffic traffic(memory, sizeof(memory));
  const auto read_twice = [&](uint64_t bytes) {
    traffic.begin_block();
    traffic.read(memory, bytes);
    traffic.read(memory, bytes);
  };
  traffic.begin_launch("near", false);
  read_twice(1);
  read_twice(kSectorBytes + 1);  // two sectors
  traffic.begin_launch("far", false);
  read_twice(sizeof(memory));
  traffic.write(memory + sizeof(memory) - 1, 1);
  traffic.write(memory + sizeof(memory), 1);  // beyond
  const std::vector<LaunchTraffic> launches = traffic.take();
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_EQ(launches[0].blocks, 2);
  EXPECT_EQ(launches[0].read.distinct, 2u);
  EXPECT_EQ(launches[0].read.visits, 3u);
  EXPECT_EQ(launches[1].read.distinct, 2 * kNear);
  EXPECT_EQ(launches[1].read.visits, 4 * kNear);
  EXPECT_EQ(launches[1].written.distinct, 1u);
  EXPECT_EQ(launches[1].bytes(), (2 * kNear + 1) * kSectorBytes);
}

}  // namespace
}  // namespace sluice::emulation
