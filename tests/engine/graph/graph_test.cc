// Which kinds of uses parameter groups have.
#include "engine/graph/graph.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace sluice
