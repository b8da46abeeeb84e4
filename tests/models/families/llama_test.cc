// Llama's config.json as published, what it refuses, its sizes and its ops.
#include <gtest/gtest.h>

#include "tests/support/family_support.h"

namespace sluice {
namespace {

TEST(LlamaConfig, AsPublished) {
  ModelConfig config = config_from_json(kLlamaJson, "config.json");
  EXPECT_EQ(config.special_tokens.at("eos_token_id"), "[128001,128008]");
  config.special_tokens = config_from_name("llama-1b").special_tokens;
  expect_equal(config, config_from_name("llama-1b"));
  EXPECT_TRUE(config.notes.empty());
}

// What the config.json files of the releases say beside sizes; parameters are tested for every preset.
TEST(LlamaConfig, ReleasesDifferInContextAndPositions) {
  struct Release {
    const char* name;
    int64_t vocabulary, context, kv_heads;
    double theta, factor;
    bool tied;
  };
  for (const Release& r : {Release{"tinyllama", 32000, 2048, 4, 10000, 0, false},
                           Release{"llama-2-7b", 32000, 4096, 32, 10000, 0, false},
                           Release{"llama-2-13b", 32000, 4096, 40, 10000, 0, false},
                           Release{"llama-2-70b", 32000, 4096, 8, 10000, 0, false},
                           Release{"llama-3-8b", 128256, 8192, 8, 500000, 0, false},
                           Release{"llama-3-70b", 128256, 8192, 8, 500000, 0, false},
                           Release{"llama-3.1-8b", 128256, 131072, 8, 500000, 8, false},
                           Release{"llama-3.1-70b", 128256, 131072, 8, 500000, 8, false},
                           Release{"llama-3.1-405b", 128256, 131072, 8, 500000, 8, false},
                           Release{"llama-3.2-1b", 128256, 131072, 8, 500000, 32, true},
                           Release{"llama-3.2-3b", 128256, 131072, 8, 500000, 32, true}}) {
    const ModelConfig c = config_from_name(r.name);
    EXPECT_EQ(c.vocabulary, r.vocabulary) << r.name;
    EXPECT_EQ(c.context, r.context) << r.name;
    EXPECT_EQ(c.kv_heads, r.kv_heads) << r.name;
    EXPECT_EQ(c.rope_theta, r.theta) << r.name;
    EXPECT_EQ(c.rope_scaling.factor, r.factor) << r.name;
    EXPECT_EQ(c.tied, r.tied) << r.name;
    EXPECT_EQ(c.epsilon, 1e-5) << r.name;
  }
}

TEST(LlamaConfig, WritesWhatTransformersLoads) {
  const std::string llama = config_to_json(config_from_name("llama-1b"), DType::f16);
  for (const char* part : {"\"LlamaForCausalLM\"", "\"rope_type\": \"llama3\"", "\"rope_theta\": 500000.0",
                           "\"original_max_position_embeddings\": 8192", "\"torch_dtype\": \"float16\""})
    EXPECT_NE(llama.find(part), std::string::npos) << part << " in " << llama;
}

TEST(LlamaConfig, OtherMathematicsIsRefused) {
  expect_bad_file(replaced(kLlamaJson, "\"silu\"", "\"gelu\""), "hidden_act \"gelu\" is not supported");
  expect_bad_file(with(kLlamaJson, "\"sliding_window\": 4096"),
                  "sliding_window is 4096, which is not supported.");
  expect_bad_file(with(kLlamaJson, "\"partial_rotary_factor\": 0.5"), "partial_rotary_factor is 0.5, only 1");
  expect_bad_file(with(kLlamaJson, "\"residual_multiplier\": 0.22"), "residual_multiplier is 0.22");
}

TEST(LlamaConfig, KindsOfLayers) {
  EXPECT_NO_THROW(
      config_from_json(with(kLlamaJson, R"("layer_types": ["full_attention", "full_attention"])"), "f"));
  expect_bad_file(with(kLlamaJson, R"("layer_types": ["full_attention", "sliding_attention"])"),
                  "layer_types \"sliding_attention\" is not supported, only \"full_attention\".");
  expect_bad_file(with(kLlamaJson, R"("layer_types": "full_attention")"),
                  "layer_types is \"full_attention\", not a list.");
  expect_bad_file(with(kLlamaJson, R"("layer_types": ["full_attention", 1])"),
                  "layer_types has 1, not a string.");
}

TEST(LlamaConfig, InlineDescription) {
  const ModelConfig llama = config_from_name("llama:layers=3,width=160,heads=5,vocab=300,context=37");
  EXPECT_EQ(llama.kv_heads, 5);
  EXPECT_EQ(llama.head_size, 32);
  EXPECT_EQ(llama.ffn, 512);  // 8/3 x 160 = 426, rounded up to a multiple of 256
  EXPECT_EQ(llama.rope_theta, 10000);
  const ModelConfig grouped = config_from_name("llama-8b:layers=2");
  EXPECT_EQ(grouped.kv_heads, 8);
  EXPECT_EQ(grouped.ffn, 14336);
  EXPECT_EQ(find_family("llama")->ffn(4096), 11008);
  EXPECT_EQ(find_family("llama")->ffn(5120), 13824);
}

TEST(LlamaModel, Ops) {
  const Model model =
      build("llama:layers=1,width=48,heads=6,kv_heads=2,ffn=72,vocab=96,context=16,tied=false");
  EXPECT_EQ(ops_text(model, model.layers[0].segments[0]),
            "x = embedding(tokens; model.embed_tokens.weight[96,48])\n");
  EXPECT_EQ(ops_text(model, model.layers[1].segments[0]),
            "input_layernorm, input_layernorm.1 = rms_norm(x; model.layers.0.input_layernorm.weight[48])\n"
            "self_attn.q_proj = linear(input_layernorm; model.layers.0.self_attn.q_proj.weight[48,48])\n"
            "q = rope(self_attn.q_proj)\n"
            "self_attn.k_proj = linear(input_layernorm; model.layers.0.self_attn.k_proj.weight[16,48])\n"
            "k = rope(self_attn.k_proj)\n"
            "self_attn.v_proj = linear(input_layernorm; model.layers.0.self_attn.v_proj.weight[16,48])\n"
            "attn, attn.1 = attention(q, k, self_attn.v_proj)\n"
            "self_attn.o_proj = linear(attn; model.layers.0.self_attn.o_proj.weight[48,48])\n"
            "middle = add(x, self_attn.o_proj)\n"
            "post_attention_layernorm, post_attention_layernorm.1 = "
            "rms_norm(middle; model.layers.0.post_attention_layernorm.weight[48])\n"
            "mlp.gate_proj = linear(post_attention_layernorm; model.layers.0.mlp.gate_proj.weight[72,48])\n"
            "mlp.up_proj = linear(post_attention_layernorm; model.layers.0.mlp.up_proj.weight[72,48])\n"
            "swiglu = swiglu(mlp.gate_proj, mlp.up_proj)\n"
            "mlp.down_proj = linear(swiglu; model.layers.0.mlp.down_proj.weight[48,72])\n"
            "y = add(middle, mlp.down_proj)\n");
  EXPECT_EQ(ops_text(model, model.layers[2].segments[0]),
            "norm, norm.1 = rms_norm(x; model.norm.weight[48])\n"
            "loss = linear_cross_entropy(norm, labels; lm_head.weight[96,48])\n");
}

TEST(LlamaModel, BiasesWhereTheConfigSaysSo) {
  ModelConfig config =
      config_from_name("llama:layers=1,width=48,heads=6,kv_heads=2,ffn=72,vocab=96,context=16");
  const uint64_t plain = parameter_count(build_model(config, DType::f32, 1, 16));
  config.attention_bias = true;
  const uint64_t attention = parameter_count(build_model(config, DType::f32, 1, 16));
  EXPECT_EQ(attention - plain, 48u + 16u + 16u + 48u);
  config.mlp_bias = true;
  EXPECT_EQ(parameter_count(build_model(config, DType::f32, 1, 16)) - attention, 72u + 72u + 48u);
}

TEST(LlamaModel, HeadSizeNeedNotFollowFromTheWidth) {
  const Model model =
      build("llama:layers=1,width=48,heads=3,kv_heads=1,head_size=32,ffn=72,vocab=96,context=16");
  const Group& block = model.groups[1];
  EXPECT_EQ(block.parameters[1].shape, (Shape{96, 48}));  // q_proj
  EXPECT_EQ(block.parameters[2].shape, (Shape{32, 48}));  // k_proj
  EXPECT_EQ(block.parameters[4].shape, (Shape{48, 96}));  // o_proj
}

TEST(LlamaModel, MatricesThatWriteToTheResidualStream) {
  EXPECT_EQ(residual_matrices("llama"),
            (std::vector<std::string>{"self_attn.o_proj.weight", "mlp.down_proj.weight"}));
}

}  // namespace
}  // namespace sluice
