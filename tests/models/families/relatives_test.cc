// Llama's relatives: their ops, types of layers, what they write, and what they refuse.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/family_support.h"

namespace sluice {
namespace {

constexpr const char* kSizes = ":layers=1,width=48,heads=4,kv_heads=2,ffn=72,vocab=96,context=16";

std::string layer_ops(const std::string& model_name) {
  const Model model = build(model_name + kSizes);
  std::string text = ops_text(model, model.layers[1].segments[0]);
  const std::string prefix = "model.layers.0.";
  for (size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix, at))
    text.erase(at, prefix.size());
  return text;
}

TEST(Relatives, Qwen3NormsHeadsBeforeItTurnsThem) {
  EXPECT_EQ(layer_ops("qwen3"),
            "input_layernorm, input_layernorm.1 = rms_norm(x; input_layernorm.weight[48])\n"
            "self_attn.q_proj = linear(input_layernorm; self_attn.q_proj.weight[48,48])\n"
            "self_attn.q_norm, self_attn.q_norm.1 = rms_norm(self_attn.q_proj; self_attn.q_norm.weight[12])\n"
            "q = rope(self_attn.q_norm)\n"
            "self_attn.k_proj = linear(input_layernorm; self_attn.k_proj.weight[24,48])\n"
            "self_attn.k_norm, self_attn.k_norm.1 = rms_norm(self_attn.k_proj; self_attn.k_norm.weight[12])\n"
            "k = rope(self_attn.k_norm)\n"
            "self_attn.v_proj = linear(input_layernorm; self_attn.v_proj.weight[24,48])\n"
            "attn, attn.1 = attention(q, k, self_attn.v_proj)\n"
            "self_attn.o_proj = linear(attn; self_attn.o_proj.weight[48,48])\n"
            "middle = add(x, self_attn.o_proj)\n"
            "post_attention_layernorm, post_attention_layernorm.1 = "
            "rms_norm(middle; post_attention_layernorm.weight[48])\n"
            "mlp.gate_proj = linear(post_attention_layernorm; mlp.gate_proj.weight[72,48])\n"
            "mlp.up_proj = linear(post_attention_layernorm; mlp.up_proj.weight[72,48])\n"
            "swiglu = swiglu(mlp.gate_proj, mlp.up_proj)\n"
            "mlp.down_proj = linear(swiglu; mlp.down_proj.weight[48,72])\n"
            "y = add(middle, mlp.down_proj)\n");
}

TEST(Relatives, Phi3IsPacked) {
  EXPECT_EQ(layer_ops("phi3"),
            "input_layernorm, input_layernorm.1 = rms_norm(x; input_layernorm.weight[48])\n"
            "self_attn.qkv_proj = linear(input_layernorm; self_attn.qkv_proj.weight[96,48])\n"
            "qkv = rope(self_attn.qkv_proj)\n"
            "attn, attn.1 = attention(qkv)\n"
            "self_attn.o_proj = linear(attn; self_attn.o_proj.weight[48,48])\n"
            "middle = add(x, self_attn.o_proj)\n"
            "post_attention_layernorm, post_attention_layernorm.1 = "
            "rms_norm(middle; post_attention_layernorm.weight[48])\n"
            "mlp.gate_up_proj = linear(post_attention_layernorm; mlp.gate_up_proj.weight[144,48])\n"
            "swiglu = swiglu(mlp.gate_up_proj)\n"
            "mlp.down_proj = linear(swiglu; mlp.down_proj.weight[48,72])\n"
            "y = add(middle, mlp.down_proj)\n");
}

TEST(Relatives, Olmo2NormsWhatItAdds) {
  EXPECT_EQ(layer_ops("olmo2"),
            "self_attn.q_proj = linear(x; self_attn.q_proj.weight[48,48])\n"
            "self_attn.q_norm, self_attn.q_norm.1 = rms_norm(self_attn.q_proj; self_attn.q_norm.weight[48])\n"
            "q = rope(self_attn.q_norm)\n"
            "self_attn.k_proj = linear(x; self_attn.k_proj.weight[24,48])\n"
            "self_attn.k_norm, self_attn.k_norm.1 = rms_norm(self_attn.k_proj; self_attn.k_norm.weight[24])\n"
            "k = rope(self_attn.k_norm)\n"
            "self_attn.v_proj = linear(x; self_attn.v_proj.weight[24,48])\n"
            "attn, attn.1 = attention(q, k, self_attn.v_proj)\n"
            "self_attn.o_proj = linear(attn; self_attn.o_proj.weight[48,48])\n"
            "post_attention_layernorm, post_attention_layernorm.1 = "
            "rms_norm(self_attn.o_proj; post_attention_layernorm.weight[48])\n"
            "middle = add(x, post_attention_layernorm)\n"
            "mlp.gate_proj = linear(middle; mlp.gate_proj.weight[72,48])\n"
            "mlp.up_proj = linear(middle; mlp.up_proj.weight[72,48])\n"
            "swiglu = swiglu(mlp.gate_proj, mlp.up_proj)\n"
            "mlp.down_proj = linear(swiglu; mlp.down_proj.weight[48,72])\n"
            "post_feedforward_layernorm, post_feedforward_layernorm.1 = "
            "rms_norm(mlp.down_proj; post_feedforward_layernorm.weight[48])\n"
            "y = add(middle, post_feedforward_layernorm)\n");
}

// The attributes of the segment's first op of that kind.
const OpAttributes& attributes_of(const Model& model, uint32_t segment, OpKind kind) {
  const std::vector<Op>& ops = model.segments[segment].ops;
  return std::ranges::find(ops, kind, &Op::kind)->attributes;
}

TEST(Relatives, Gemma2SaysAllInAttributes) {
  const Model model = build("gemma2:layers=4,width=48,heads=4,kv_heads=2,ffn=72,vocab=96,context=16");
  ASSERT_EQ(model.segments.size(), 4u);  // the embedding, two types of layers, the head
  EXPECT_EQ(attributes_of(model, 0, OpKind::embedding).scale, 6.9375);  // sqrt(48) = 6.928, in bf16
  const Model exact =
      build("gemma2:layers=4,width=48,heads=4,kv_heads=2,ffn=72,vocab=96,context=16", DType::f32);
  EXPECT_EQ(attributes_of(exact, 0, OpKind::embedding).scale, static_cast<double>(std::sqrt(48.0f)));
  for (const uint32_t block : {1u, 2u}) {
    const OpAttributes& scores = attributes_of(model, block, OpKind::attention);
    EXPECT_EQ(scores.window, block == 1 ? 4096 : 0);
    EXPECT_EQ(scores.soft_cap, 50);
    EXPECT_EQ(scores.scale, 1.0 / 16);
    EXPECT_TRUE(attributes_of(model, block, OpKind::swiglu).gelu_gate);
    EXPECT_TRUE(attributes_of(model, block, OpKind::rms_norm).weight_from_one);
  }
  EXPECT_EQ(attributes_of(model, 3, OpKind::linear_cross_entropy).soft_cap, 30);
  for (size_t layer = 0; layer < 4; ++layer)
    EXPECT_EQ(model.layers[layer + 1].segments[0].segment, layer % 2 == 0 ? 1u : 2u);
}

TEST(Relatives, LayersOfTypesShareTemplates) {
  const Model gemma = build("gemma-3-1b:layers=12,width=64,heads=4,kv_heads=1,vocab=96,context=16");
  ASSERT_EQ(gemma.segments.size(), 4u);
  for (size_t layer = 0; layer < 12; ++layer)
    EXPECT_EQ(gemma.layers[layer + 1].segments[0].segment, layer % 6 == 5 ? 2u : 1u) << layer;
  EXPECT_EQ(attributes_of(gemma, 1, OpKind::rope).frequencies[1], std::pow(1e4, -2.0 / 16));
  EXPECT_EQ(attributes_of(gemma, 2, OpKind::rope).frequencies[1], std::pow(1e6, -2.0 / 16));
  const Model smol = build("smollm3:layers=4,width=64,heads=4,kv_heads=2,vocab=96,context=16");
  ASSERT_EQ(smol.segments.size(), 4u);
  EXPECT_EQ(std::ranges::count(smol.segments[1].ops, OpKind::rope, &Op::kind), 2);
  EXPECT_EQ(std::ranges::count(smol.segments[2].ops, OpKind::rope, &Op::kind), 0);
  EXPECT_EQ(smol.layers[4].segments[0].segment, 2u);
}

TEST(Relatives, GraniteMultiplies) {
  const Model model = build(std::string("granite") + kSizes);
  EXPECT_EQ(attributes_of(model, 0, OpKind::embedding).scale, 12);
  EXPECT_EQ(attributes_of(model, 1, OpKind::attention).scale, 0.015625);
  const std::vector<Op>& ops = model.segments[1].ops;
  std::vector<double> scales;
  for (const Op& op : ops)
    if (op.kind == OpKind::linear) scales.push_back(op.attributes.scale);
  EXPECT_EQ(scales, (std::vector<double>{0, 0, 0, 0.22, 0, 0, 0.22}));  // o_proj and down_proj
  EXPECT_EQ(attributes_of(model, 2, OpKind::linear_cross_entropy).scale, 1.0 / 8);
}

std::string written(const std::string& name) { return config_to_json(config_from_name(name), DType::bf16); }

void expect_parts(const std::string& name, std::initializer_list<const char*> parts) {
  const std::string text = written(name);
  for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
}

TEST(Relatives, WriteWhatTransformersLoads) {
  expect_parts("qwen2.5-7b", {"\"Qwen2ForCausalLM\"", "\"use_sliding_window\": false"});
  expect_parts("mistral-7b", {"\"sliding_window\": 4096"});
  expect_parts("mistral-nemo", {"\"sliding_window\": null", "\"head_dim\": 128"});
  expect_parts("gemma-2-27b", {"\"query_pre_attn_scalar\": 144", "\"attn_logit_softcapping\": 50.0",
                               "\"hidden_activation\": \"gelu_pytorch_tanh\"", "\"sliding_attention\""});
  expect_parts("gemma-3-1b", {"\"rope_local_base_freq\": 10000.0", "\"rope_theta\": 1000000.0",
                              "\"final_logit_softcapping\": null"});
  expect_parts("phi-4", {"\"original_max_position_embeddings\": 16384", "\"sliding_window\": null"});
  expect_parts("olmo-3-7b", {"\"rope_type\": \"yarn\"", "\"attention_factor\": 1.2079441541679836"});
  expect_parts("smollm3-3b", {"\"no_rope_layers\": ["});
  expect_parts("granite-3-2b", {"\"logits_scaling\": 8.0", "\"residual_multiplier\": 0.22"});
}

TEST(Relatives, OtherMathematicsIsRefused) {
  const auto bad = [](const std::string& name, const std::string& member, const std::string& sentence) {
    expect_bad_file(with(written(name), member), sentence);
  };
  bad("qwen3-0.6b", "\"attn_logit_softcapping\": 50.0",
      "attn_logit_softcapping is 50.0, which is not supported.");
  bad("qwen2.5-7b", "\"partial_rotary_factor\": 0.5", "partial_rotary_factor is 0.5, only 1 is supported.");
  bad("qwen2.5-7b", "\"layer_types\": [\"linear_attention\"]",
      "layer_types \"linear_attention\" is not supported");
  bad("mistral-nemo", "\"layer_types\": [\"sliding_attention\"]", "layer_types \"sliding_attention\"");
  bad("gemma-2b", "\"use_bidirectional_attention\": true", "use_bidirectional_attention is true");
  bad("gemma-2b", "\"final_logit_softcapping\": 30.0", "final_logit_softcapping is 30.0");
  bad("olmo-2-1b", "\"clip_qkv\": 8.0", "clip_qkv is 8.0");
  bad("granite-3-2b", "\"num_local_experts\": 8", "num_local_experts is 8");
  expect_bad_file(replaced(written("granite-3-2b"), "\"attention_bias\": false", "\"attention_bias\": true"),
                  "attention_bias is true, which is not supported.");
  expect_bad_file(replaced(written("granite-3-2b"), "\"logits_scaling\": 8.0", "\"logits_scaling\": 0"),
                  "logits_scaling is not positive.");
  expect_bad_file(
      replaced(written("smollm3-3b"), "\"use_sliding_window\": false", "\"use_sliding_window\": true"),
      "use_sliding_window is true");
  expect_bad_file(replaced(written("smollm3-3b"), "\"num_hidden_layers\": 36", "\"num_hidden_layers\": 35"),
                  "no_rope_layers needs a number for each layer.");
  expect_bad_file(replaced(written("gemma-2-2b"), "\"num_hidden_layers\": 26", "\"num_hidden_layers\": 25"),
                  "layer_types has 26 entries for 25 layers.");
  expect_bad_file(replaced(written("phi-4"), "\"silu\"", "\"gelu\""), "hidden_act \"gelu\" is not supported");
}

// For these keys, absence means something else than null.
TEST(Relatives, AbsentKeysHaveTheDefaultsOfTheirClasses) {
  const auto without = [](const std::string& name, const std::string& key) {
    return config_from_json(replaced(written(name), "\"" + key + "\"", "\"other\""), "f");
  };
  EXPECT_EQ(without("mistral-nemo", "sliding_window").window, 4096);
  EXPECT_EQ(without("gemma-2-2b", "attn_logit_softcapping").attention_cap, 50);
  EXPECT_EQ(without("gemma-2-2b", "final_logit_softcapping").logits_cap, 30);
  EXPECT_EQ(without("gemma-3-1b", "attn_logit_softcapping").attention_cap, 0);
  EXPECT_EQ(without("gemma-3-1b", "rope_local_base_freq").sliding_rope_theta, 10000);
  EXPECT_EQ(without("gemma-3-1b", "rope_theta").rope_theta, 1000000);
  EXPECT_EQ(without("smollm3-3b", "rope_theta").rope_theta, 2000000);
  EXPECT_EQ(without("qwen3-8b", "head_dim").head_size, 128);
  EXPECT_TRUE(without("gemma-2b", "tie_word_embeddings").tied);
  EXPECT_EQ(without("granite-3-2b", "attention_multiplier").attention_scale, 1);
  std::string factors = "1";
  for (int i = 1; i < 64; ++i) factors += ", 1";
  const std::string longrope = replaced(written("phi-4"), "\"rope_scaling\": null",
                                        "\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [" +
                                            factors + "], \"long_factor\": [" + factors + "]}");
  const auto original = [](const std::string& text) {
    return config_from_json(text, "f").rope_scaling.original_context;
  };
  EXPECT_EQ(original(longrope), 16384);
  EXPECT_EQ(original(replaced(longrope, "\"original_max_position_embeddings\"", "\"other\"")), 4096);
}

TEST(Relatives, LateLayersOfQwenMaySlide) {
  const std::string text =
      replaced(written("qwen2.5-0.5b"), "\"use_sliding_window\": false",
               "\"use_sliding_window\": true, \"sliding_window\": 99, \"max_window_layers\": 20");
  const ModelConfig c = config_from_json(text, "f");
  EXPECT_EQ(c.window, 99);
  for (int64_t i = 0; i < 24; ++i)
    EXPECT_EQ(layer_type(c, i), i < 20 ? LayerType::full : LayerType::sliding) << i;
  expect_equal(config_from_json(config_to_json(c, DType::bf16), "written"), c);
  const ModelConfig none =
      config_from_json(replaced(text, "\"sliding_window\": 99", "\"sliding_window\": null"), "f");
  EXPECT_EQ(none.window, 0);
  EXPECT_EQ(layer_type(none, 23), LayerType::full);
}

}  // namespace
}  // namespace sluice
