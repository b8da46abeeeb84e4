// Llama: RMS norm, rotary positions, grouped-query attention, SwiGLU. Touvron et al., "LLaMA" (2023) and
// "Llama 2" (2023); shapes as published in the models' config.json files.
#include <nlohmann/json.hpp>

#include "models/families/rotary.h"

namespace sluice {
namespace {

// Llama 2
ModelConfig second(const RotarySizes& sizes) {
  ModelConfig c = rotary_config(sizes);
  c.vocabulary = 32000;
  c.context = 4096;
  c.rope_theta = 10000;
  c.special_tokens = {{"bos_token_id", "1"}, {"eos_token_id", "2"}};
  return c;
}

// Llama 3
ModelConfig third(const RotarySizes& sizes) {
  ModelConfig c = rotary_config(sizes);
  c.vocabulary = 128256;
  c.context = 8192;
  c.rope_theta = 500000;
  c.special_tokens = {{"bos_token_id", "128000"}, {"eos_token_id", "128001"}};
  return c;
}

// Llama 3.2
ModelConfig third_small(const RotarySizes& sizes) {
  ModelConfig c = third(sizes);
  c.context = 131072;
  c.tied = true;
  c.rope_scaling = {.factor = 32, .low = 1, .high = 4, .original_context = 8192};
  return c;
}

std::vector<Preset> presets() {
  return {{"llama-1b", third_small({16, 2048, 32, 8, 8192}), 1'235'814'400},
          {"llama-3b", third_small({28, 3072, 24, 8, 8192}), 3'212'749'824},
          {"llama-7b", second({32, 4096, 32, 32, 11008}), 6'738'415'616},
          {"llama-8b", third({32, 4096, 32, 8, 14336}), 8'030'261'248},
          {"llama-13b", second({40, 5120, 40, 40, 13824}), 13'015'864'320},
          {"llama-70b", third({80, 8192, 64, 8, 28672}), 70'553'706'496}};
}

// 8/3 of the width rounded up to a multiple of 256 (Touvron et al., "LLaMA", section 2.2).
int64_t ffn(int64_t width) { return (8 * width / 3 + 255) / 256 * 256; }

void read(const ConfigReader& file, ModelConfig& c) {
  read_rotary_sizes(file, c);
  c.attention_bias = file.flag_or("attention_bias", false);
  c.mlp_bias = file.flag_or("mlp_bias", false);
  file.rope(c.rope_theta, c.rope_scaling);
  // Keys of models that have Llama's tensor names but compute something else.
  for (const char* scale : {"embedding_multiplier", "residual_multiplier", "attention_multiplier",
                            "logits_scaling", "logit_scale"})
    file.require_number(scale, 1);
  for (const char* key : {"sliding_window", "clip_qkv", "attn_logit_softcapping", "final_logit_softcapping",
                          "num_local_experts", "num_experts"})
    file.reject_present(key);
  file.require_texts("layer_types", "full_attention");
  for (const char* flag : {"use_qk_norm", "qk_norm", "parallel_attn"}) file.reject_flag(flag);
}

void write(const ModelConfig& c, nlohmann::ordered_json& file) {
  write_rotary_sizes(c, file);
  file["attention_bias"] = c.attention_bias;
  file["mlp_bias"] = c.mlp_bias;
  file["attention_dropout"] = 0.0;
  write_rope(c, file);
}

void build(const ModelConfig& c, Model& model) {
  build_rotary(c, {.qkv = c.attention_bias, .output = c.attention_bias, .mlp = c.mlp_bias}, model);
}

}  // namespace

extern const Family kLlama = {.name = "llama",
                              .title = "Llama",
                              .architecture = "LlamaForCausalLM",
                              .presets = presets,
                              .plain_preset = "llama-7b",
                              .keys = kRotarySizeKeys,
                              .ffn = ffn,
                              .read = read,
                              .write = write,
                              .tensor_prefix = "",
                              .is_buffer = is_rotary_buffer,
                              .build = build};

}  // namespace sluice
