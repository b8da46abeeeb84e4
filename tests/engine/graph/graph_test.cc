// Which kinds of uses parameter groups have.
#include "engine/graph/graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "models/families/family.h"

namespace sluice {
namespace {

Model model_of(const char* name) { return build_model(config_from_name(name), DType::bf16, 1, 8); }

TEST(GroupUses, ATiedEmbeddingHasTwoKinds) {
  const Model model = model_of("gpt2:layers=2,width=16,heads=2,vocab=50,context=8");
  const GroupUses uses = uses_of_groups(model);
  EXPECT_FALSE(uses.shares_layers);
  ASSERT_EQ(uses.kind_counts.size(), model.groups.size());
  for (size_t g = 0; g < model.groups.size(); ++g)
    EXPECT_EQ(uses.kind_counts[g], model.groups[g].name == "wte" ? 2u : 1u) << model.groups[g].name;
  EXPECT_EQ(uses.kinds.front().front(), 0u) << "the embedding's";
}

TEST(GroupUses, LayersThatShareAGroupAreOneKind) {
  Model model = model_of("gpt2:layers=3,width=16,heads=2,vocab=50,context=8");
  uint32_t first = 0;
  while (model.groups[first].name != "h.0") ++first;
  for (Layer& layer : model.layers)
    for (SegmentUse& use : layer.segments)
      for (uint32_t& g : use.groups)
        if (model.groups[g].name.starts_with("h.")) g = first;
  const GroupUses uses = uses_of_groups(model);
  EXPECT_TRUE(uses.shares_layers);
  EXPECT_EQ(uses.kind_counts[first], 1u);
}

// ---- Sums of several segments.

constexpr const char* kMixtral =
    "mixtral:layers=1,width=16,heads=2,kv_heads=2,ffn=8,vocab=50,context=8,experts=2";

std::string refusal(const Model& model) {
  try {
    check_model(model);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

Activation& activation(Model& model, const std::string& name) {
  return *std::ranges::find(model.activations, name, &Activation::name);
}

TEST(Sums, AreWhatOpsAddTo) {
  Model model = model_of(kMixtral);
  EXPECT_EQ(refusal(model), "accepted");
  activation(model, "model.layers.0.sum").sum = false;
  EXPECT_NE(refusal(model).find("model.layers.0.sum is added to and no sum."), std::string::npos)
      << refusal(model);
  model = model_of(kMixtral);
  activation(model, "model.layers.0.rows").sum = true;
  EXPECT_NE(refusal(model).find("model.layers.0.rows is a sum and not added to."), std::string::npos)
      << refusal(model);
}

// The last expert behind the segment that reads the sum.
TEST(Sums, AreWholeBeforeTheyAreRead) {
  Model model = model_of(kMixtral);
  const auto expert =
      std::ranges::find(model.layers, "model.layers.0.block_sparse_moe.experts.1", &Layer::name);
  ASSERT_NE(expert, model.layers.end());
  std::swap(*expert, *(expert + 1));
  EXPECT_NE(refusal(model).find("model.layers.0.sum was read before."), std::string::npos) << refusal(model);
}

}  // namespace
}  // namespace sluice
