// Which parameters an entry of --group-options names, what it sets, and what is refused.
#include "engine/run/start/group_options.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/base/error.h"
#include "models/families/family.h"

namespace sluice {
namespace {

Model mixtral(int64_t lora = 0, const Mesh& mesh = {}, uint32_t rank = 0) {
  ModelConfig config = config_from_name(
      "mixtral:layers=2,width=32,heads=4,kv_heads=2,ffn=32,vocab=100,context=32,experts=4,top=2");
  config.adapters.rank = lora;
  config.adapters.alpha = 1;
  config.mesh = mesh;
  config.rank = rank;
  return build_model(config, DType::bf16, 1, 32);
}

Model with(const std::vector<std::string>& entries, Model model = mixtral()) {
  apply_group_options(entries, model);
  return model;
}

const Parameter& parameter(const Model& model, const std::string& name) {
  for (const Group& group : model.groups)
    for (const Parameter& p : group.parameters)
      if (p.name == name) return p;
  throw std::invalid_argument(name);
}

// Names of the parameters that have options of their own.
std::vector<std::string> named(const Model& model) {
  std::vector<std::string> names;
  for (const Group& group : model.groups)
    for (const Parameter& p : group.parameters)
      if (p.frozen || p.weight_decay || p.learning_rate_factor != 1) names.push_back(p.name);
  return names;
}

std::string refusal(const std::vector<std::string>& entries, Model model = mixtral()) {
  try {
    apply_group_options(entries, model);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_FALSE(error.remedy().empty());
    return error.what();
  }
  return "accepted";
}

using Names = std::vector<std::string>;
const std::string kLayer0 = "model.layers.0.", kLayer1 = "model.layers.1.";

TEST(GroupOptions, WordsNameParametersByTheOpsThatUseThem) {
  EXPECT_EQ(named(with({"routers:lr=2"})),
            (Names{kLayer0 + "block_sparse_moe.gate.weight", kLayer1 + "block_sparse_moe.gate.weight"}));
  EXPECT_EQ(named(with({"embeddings:lr=2"})), (Names{"model.embed_tokens.weight"}));
  EXPECT_EQ(named(with({"head:lr=2"})), (Names{"lm_head.weight"}));
  const Names norms = named(with({"norms:decay=0.5"}));
  EXPECT_EQ(norms.size(), 5u);
  EXPECT_TRUE(std::ranges::all_of(norms, [](const auto& name) { return name.ends_with("norm.weight"); }));
  const Names experts = named(with({"experts:lr=0.5"}));
  EXPECT_EQ(experts.size(), 2u * 4u * 3u);
  EXPECT_TRUE(std::ranges::all_of(experts, [](const auto& n) { return n.find(".experts.") != n.npos; }));
}

TEST(GroupOptions, PatternsAreOfWholeNames) {
  EXPECT_EQ(named(with({"*.1.self_attn.?_proj.weight:lr=2"})).size(), 4u);
  EXPECT_EQ(named(with({"lm_head.weight:decay=0"})), (Names{"lm_head.weight"}));
  EXPECT_EQ(refusal({"lm_head:decay=0"}),
            "`lm_head` for --group-options names nothing that this model trains.");
}

// Two ranks have two experts each: 0 and 2 are in the same place, and so are 1 and 3.
TEST(GroupOptions, ExpertsOfAllRanksAreNamed) {
  for (int64_t here : {0, 1}) {
    const Names second =
        named(with({"*.1.*.experts.[13].w1.weight:lr=2"}, mixtral(0, Mesh({1, 2}, 2), here)));
    EXPECT_EQ(second,
              (Names{kLayer1 + "block_sparse_moe.experts." + (here == 0 ? "1" : "3") + ".w1.weight"}));
    EXPECT_EQ(named(with({"*.experts.*:lr=2"}, mixtral(0, Mesh({1, 2}, 2), here))).size(), 2u * 2u * 3u);
    EXPECT_EQ(named(with({"experts:lr=2"}, mixtral(0, Mesh({1, 2}, 2), here))).size(), 2u * 2u * 3u);
    for (const char* one : {"*.experts.0.*:frozen=yes", "*.experts.3.*:lr=2", "*.experts.[01].*:lr=2"})
      EXPECT_TRUE(
          refusal({one}, mixtral(0, Mesh({1, 2}, 2), here)).ends_with("and all ranks run the same program."))
          << one;
  }
}

TEST(GroupOptions, TheLastEntryWithAnOptionCounts) {
  const Model model =
      with({"experts:lr=0.5,decay=0.25", "*.experts.3.w1.weight:lr=4", "experts:decay=0", "routers:lr=3"});
  const Parameter& first = parameter(model, kLayer0 + "block_sparse_moe.experts.0.w1.weight");
  EXPECT_EQ(first.learning_rate_factor, 0.5);
  EXPECT_EQ(first.weight_decay, 0.0);
  EXPECT_FALSE(first.frozen);
  const Parameter& last = parameter(model, kLayer1 + "block_sparse_moe.experts.3.w1.weight");
  EXPECT_EQ(last.learning_rate_factor, 4);
  EXPECT_EQ(last.weight_decay, 0.0);
  EXPECT_FALSE(parameter(model, "lm_head.weight").weight_decay);
}

TEST(GroupOptions, AGroupIsNotTrainedOnceAllItsParametersAreFrozen) {
  const Model model = with({"experts:frozen=yes", "*.experts.2.w2.weight:frozen=no", "routers:frozen=yes"});
  for (const Group& group : model.groups) {
    const bool expert = group.name.find(".experts.") != std::string::npos;
    EXPECT_EQ(group.trainable, !expert || group.name.ends_with(".2")) << group.name;
  }
  EXPECT_TRUE(parameter(model, kLayer0 + "block_sparse_moe.gate.weight").frozen);
  EXPECT_EQ(parameter_count(model, true) + 2 * 4 * 32 + 2 * 4 * 3 * 32 * 32 - 2 * 32 * 32,
            parameter_count(mixtral(), true));
}

// A model with adapters trains only the adapters. Routers have no adapters.
TEST(GroupOptions, AdaptersAreNamedAsTheirOps) {
  const Names experts = named(with({"experts:lr=2"}, mixtral(2)));
  EXPECT_EQ(experts.size(), 2u * 4u * 3u * 2u);
  EXPECT_TRUE(std::ranges::all_of(experts, [](const auto& n) { return n.find("lora") != n.npos; }));
  EXPECT_EQ(refusal({"routers:frozen=yes"}, mixtral(2)),
            "`routers` for --group-options names nothing that this model trains.");
}

TEST(GroupOptions, WhatCannotBeMeantIsRefused) {
  EXPECT_EQ(refusal({"experts"}), "`experts` for --group-options is no WHAT:OPTION=X.");
  EXPECT_EQ(refusal({":lr=1"}), "`:lr=1` for --group-options is no WHAT:OPTION=X.");
  EXPECT_EQ(refusal({"experts:"}), "`experts:` for --group-options is no WHAT:OPTION=X.");
  EXPECT_EQ(refusal({"experts:beta1=1"}),
            "`experts:beta1=1` for --group-options has an option that is neither lr, decay nor frozen.");
  EXPECT_EQ(refusal({"experts:lr=1,"}),
            "`experts:lr=1,` for --group-options has an option that is neither lr, decay nor frozen.");
  EXPECT_EQ(refusal({"experts:lr=0"}),
            "`experts:lr=0` for --group-options has a value of lr that is no number above 0.");
  for (const char* value : {"", "-1", "nan", "inf", "1x", "1e999"})
    EXPECT_EQ(refusal({std::string("experts:decay=") + value}),
              std::string("`experts:decay=") + value +
                  "` for --group-options has a value of decay that is no number of 0 or more.");
  EXPECT_EQ(refusal({"experts:frozen=true"}),
            "`experts:frozen=true` for --group-options says neither frozen=yes nor frozen=no.");
  EXPECT_EQ(refusal({"*:frozen=yes"}), "--group-options freezes all parameters.");
}

}  // namespace
}  // namespace sluice
