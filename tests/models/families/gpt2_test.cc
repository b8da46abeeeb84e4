// GPT-2's config.json as published, what it refuses, its sizes and its ops.
#include <gtest/gtest.h>

#include "tests/support/family_support.h"

namespace sluice {
namespace {

TEST(Gpt2Config, AsPublished) {
  const ModelConfig config = config_from_json(kGpt2Json, "config.json");
  expect_equal(config, config_from_name("gpt2"));
  ASSERT_EQ(config.notes.size(), 1u);
  EXPECT_EQ(config.notes[0],
            "config.json: dropout is not applied (resid_pdrop 0.1, embd_pdrop 0.1, attn_pdrop 0.1).");
}

TEST(Gpt2Config, WritesWhatTransformersLoads) {
  const std::string gpt2 = config_to_json(config_from_name("gpt2"), DType::bf16);
  for (const char* part :
       {"\"architectures\": [\n    \"GPT2LMHeadModel\"\n  ]", "\"model_type\": \"gpt2\"", "\"n_embd\": 768",
        "\"torch_dtype\": \"bfloat16\"", "\"activation_function\": \"gelu_new\"", "\"attn_pdrop\": 0.0"})
    EXPECT_NE(gpt2.find(part), std::string::npos) << part << " in " << gpt2;
}

TEST(Gpt2Config, OtherMathematicsIsRefused) {
  for (const char* member : {"\"scale_attn_by_inverse_layer_idx\": true", "\"add_cross_attention\": true",
                             "\"scale_attn_weights\": false", "\"quantization_config\": {}"})
    expect_bad_file(with(kGpt2Json, member), "not supported");
  expect_bad_file(replaced(kGpt2Json, "gelu_new", "relu"), "activation_function \"relu\" is not supported");
  EXPECT_NO_THROW(config_from_json(replaced(kGpt2Json, "gelu_new", "gelu_pytorch_tanh"), "f"));
  // This key changes no more than roundings.
  EXPECT_NO_THROW(config_from_json(with(kGpt2Json, "\"reorder_and_upcast_attn\": true"), "f"));
}

TEST(Gpt2Config, InlineDescription) {
  const ModelConfig gpt2 = config_from_name("gpt2:layers=6,width=384,heads=6,vocab=256,context=256");
  EXPECT_EQ(gpt2.layers, 6);
  EXPECT_EQ(gpt2.head_size, 64);
  EXPECT_EQ(gpt2.kv_heads, 6);
  EXPECT_EQ(gpt2.ffn, 1536);
  EXPECT_TRUE(gpt2.tied);
  EXPECT_EQ(gpt2.special_tokens.at("bos_token_id"), "null");
  // wte 98304, wpe 98304, six layers of 1774464, ln_f 768
  EXPECT_EQ(parameter_count(build_model(gpt2, DType::bf16, 1, 256)), 10844160u);
}

TEST(Gpt2Model, Ops) {
  const Model model = build("gpt2:layers=2,width=64,heads=4,vocab=96,context=16");
  ASSERT_EQ(model.layers.size(), 4u);
  EXPECT_EQ(model.segments.size(), 3u);  // one template for all layers
  EXPECT_EQ(ops_text(model, model.layers[0].segments[0]),
            "x = embedding(tokens; wte.weight[96,64], wpe.weight[16,64])\n");
  EXPECT_EQ(ops_text(model, model.layers[2].segments[0]),
            "ln_1, ln_1.1, ln_1.2 = layer_norm(x; h.1.ln_1.weight[64], h.1.ln_1.bias[64])\n"
            "attn.c_attn = linear(ln_1; h.1.attn.c_attn.weight[64,192], h.1.attn.c_attn.bias[192])\n"
            "attn, attn.1 = attention(attn.c_attn)\n"
            "attn.c_proj = linear(attn; h.1.attn.c_proj.weight[64,64], h.1.attn.c_proj.bias[64])\n"
            "middle = add(x, attn.c_proj)\n"
            "ln_2, ln_2.1, ln_2.2 = layer_norm(middle; h.1.ln_2.weight[64], h.1.ln_2.bias[64])\n"
            "mlp.c_fc = linear(ln_2; h.1.mlp.c_fc.weight[64,256], h.1.mlp.c_fc.bias[256])\n"
            "mlp.act = gelu(mlp.c_fc)\n"
            "mlp.c_proj = linear(mlp.act; h.1.mlp.c_proj.weight[256,64], h.1.mlp.c_proj.bias[64])\n"
            "y = add(middle, mlp.c_proj)\n");
  EXPECT_EQ(ops_text(model, model.layers[3].segments[0]),
            "ln_f, ln_f.1, ln_f.2 = layer_norm(x; ln_f.weight[64], ln_f.bias[64])\n"
            "loss = linear_cross_entropy(ln_f, labels; wte.weight[96,64])\n");
  EXPECT_TRUE(model.segments[2].loss);
}

TEST(Gpt2Model, MatricesThatWriteToTheResidualStream) {
  EXPECT_EQ(residual_matrices("gpt2"), (std::vector<std::string>{"attn.c_proj.weight", "mlp.c_proj.weight"}));
}

}  // namespace
}  // namespace sluice
