// GPT-2 with experts: descriptions, config.json, what they refuse, sizes and ops.
#include <gtest/gtest.h>

#include <map>

#include "engine/graph/draws.h"
#include "engine/graph/routing.h"
#include "tests/support/family_support.h"

namespace sluice {
namespace {

const std::string kTiny = "gpt2-moe:layers=4,width=64,heads=4,ffn=96,vocab=96,context=16,experts=4";

std::string json_of(const std::string& name) { return config_to_json(config_from_name(name), DType::bf16); }

TEST(Gpt2Moe, DescriptionOfTheClassicForms) {
  const ModelConfig c = config_from_name("gpt2-moe:layers=12,width=768,experts=64,top=1,capacity=1.25");
  EXPECT_EQ(c.family, "gpt2-moe");
  EXPECT_EQ(c.experts, 64);
  EXPECT_EQ(c.experts_per_token, 1);
  EXPECT_EQ(c.capacity_factor, 1.25);
  EXPECT_EQ(c.expert_ffn, 3072);
  EXPECT_TRUE(c.has_router_loss);
  for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(experts_of(c, i), i % 2 == 1 ? 64 : 0) << i;
  const ModelConfig all = config_from_name(kTiny + ",every=1,top=2,second=random,noise=yes,residual=yes");
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(experts_of(all, i), 4);
  EXPECT_TRUE(all.random_second && all.noisy_router && all.residual_experts);
  EXPECT_EQ(config_from_name(kTiny + ",capacity=none").capacity_factor, 0);
  EXPECT_FALSE(config_from_name("gpt2-moe-top2:second=always").random_second);
}

TEST(Gpt2Moe, NumbersOfExpertsByLayer) {
  const ModelConfig c = config_from_name("gpt2-moe:layers=12,width=64,heads=4,experts=8/16");
  EXPECT_EQ(c.experts, 16);
  for (const auto& [layer, experts] : {std::pair{0, 0}, {1, 8}, {3, 8}, {5, 8}, {7, 16}, {11, 16}})
    EXPECT_EQ(experts_of(c, layer), experts) << layer;
  const ModelConfig five = config_from_name("gpt2-moe:layers=5,width=64,heads=4,every=1,experts=2/4/6");
  for (int64_t i = 0; i < 5; ++i)
    EXPECT_EQ(experts_of(five, i), (std::vector{2, 2, 4, 4, 6})[static_cast<size_t>(i)]);
  const Model model = build(kTiny + "/2,top=2");
  std::map<std::string, int> experts;
  for (const Group& group : model.groups)
    if (group.name.find("experts") != std::string::npos) ++experts[group.name.substr(0, 3)];
  EXPECT_EQ(experts, (std::map<std::string, int>{{"h.1", 4}, {"h.3", 2}}));
}

TEST(Gpt2Moe, ConfigSurvivesTheRoundTrip) {
  for (const char* more : {"", ",capacity=none,router_loss=false", ",top=2,second=random,noise=yes",
                           "/6,every=2,residual=yes,expert_ffn=40,capacity=0.75"}) {
    const ModelConfig c = config_from_name(kTiny + more);
    const ModelConfig read = config_from_json(config_to_json(c, DType::bf16), "config.json");
    expect_equal(read, c);
    EXPECT_EQ(read.experts, c.experts);
    EXPECT_EQ(read.expert_counts, c.expert_counts);
    EXPECT_EQ(read.experts_per_token, c.experts_per_token);
    EXPECT_EQ(read.expert_ffn, c.expert_ffn);
    EXPECT_EQ(read.dense_layers, c.dense_layers);
    EXPECT_EQ(read.capacity_factor, c.capacity_factor);
    EXPECT_EQ(read.least_capacity, c.least_capacity);
    EXPECT_EQ(read.random_second, c.random_second);
    EXPECT_EQ(read.noisy_router, c.noisy_router);
    EXPECT_EQ(read.residual_experts, c.residual_experts);
    EXPECT_EQ(read.router_loss, c.router_loss);
    EXPECT_EQ(read.has_router_loss, c.has_router_loss);
  }
}

TEST(Gpt2Moe, MistakesAreNamed) {
  const auto bad = [](const std::string& more, const std::string& sentence, const std::string& remedy) {
    expect_error([&] { config_from_name(kTiny + more); }, ExitCode::usage, sentence, remedy);
  };
  bad(",top=5", "the number of experts of a token is 5, outside 1 to 4.", "Change the sizes.");
  bad("/2,top=3", "the number of experts of a token is 3, outside 1 to 2.", "Change the sizes.");
  for (const char* value : {"0", "-1", "no", "nan", "1e999", "1.2x", ""})
    bad(std::string(",capacity=") + value, std::string("capacity=") + value + " is not a positive number.",
        "Give a number such as 1.25, or capacity=none.");
  bad("/x", "experts=x is not an integer from 1 to 4096.", "Give a plain decimal number.");
  bad("/", "experts= is not an integer from 1 to 4096.", "");
  bad("/2/2", "there are 3 numbers of experts for 2 layers that have experts.", "");
  bad(",every=5", "one layer of 5 has experts, and there are 4 layers.", "");
  bad(",second=random", "the second expert is random, but a token uses 1.", "");
  bad(",second=sometimes", "second=sometimes is neither random nor always.",
      "second=random or second=always");
  bad(",noise=maybe", "noise=maybe is neither yes nor no.", "");
  const std::string json = json_of(kTiny);
  expect_bad_file(replaced(json, "\"capacity_factor\": 1.25", "\"capacity_factor\": 0"),
                  "capacity_factor is 0, not positive.");
  expect_bad_file(replaced(json, "\"capacity_factor\": 1.25", "\"capacity_factor\": -2.5"),
                  "capacity_factor is -2.5, not positive.");
  expect_bad_file(replaced(json, "\"num_experts\": 4", "\"num_experts\": \"four\""),
                  "num_experts is \"four\", not an integer.");
  expect_bad_file(replaced(json, "\"num_experts\": 4", "\"num_experts\": [4, 2.5]"),
                  "num_experts has 2.5, no integer from 1 to 4096.");
  expect_bad_file(replaced(json, "\"num_experts\": 4", "\"num_experts\": []"),
                  "num_experts is an empty list.");
  expect_bad_file(replaced(json, "\"num_experts_per_tok\": 1", "\"num_experts_per_tok\": 5"),
                  "the number of experts of a token is 5, outside 1 to 4.");
}

TEST(Gpt2Moe, Ops) {
  const Model model = build(kTiny + ",top=2,second=random,noise=yes,residual=yes", DType::bf16, 2, 8);
  const auto layer = [&](const std::string& name) {
    for (const Layer& l : model.layers)
      if (l.name == name) return l.segments[0];
    ADD_FAILURE() << name;
    return model.layers[0].segments[0];
  };
  const std::string router = ops_text(model, layer("h.3"));
  EXPECT_EQ(router.substr(router.find("ln_2, ")),
            "ln_2, ln_2.1, ln_2.2 = layer_norm(middle; h.3.ln_2.weight[64], h.3.ln_2.bias[64])\n"
            "mlp.router = router(ln_2; h.3.mlp.router.weight[4,64])\n"
            "mlp.router_noise = router(ln_2; h.3.mlp.router_noise.weight[4,64])\n"
            "mlp.router.noisy = add_noise(mlp.router, mlp.router_noise, draws)\n"
            "mlp.router.weights, mlp.router.weights.1 = route(mlp.router.noisy, draws)\n"
            "mlp.c_fc = linear(ln_2; h.3.mlp.c_fc.weight[64,96], h.3.mlp.c_fc.bias[96])\n"
            "mlp.act = gelu(mlp.c_fc)\n"
            "mlp.c_proj = linear(mlp.act; h.3.mlp.c_proj.weight[96,64], h.3.mlp.c_proj.bias[64])\n"
            "mlp.coefficient = router(ln_2; h.3.mlp.coefficient.weight[2,64], h.3.mlp.coefficient.bias[2])\n"
            "loss_statistics = router_statistics(mlp.router.noisy, mlp.router.weights.1, labels)\n"
            "statistics = router_statistics(mlp.router.noisy, mlp.router.weights.1)\n");
  EXPECT_EQ(ops_text(model, layer("h.3.mlp.experts.2")),
            "expert_rows = dispatch(routing, x)\n"
            "c_fc = expert_linear(routing, expert_rows; h.3.mlp.experts.2.c_fc.weight[64,96], "
            "h.3.mlp.experts.2.c_fc.bias[96])\n"
            "act = expert_swiglu(routing, c_fc, weights)\n"
            "c_proj = expert_linear(routing, act, weights; h.3.mlp.experts.2.c_proj.weight[96,64], "
            "h.3.mlp.experts.2.c_proj.bias[64])\n"
            "sum = combine(routing, c_proj)\n");
  EXPECT_EQ(ops_text(model, layer("h.3.sum")), "y = add_shared_sum(x, z, sum, shares)\n");
  EXPECT_EQ(ops_text(model, model.layers.back().segments[0]),
            "ln_f, ln_f.1, ln_f.2 = layer_norm(x; ln_f.weight[64], ln_f.bias[64])\n"
            "router_loss = router_loss(statistics, labels)\n"
            "router_loss.1 = router_loss(statistics.1, labels)\n"
            "loss = linear_cross_entropy(ln_f, labels; wte.weight[96,64])\n");
  EXPECT_EQ(layer("h.1").layer, 1u);
  EXPECT_EQ(layer("h.3").layer, 3u);
  EXPECT_EQ(model.activations[model_input(model, "draws")].shape, (Shape{kDrawWords}));
  EXPECT_FALSE(draws_numbers(build(kTiny)));
}

// A capacity saves memory. Of each of two sequences of 256 tokens, an expert takes 80 at most.
TEST(Gpt2Moe, AnExpertsRowsAreBoundedByItsCapacity) {
  const auto rows = [](const std::string& more) {
    const Model model = build("gpt2-moe:layers=2,width=64,heads=4,vocab=96,context=256,experts=4" + more,
                              DType::bf16, 2, 256);
    for (const Segment& segment : model.segments)
      if (segment.name == "expert") return segment.tensors[segment.ops.front().outputs.front()].shape[0];
    return int64_t{0};
  };
  EXPECT_EQ(rows(",capacity=1.25"), 192);  // 160 rows, and zeros up to a whole tile
  EXPECT_EQ(rows(",capacity=none"), 512);
}

TEST(Gpt2Moe, TextIsGeneratedWithoutCapacityAndDraws) {
  const Model model = build_generation_model(
      config_from_name(kTiny + ",top=2,second=random,noise=yes,capacity=1"), DType::bf16, 2, 16, 4);
  EXPECT_FALSE(draws_numbers(model));
  for (const Segment& segment : model.segments)
    for (const Op& op : segment.ops) EXPECT_FALSE(op.attributes.routing.drops()) << segment.name;
}

}  // namespace
}  // namespace sluice
