// How rows of experts are divided where predictions assume an imbalance.
#include "engine/graph/imbalance.h"

#include <gtest/gtest.h>

#include "engine/graph/routing.h"
#include "models/families/config.h"
#include "models/families/family.h"

namespace sluice {
namespace {

// A micro-batch has 256 rows. Each row chooses 2 of 8 experts, so an expert has 64 rows on average.
Model mixture() {
  return build_model(
      config_from_name(
          "mixtral:layers=2,width=16,heads=2,kv_heads=2,ffn=8,vocab=50,context=64,experts=8,top=2"),
      DType::bf16, 4, 64);
}

// The rows that each expert is assumed to have, layer by layer.
std::vector<double> rows_of_experts(const Model& model) {
  std::vector<double> rows;
  for (const Layer& layer : model.layers)
    for (const SegmentUse& use : layer.segments)
      for (const Op& op : model.segments[use.segment].ops)
        if (op.kind == OpKind::dispatch)
          rows.push_back(assumed_rows(shapes_of(model.segments[use.segment], op, model.precision)));
  return rows;
}

TEST(Imbalance, OneExpertOfALayerHasMostAndTheOthersEquallyMany) {
  Model model = mixture();
  const std::vector<double> even(16, 64);
  EXPECT_EQ(rows_of_experts(model), even);
  EXPECT_EQ(most_imbalance(model), 4);
  EXPECT_EQ(assumed_imbalance(model), 1);
  const size_t templates = model.segments.size();
  assume_imbalance(model, 1);
  EXPECT_EQ(rows_of_experts(model), even);
  EXPECT_EQ(model.segments.size(), templates);

  assume_imbalance(model, 2.75);
  EXPECT_EQ(assumed_imbalance(model), 2.75);
  EXPECT_EQ(model.segments.size(), templates + 1);
  EXPECT_NO_THROW(check_model(model));
  const std::vector<double> rows = rows_of_experts(model);
  ASSERT_EQ(rows.size(), 16u);
  for (size_t e = 0; e < rows.size(); ++e) EXPECT_DOUBLE_EQ(rows[e], e % 8 == 0 ? 176 : 48);  // 512 in all
}

// Two ranks have four experts each. In every round, rows travel to one expert of each rank and back.
TEST(Imbalance, RowsThatTravelAreThoseOfTheExpert) {
  ModelConfig config = config_from_name(
      "mixtral:layers=1,width=16,heads=2,kv_heads=2,ffn=8,vocab=50,context=64,experts=8,top=2");
  config.mesh = Mesh({1, 2}, 2);
  Model model = build_model(config, DType::bf16, 4, 64);
  const auto bytes = [&] {
    std::vector<uint64_t> all;
    for (const Layer& layer : model.layers)
      for (const SegmentUse& use : layer.segments)
        for (const Op& op : model.segments[use.segment].ops)
          if (op.kind == OpKind::all_to_allv)
            all.push_back(
                op_bytes(shapes_of(model.segments[use.segment], op, model.precision), Pass::forward));
    return all;
  };
  const uint64_t row = 2 * 16 * 2;  // bytes, read and written; each expert has 64 rows
  EXPECT_EQ(bytes(), std::vector<uint64_t>(8, 2 * 64 * row));
  assume_imbalance(model, 2.75);
  EXPECT_EQ(bytes(), (std::vector<uint64_t>{2 * 176 * row, 2 * 176 * row, 2 * 48 * row, 2 * 48 * row,
                                            2 * 48 * row, 2 * 48 * row, 2 * 48 * row, 2 * 48 * row}));
}

// With 4 times the mean, an expert has all 256 rows.
TEST(Imbalance, NoExpertHasMoreThanAllRows) {
  Model model = mixture();
  assume_imbalance(model, 100);
  EXPECT_EQ(assumed_imbalance(model), 4);
  EXPECT_EQ(rows_of_experts(model)[0], 256);
}

// Each of 8 experts has 8 of a sequence's 64 rows if all have equally many. Its capacity is 10 rows.
TEST(Imbalance, NoExpertHasMoreThanItsCapacity) {
  Model model = build_model(config_from_name("gpt2-moe:layers=2,width=16,heads=2,vocab=50,context=64,"
                                             "experts=8,top=1,capacity=1.25"),
                            DType::bf16, 4, 64);
  EXPECT_EQ(most_imbalance(model), 1.25);
  assume_imbalance(model, 3);
  EXPECT_EQ(assumed_imbalance(model), 1.25);
  EXPECT_EQ(rows_of_experts(model)[0], 40);
}

// Segments that only generate samples between steps have no capacity, and are left out.
TEST(Imbalance, WhatIsOnlyGeneratedDoesNotCount) {
  const ModelConfig config = config_from_name(
      "gpt2-moe:layers=2,width=16,heads=2,vocab=50,context=64,experts=8,top=1,capacity=1.25");
  Model model = build_model(config, DType::bf16, 4, 64, false, GenerationSizes{2, 32, 16});
  EXPECT_EQ(most_imbalance(model), 1.25);
  assume_imbalance(model, 8);
  EXPECT_EQ(assumed_imbalance(model), 1.25);
}

TEST(Imbalance, AModelWithoutExpertsHasNone) {
  Model model =
      build_model(config_from_name("gpt2:layers=1,width=16,heads=2,vocab=50,context=8"), DType::bf16, 1, 8);
  EXPECT_EQ(most_imbalance(model), 0);
  EXPECT_EQ(assumed_imbalance(model), 0);
  assume_imbalance(model, 2);
  EXPECT_EQ(assumed_imbalance(model), 0);
}

}  // namespace
}  // namespace sluice
