// Adapters in the models of every family: which linear ops get them, their shapes, and that the base stays as
// it is without them.
#include "models/families/adapters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "models/weights/initial_weights.h"
#include "tests/support/family_support.h"

namespace sluice {
namespace {

constexpr const char* kSizes = "layers=2,width=64,vocab=96,context=16";

Model adapted(const std::string& name, const Adapters& adapters) {
  ModelConfig config = config_from_name(name);
  config.adapters = adapters;
  return build_model(config, DType::bf16, 2, 8);
}

// Names of the parameters in the first layer's group of adapters, without "LAYERS.0.".
std::vector<std::string> names_of(const Model& model) {
  const Group& group = model.groups[model.layers[1].segments[0].groups[1]];
  std::vector<std::string> names;
  for (const Parameter& p : group.parameters) names.push_back(p.name.substr(p.name.find(".0.") + 3));
  return names;
}

TEST(Adapters, ScaleIsAlphaOverTheRankOrItsRoot) {
  EXPECT_EQ((Adapters{.rank = 16, .alpha = 8}).scale(), 0.5);
  EXPECT_EQ((Adapters{.rank = 16, .alpha = 8, .root_scale = true}).scale(), 2);
}

bool is_of_layer(const Group& group) { return group.name.find_first_of("0123456789") != std::string::npos; }
bool is_router(const Parameter& p) {
  return p.name.ends_with("gate.weight") || p.name.ends_with("router.weight");
}

TEST(Adapters, EveryLinearOpOfEveryFamilyGetsOne) {
  for (const Family* family : families()) {
    SCOPED_TRACE(family->name);
    const std::string name = with_heads(*family, kSizes);
    const Model plain = build(name), model = adapted(name, {.rank = 4, .alpha = 4});
    EXPECT_TRUE(has_adapters(model));
    EXPECT_FALSE(has_adapters(plain));
    const auto is_adapted = [&](const Group& group) {  // gpt-oss's experts are not
      return is_of_layer(group) && !(family->stacks && group.name.find(".experts.") != std::string::npos);
    };
    const auto groups_of_layers = std::ranges::count_if(plain.groups, is_adapted);
    EXPECT_EQ(model.groups.size(), plain.groups.size() + static_cast<size_t>(groups_of_layers));
    size_t matrices = 0, factors = 0, matrices_of_segment = 0;
    uint64_t elements = 0;
    for (const Group& group : model.groups) {
      EXPECT_EQ(group.trainable, group.adapter);
      const bool of_segment = &group == &model.groups[model.layers[1].segments[0].groups[0]];
      for (const Parameter& p : group.parameters) {
        if (group.adapter) elements += static_cast<uint64_t>(element_count(p.shape));
        if (!is_adapted(group) || p.shape.size() != 2 || is_router(p)) continue;
        ++(group.adapter ? factors : matrices);
        matrices_of_segment += of_segment;
      }
    }
    EXPECT_EQ(factors, 2 * matrices);
    EXPECT_EQ(parameter_count(model, true), elements);
    EXPECT_EQ(parameter_count(model), parameter_count(plain) + elements);
    // Each adapted matrix adds three ops: one for each factor, and a sum.
    const auto ops = [](const Model& m) { return m.segments[m.layers[1].segments[0].segment].ops.size(); };
    EXPECT_EQ(ops(model), ops(plain) + 3 * matrices_of_segment);
  }
}

TEST(Adapters, ShapesAreThoseOfPeftWhicheverWayTheMatrixLies) {
  for (const char* name : {"gpt2:heads=2,ffn=96,", "llama:heads=2,ffn=96,"}) {
    const bool gpt2 = std::string(name).starts_with("gpt2");
    const Model model =
        adapted(name + std::string(kSizes), {.rank = 4, .targets = {gpt2 ? "c_fc" : "up_proj"}});
    const Group& group = model.groups[model.layers[1].segments[0].groups[1]];
    ASSERT_EQ(group.parameters.size(), 2u);
    EXPECT_EQ(group.parameters[0].shape, (Shape{4, 64}));
    EXPECT_EQ(group.parameters[1].shape, (Shape{96, 4}));
    EXPECT_TRUE(group.parameters[0].decay);
  }
}

TEST(Adapters, TargetsAreEndsOfNames) {
  const std::string gpt2 = "gpt2:heads=2," + std::string(kSizes);
  const std::vector<std::string> both{"attn.c_proj.lora_A.weight", "attn.c_proj.lora_B.weight",
                                      "mlp.c_proj.lora_A.weight", "mlp.c_proj.lora_B.weight"};
  EXPECT_EQ(names_of(adapted(gpt2, {.rank = 2, .targets = {"c_proj"}})), both);
  EXPECT_EQ(names_of(adapted(gpt2, {.rank = 2, .targets = {"mlp.c_proj"}})),
            (std::vector<std::string>{both[2], both[3]}));
  expect_error([&] { adapted(gpt2, {.rank = 2, .targets = {"proj"}}); }, ExitCode::usage,
               "--lora-targets names proj", "Name some of c_attn, c_fc, c_proj, or all-linear.");
  const std::string mixtral = "mixtral:layers=2,width=64,heads=4,kv_heads=2,ffn=32";
  expect_error([&] { adapted(mixtral, {.rank = 2, .targets = {"experts.0.w1"}}); }, ExitCode::usage,
               "--lora-targets names a matrix of ", "Name it without the expert's number");
  // A router gets no adapter, so it is no target.
  expect_error(
      [&] { adapted("mixtral:layers=1,width=64,heads=4,kv_heads=2", {.rank = 2, .targets = {"gate"}}); },
      ExitCode::usage, "--lora-targets names gate",
      "Name some of k_proj, o_proj, q_proj, v_proj, w1, w2, w3, or all-linear.");
  expect_error([&] { adapted(gpt2, {.rank = 65}); }, ExitCode::usage,
               "--lora 65 is more than the rank of h.0.", "Give --lora 64 or less");
}

// Layers with the same adapters share a template; others do not.
TEST(Adapters, OneLayerMayHaveThemAlone) {
  const auto templates = [](const Model& model) {
    std::vector<uint32_t> segments;
    for (const Layer& layer : model.layers) segments.push_back(layer.segments[0].segment);
    return segments;
  };
  const std::string gpt2 = "gpt2:heads=2,layers=4,width=64,vocab=50,context=16";
  const Model model = adapted(gpt2, {.rank = 2, .targets = {"h.2.attn.c_attn", "3.attn.c_attn"}});
  std::vector<std::string> groups;
  for (const Group& group : model.groups)
    if (group.adapter) groups.push_back(group.name);
  EXPECT_EQ(groups, (std::vector<std::string>{"h.2.lora", "h.3.lora"}));
  const std::vector<uint32_t> of = templates(model);
  EXPECT_EQ(of[1], of[2]);
  EXPECT_NE(of[2], of[3]);
  EXPECT_EQ(of[3], of[4]);
  // In this mixture, the experts of the second layer have adapters, and those of the first layer have none.
  const Model experts = adapted(
      "mixtral:layers=2,width=64,heads=4,kv_heads=2,ffn=32,experts=2,vocab=50,context=16",
      {.rank = 2,
       .targets = {"layers.1.block_sparse_moe.experts.0.w1", "layers.1.block_sparse_moe.experts.1.w1"}});
  size_t count = 0;
  for (const Group& group : experts.groups) count += group.adapter;
  EXPECT_EQ(count, 2u);
}

TEST(Adapters, OpsOfAnAdaptedLinear) {
  ModelConfig config = config_from_name("granite:heads=4,kv_heads=2," + std::string(kSizes));
  config.residual_scale = 0.5;
  config.adapters = {.rank = 2, .alpha = 6, .targets = {"o_proj"}};
  const Model model = build_model(config, DType::bf16, 2, 8);
  const SegmentUse& use = model.layers[1].segments[0];
  const std::string text = ops_text(model, use), prefix = "model.layers.0.self_attn.o_proj";
  const std::string wanted = "self_attn.o_proj = linear(attn; " + prefix + ".weight[64,64])\n" +
                             "self_attn.o_proj.lora_A = linear(attn; " + prefix + ".lora_A.weight[2,64])\n" +
                             "self_attn.o_proj.lora_B = linear(self_attn.o_proj.lora_A; " + prefix +
                             ".lora_B.weight[64,2])\n" +
                             "self_attn.o_proj.adapted = add(self_attn.o_proj, self_attn.o_proj.lora_B)\n";
  EXPECT_NE(text.find(wanted), std::string::npos) << text;
  for (const Op& op : model.segments[use.segment].ops)
    if (model.segments[use.segment].tensors[op.outputs[0]].name == "self_attn.o_proj.lora_B") {
      EXPECT_EQ(op.attributes.scale, 0.5 * 6 / 2);
    }
}

// A begins uniform within 1 / sqrt(in), B with zeros. Of 4096 values, the largest is within a thousandth of
// the bound unless chance is against it (0.999^4096 = 0.017, of a fixed seed).
TEST(Adapters, FactorsBeginAsInPeft) {
  const Model model = adapted("llama:heads=4,layers=1,width=256,vocab=96,context=16", {.rank = 16});
  const Group& group = model.groups[model.layers[1].segments[0].groups[1]];
  const Parameter &down = group.parameters[0], &up = group.parameters[1];
  std::vector<float> a(16 * 256), b(static_cast<size_t>(element_count(up.shape)), 1);
  fill_initial(down, 3, 0, a.size(), a.data());
  fill_initial(up, 3, 0, b.size(), b.data());
  float most = 0;
  double squares = 0;
  for (const float value : a) most = std::max(most, std::abs(value)), squares += value * value;
  EXPECT_LE(most, 1 / 16.0f);
  EXPECT_GE(most, 0.999f / 16);
  EXPECT_NEAR(std::sqrt(squares / 4096), 1 / (16 * std::sqrt(3.0)), 0.03 / (16 * std::sqrt(3.0)));
  EXPECT_EQ(std::ranges::count(b, 0.0f), static_cast<ptrdiff_t>(b.size()));
}

}  // namespace
}  // namespace sluice
