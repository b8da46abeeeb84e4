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

// The last expert is moved behind the segment that reads the sum.
TEST(Sums, AreWholeBeforeTheyAreRead) {
  Model model = model_of(kMixtral);
  const auto expert =
      std::ranges::find(model.layers, "model.layers.0.block_sparse_moe.experts.1", &Layer::name);
  ASSERT_NE(expert, model.layers.end());
  std::swap(*expert, *(expert + 1));
  EXPECT_NE(refusal(model).find("model.layers.0.sum was read before."), std::string::npos) << refusal(model);
}

// ---- Experts divided over ranks.

Model divided_over(uint32_t ranks, uint32_t of_node, uint32_t here) {
  ModelConfig config = config_from_name(
      "mixtral:layers=1,width=16,heads=2,kv_heads=2,ffn=8,vocab=50,context=8,experts=8,top=2");
  config.mesh = Mesh({1, ranks}, of_node);
  config.rank = here;
  return build_model(config, DType::bf16, 1, 8);
}

Op& first_op(Model& model, const std::string& segment) {
  return std::ranges::find(model.segments, segment, &Segment::name)->ops.front();
}

// All ranks run the same program. Together they have the parameters of a rank that has all experts.
TEST(DividedExperts, ARankHasItsPart) {
  const Model whole = divided_over(1, 1, 0), second = divided_over(4, 2, 1);
  EXPECT_EQ(parameter_count(second), parameter_count(whole));
  std::vector<std::string> names, of_all;
  for (const Group& group : whole.groups)
    for (const Parameter& parameter : group.parameters) names.push_back(parameter.name);
  for (const Group& group : groups_of_all_ranks(second))
    for (const Parameter& parameter : group.parameters) of_all.push_back(parameter.name);
  EXPECT_EQ(of_all, names);
  const Group& group =
      *std::ranges::find(second.groups, "model.layers.0.block_sparse_moe.experts.1", &Group::name);
  EXPECT_EQ(group.parts(), 4u);
  EXPECT_EQ(part_on(second.mesh, group, 1), 1u);
  EXPECT_EQ(group.parameters.front().name, "model.layers.0.block_sparse_moe.experts.3.w1.weight");
  EXPECT_EQ(name_in(group, group.parameters.front(), 2),
            "model.layers.0.block_sparse_moe.experts.5.w1.weight");
}

TEST(DividedExperts, ThoseOnOtherNodesAreReachedInTwoSteps) {
  const auto steps_of = [](const Model& model) {
    std::vector<std::pair<uint32_t, uint32_t>> steps;
    for (const SegmentUse& use : model.layers[3].segments)
      if (const Segment& segment = model.segments[use.segment]; segment.is_between_ranks())
        steps.emplace_back(segment.among().count, segment.among().stride);
    return steps;
  };
  using Steps = std::vector<std::pair<uint32_t, uint32_t>>;
  EXPECT_EQ(steps_of(divided_over(4, 1, 0)), (Steps{{4, 1}, {4, 1}}));
  EXPECT_EQ(steps_of(divided_over(8, 2, 0)), (Steps{{2, 1}, {4, 2}, {2, 1}, {4, 2}}));
}

TEST(DividedExperts, ModelsRefuseWhatDoesNotFit) {
  Model model = divided_over(2, 1, 0);
  EXPECT_EQ(refusal(model), "accepted");
  first_op(model, "dispatch").parts.count = 0;
  EXPECT_NE(refusal(model).find("it has no parts."), std::string::npos) << refusal(model);
  model = divided_over(2, 1, 0);
  first_op(model, "dispatch").parts.count = 3;
  EXPECT_NE(refusal(model).find("is not 3 equal parts."), std::string::npos) << refusal(model);
  model = divided_over(2, 1, 0);
  Segment& travel = *std::ranges::find(model.segments, "travel", &Segment::name);
  travel.ops.push_back(travel.ops.front());
  EXPECT_NE(refusal(model).find("all_to_allv is not its only op."), std::string::npos) << refusal(model);
  model = divided_over(2, 1, 0);
  std::ranges::find(model.activations, true, &Activation::sum)->made_again = true;
  EXPECT_NE(refusal(model).find("it makes something again, and cannot run twice."), std::string::npos)
      << refusal(model);
}

}  // namespace
}  // namespace sluice
