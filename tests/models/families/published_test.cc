// config.json files of Llama's relatives as published, in the spellings of their time, against the presets.
#include <gtest/gtest.h>

#include "tests/support/family_support.h"

namespace sluice {
namespace {

struct Published {
  const char* preset;
  const char* json;
};

// Keys that nobody reads are left out.
const Published kPublished[] = {
    {"qwen2.5-7b",
     R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
      "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02,
      "intermediate_size": 18944, "max_position_embeddings": 131072, "max_window_layers": 28,
      "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
      "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": false,
      "torch_dtype": "bfloat16", "use_cache": true, "use_mrope": false, "use_sliding_window": false,
      "vocab_size": 152064})"},
    {"qwen3-0.6b",
     R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
      "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
      "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
      "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
      "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
      "use_sliding_window": false, "vocab_size": 151936})"},
    {"mistral-7b", R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
      "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
      "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
      "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
      "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 32000})"},
    {"mistral-nemo", R"({"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
      "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
      "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072,
      "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
      "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false,
      "vocab_size": 131072})"},
    {"gemma-2b", R"({"architectures": ["GemmaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "bos_token_id": 2, "eos_token_id": 1, "head_dim": 256, "hidden_act": "gelu", "hidden_size": 2048,
      "initializer_range": 0.02, "intermediate_size": 16384, "max_position_embeddings": 8192,
      "model_type": "gemma", "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1,
      "pad_token_id": 0, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000.0,
      "vocab_size": 256000})"},
    {"gemma-2-2b", R"({"architectures": ["Gemma2ForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation":
      "hybrid", "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act":
      "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304,
      "initializer_range": 0.02, "intermediate_size": 9216, "max_position_embeddings": 8192,
      "model_type": "gemma2", "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4,
      "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
      "sliding_window": 4096, "vocab_size": 256000})"},
    {"gemma-3-1b", R"({"architectures": ["Gemma3ForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "attn_logit_softcapping": null, "bos_token_id": 2, "eos_token_id": 1,
      "final_logit_softcapping": null, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
      "hidden_size": 1152, "initializer_range": 0.02, "intermediate_size": 6912,
      "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
      "num_hidden_layers": 26, "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256,
      "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000,
      "sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 262144})"},
    {"phi-4", R"({"architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "bos_token_id": 100257, "embd_pdrop": 0.0, "eos_token_id": 100265, "hidden_act": "silu",
      "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 17920,
      "max_position_embeddings": 16384, "model_type": "phi3", "num_attention_heads": 40,
      "num_hidden_layers": 40, "num_key_value_heads": 10, "original_max_position_embeddings": 16384,
      "pad_token_id": 100349, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": null,
      "rope_theta": 250000, "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 100352})"},
    {"olmo-2-7b",
     R"({"architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
      "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "olmo2",
      "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 100277,
      "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 500000, "tie_word_embeddings": false,
      "vocab_size": 100352})"},
    {"olmo-3-7b",
     R"({"architectures": ["Olmo3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
      "intermediate_size": 11008, "max_position_embeddings": 65536, "model_type": "olmo3",
      "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 100277,
      "rms_norm_eps": 1e-06, "rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32.0,
      "beta_slow": 1.0, "factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "yarn"},
      "rope_theta": 500000, "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 100278})"},
    {"smollm3-3b", R"({"architectures": ["SmolLM3ForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128012, "hidden_act": "silu",
      "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 11008, "max_window_layers": 28,
      "max_position_embeddings": 65536, "mlp_bias": false, "model_type": "smollm3",
      "no_rope_layer_interval": 4, "num_attention_heads": 16, "num_hidden_layers": 36,
      "num_key_value_heads": 4, "pad_token_id": 128004, "pretraining_tp": 2, "rms_norm_eps": 1e-06,
      "rope_scaling": null, "rope_theta": 5000000.0, "sliding_window": null, "use_sliding_window": false,
      "vocab_size": 128256})"},
    {"granite-3-2b", R"({"architectures": ["GraniteForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.1, "attention_multiplier": 0.015625, "bos_token_id": 0,
      "embedding_multiplier": 12.0, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 2048,
      "initializer_range": 0.02, "intermediate_size": 8192, "logits_scaling": 8.0,
      "max_position_embeddings": 4096, "mlp_bias": false, "model_type": "granite", "num_attention_heads": 32,
      "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0, "residual_multiplier": 0.22,
      "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0, "tie_word_embeddings": true,
      "vocab_size": 49155})"},
};

TEST(PublishedConfigs, AreThePresets) {
  for (const auto& [preset, json] : kPublished) {
    SCOPED_TRACE(preset);
    expect_equal(config_from_json(json, preset), config_from_name(preset));
  }
}

// transformers 5 saves them so: names of types of layers, and rope_parameters.
TEST(PublishedConfigs, AreReadInTheNewerForm) {
  std::string qwen = kPublished[1].json;
  qwen = replaced(qwen, R"("rope_scaling": null, "rope_theta": 1000000)",
                  R"("rope_parameters": {"rope_theta": 1000000, "rope_type": "default"})");
  std::string types;
  for (int i = 0; i < 28; ++i) types += std::string(i == 0 ? "" : ", ") + "\"full_attention\"";
  qwen = with(qwen, "\"layer_types\": [" + types + "]");
  expect_equal(config_from_json(qwen, "f"), config_from_name("qwen3-0.6b"));

  std::string gemma = kPublished[6].json;
  gemma = replaced(gemma, R"("rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000)",
                   R"("rope_parameters": {
                        "full_attention": {"rope_theta": 1000000, "rope_type": "default"},
                        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}})");
  gemma = replaced(gemma, "\"sliding_window_pattern\": 6,", "\"_sliding_window_pattern\": 6,");
  types.clear();
  for (int i = 0; i < 26; ++i)
    types += fmt::format("{}\"{}_attention\"", i == 0 ? "" : ", ", (i + 1) % 6 == 0 ? "full" : "sliding");
  gemma = with(gemma, "\"layer_types\": [" + types + "]");
  expect_equal(config_from_json(gemma, "f"), config_from_name("gemma-3-1b"));
}

// Gemma 3 from 4B on: pictures beside text, and a text_config that gives only what is not the default.
TEST(PublishedConfigs, TheTextPartOfALargerModel) {
  const std::string file = R"({"architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255999, "eos_token_id": [1, 106], "image_token_index": 262144,
    "initializer_range": 0.02, "mm_tokens_per_image": 256, "model_type": "gemma3",
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                    "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                    "sliding_window": 1024},
    "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152}})";
  const ModelConfig c = config_from_json(file, "config.json");
  EXPECT_EQ(c.family, "gemma3_text");
  EXPECT_EQ(c.heads, 8);
  EXPECT_EQ(c.head_size, 256);
  EXPECT_EQ(c.context, 131072);
  EXPECT_EQ(c.window, 1024);
  EXPECT_EQ(c.rope_theta, 1e6);
  EXPECT_EQ(c.rope_scaling.factor, 8);
  EXPECT_EQ(c.sliding_rope_theta, 1e4);
  EXPECT_TRUE(c.sliding_rope_scaling == RopeScaling{});
  EXPECT_EQ(c.special_tokens.at("eos_token_id"), "[1,106]");
  EXPECT_EQ(parameter_count(build_model(c, DType::bf16, 1, 8)), 3'880'263'168u);
  ASSERT_EQ(c.notes.size(), 1u);
  EXPECT_EQ(c.notes[0], "config.json: of this gemma3 model, only the text part is read.");
  const ModelConfig again = config_from_json(config_to_json(c, DType::bf16), "written");
  expect_equal(again, c);
  EXPECT_TRUE(again.notes.empty());
  expect_bad_file(R"({"model_type": "gemma3"})", "text_config is missing.");
}

TEST(PublishedConfigs, TensorsOfTheLargerModel) {
  const Family* family = find_family("gemma3_text");
  for (const char* name : {"vision_tower.vision_model.embeddings.patch_embedding.weight",
                           "multi_modal_projector.mm_soft_emb_norm.weight",
                           "model.vision_tower.vision_model.post_layernorm.bias"})
    EXPECT_TRUE(family->is_buffer(name)) << name;
}

}  // namespace
}  // namespace sluice
