// cached_attention and pick_rows worked out by hand: values on the reference device, flops and bytes.
#include <gtest/gtest.h>

#include "tests/support/op_numbers.h"

namespace sluice {
namespace {

using enum OpKind;

// One head of two columns. Queries are zero, so each key that is seen has the same weight.
const OpAttributes kTwo{.sequence = 2, .context = 4, .heads = 1, .kv_heads = 1, .head_size = 2};
const std::vector<Shape> kApart = {{1, 4, 4}, {2}, {2, 2}, {2, 2}, {2, 2}};
const Numbers kCached = {1, 2, 10, 20, 3, 4, 30, 40, 0, 0, 0, 0, 0, 0, 0, 0};  // k, v of tokens 0 and 1
const Numbers kKeys = {5, 6, 7, 8}, kValues = {50, 60, 70, 80};

struct Found {
  Numbers o, cache;
};

Found found(OpAttributes attributes, const std::vector<int32_t>& begins, const Numbers& queries) {
  Operands operands =
      operands_of(cached_attention, attributes, kApart, {kCached, {}, queries, kKeys, kValues});
  set_indices(operands.inputs[1], begins);
  operands.freeze();
  const auto device = make_reference_device();
  const auto outputs = results_of(operands, run_forward(*device, operands));
  return {outputs.front().values, read_values(operands.inputs[0].data(), DType::f32, 16)};
}

TEST(CachedAttention, WritesItsRowsAndSeesWhatIsBefore) {
  const Found all = found(kTwo, {-2, -2}, {0, 0, 0, 0});
  EXPECT_EQ(all.cache, (Numbers{1, 2, 10, 20, 3, 4, 30, 40, 5, 6, 50, 60, 7, 8, 70, 80}));
  EXPECT_NEAR(all.o[0], 30, 1e-5);  // the mean of 10, 30, 50
  EXPECT_NEAR(all.o[1], 40, 1e-5);
  EXPECT_NEAR(all.o[2], 40, 1e-5);  // and 70
  EXPECT_NEAR(all.o[3], 50, 1e-5);
}

TEST(CachedAttention, BeginsAnew) {
  const Found anew = found(kTwo, {0, 0}, {0, 0, 0, 0});
  EXPECT_EQ(anew.cache, (Numbers{5, 6, 50, 60, 7, 8, 70, 80, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(anew.o, (Numbers{50, 60, 60, 70}));
}

TEST(CachedAttention, IdleRowsDoNothing) {
  const Found half = found(kTwo, {-2, 2}, {0, 0, 0, 0});
  EXPECT_EQ(half.cache, (Numbers{1, 2, 10, 20, 3, 4, 30, 40, 5, 6, 50, 60, 0, 0, 0, 0}));
  EXPECT_NEAR(half.o[0], 30, 1e-5);
  EXPECT_EQ(half.o[2], 0);
  EXPECT_EQ(half.o[3], 0);
  EXPECT_EQ(found(kTwo, {1, 2}, {0, 0, 0, 0}).cache, kCached);
}

TEST(CachedAttention, WindowsEndWhatIsSeen) {
  OpAttributes two = kTwo;
  two.window = 2;
  EXPECT_EQ(found(two, {-2, -2}, {0, 0, 0, 0}).o, (Numbers{40, 50, 60, 70}));
}

// Query (ln 2, 0) at scale 1 on keys 5 and 7: weights 2^5 and 2^7, of 160: 0.2 and 0.8.
TEST(CachedAttention, WeighsByTheKeys) {
  OpAttributes scaled = kTwo;
  scaled.scale = 1;
  const Found weighed = found(scaled, {0, 0}, {0, 0, std::log(2.0), 0});
  EXPECT_NEAR(weighed.o[2], 0.2 * 50 + 0.8 * 70, 1e-4);
  EXPECT_NEAR(weighed.o[3], 0.2 * 60 + 0.8 * 80, 1e-4);
}

TEST(CachedAttention, CountsAllKeysOfTheContext) {
  OpShapes s{cached_attention, kTwo, DType::bf16, kApart, {}, {}};
  // 2 queries, 4 keys: q k and p v take 4 * 2 each, the softmax 5.
  EXPECT_EQ(op_rule(cached_attention).flops(s, Pass::forward), 2 * 4 * (4 * 2 + 5));
  // cache 16, q, k, v and o 4 each, in two bytes; two begins in four.
  EXPECT_EQ(op_bytes(s, Pass::forward), 2u * (16 + 4 * 4) + 2 * 4);
  s.attributes.window = 3;
  s.attributes.soft_cap = 1;
  s.parameters = {{1}};  // a sink
  EXPECT_EQ(op_rule(cached_attention).flops(s, Pass::forward), 2 * (3 * (4 * 2 + 5 + 3) + 4));
  EXPECT_EQ(op_rule(cached_attention).flops(s, Pass::backward), 0);
}

TEST(PickRows, CopiesRows) {
  Operands operands = operands_of(pick_rows, {}, {{3, 2}, {2}}, {{1, 2, 3, 4, 5, 6}, {}});
  set_indices(operands.inputs[1], {2, 0});
  operands.freeze();
  expect_outputs(std::move(operands), {{5, 6, 1, 2}});
}

// Rope turns a part of a sequence, at positions from negative begins, as it turns it in the whole sequence.
TEST(Rope, TurnsPartsOfSequences) {
  OpAttributes whole{.sequence = 5, .heads = 1, .head_size = 2, .frequencies = {0.5}}, part = whole;
  part.sequence = 2, part.context = 5;
  const Numbers x = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const auto device = make_reference_device();
  const auto turned = [&](Operands operands) {
    return results_of(operands, run_forward(*device, operands))[0].values;
  };
  const Numbers all = turned(operands_of(rope, whole, {{5, 2}}, {x}));
  Operands later = operands_of(rope, part, {{2, 2}, {2}}, {{7, 8, 9, 10}, {}});
  set_indices(later.inputs[1], {-3, -3});
  later.freeze();
  EXPECT_EQ(turned(std::move(later)), Numbers(all.begin() + 6, all.end()));
}

}  // namespace
}  // namespace sluice
