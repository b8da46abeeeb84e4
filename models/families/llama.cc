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

// Llama 3.1
ModelConfig third_long(const RotarySizes& sizes) {
  ModelConfig c = third(sizes);
  c.context = 131072;
  c.rope_scaling = {.type = RopeType::llama3, .factor = 8, .original_context = 8192};
  return c;
}

// Llama 3.2
ModelConfig third_small(const RotarySizes& sizes) {
  ModelConfig c = third_long(sizes);
  c.tied = true;
  c.rope_scaling.factor = 32;
  return c;
}

// TinyLlama (Zhang et al., 2024): Llama 2 with half its context.
ModelConfig tiny(const RotarySizes& sizes) {
  ModelConfig c = second(sizes);
  c.context = 2048;
  return c;
}

std::vector<Preset> presets() {
  constexpr RotarySizes k8b = {32, 4096, 32, 8, 14336}, k70b = {80, 8192, 64, 8, 28672};
  return {{"tinyllama", tiny({22, 2048, 32, 4, 5632}), 1'100'048'384},
          {"llama-1b", third_small({16, 2048, 32, 8, 8192}), 1'235'814'400, "llama-3.2-1b"},
          {"llama-3b", third_small({28, 3072, 24, 8, 8192}), 3'212'749'824, "llama-3.2-3b"},
          {"llama-7b", second({32, 4096, 32, 32, 11008}), 6'738'415'616, "llama-2-7b"},
          {"llama-8b", third(k8b), 8'030'261'248, "llama-3-8b"},
          {"llama-3.1-8b", third_long(k8b), 8'030'261'248},
          {"llama-13b", second({40, 5120, 40, 40, 13824}), 13'015'864'320, "llama-2-13b"},
          {"llama-2-70b", second(k70b), 68'976'648'192},
          {"llama-70b", third(k70b), 70'553'706'496, "llama-3-70b"},
          {"llama-3.1-70b", third_long(k70b), 70'553'706'496},
          {"llama-405b", third_long({126, 16384, 128, 8, 53248}), 405'853'388'800, "llama-3.1-405b"}};
}

void read(const ConfigReader& file, ModelConfig& c) {
  read_rotary_sizes(file, {}, c);
  c.attention_bias = file.flag_or("attention_bias", false);
  c.mlp_bias = file.flag_or("mlp_bias", false);
  read_rope(file, {}, c);
  file.require_text("hidden_act", {"silu"});
  reject_foreign_keys(file);
}

void write(const ModelConfig& c, nlohmann::ordered_json& file) {
  write_rotary_sizes(c, file);
  file["attention_bias"] = c.attention_bias;
  file["mlp_bias"] = c.mlp_bias;
  write_rope(c, {}, file);
}

void build(const ModelConfig& c, Model& model) {
  build_rotary(c, {.qkv_bias = c.attention_bias, .output_bias = c.attention_bias, .mlp_bias = c.mlp_bias},
               model);
}

}  // namespace

extern const Family kLlama = {.name = "llama",
                              .title = "Llama",
                              .architecture = "LlamaForCausalLM",
                              .presets = presets,
                              .plain_preset = "llama-7b",
                              .keys = kRotarySizeKeys,
                              .ffn = gated_ffn,
                              .read = read,
                              .write = write,
                              .is_buffer = is_rotary_buffer,
                              .build = build};

}  // namespace sluice
