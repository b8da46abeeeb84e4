// Granite 3: Llama with factors of embeddings, of what layers add to the residual stream, of scores, and of
// logits. Granite Team, "Granite 3.0 Language Models" (2024); shapes as published in the models' config.json
// files.
#include <nlohmann/json.hpp>

#include "models/families/rotary.h"

namespace sluice {
namespace {

// Granite 3.0
ModelConfig third(const RotarySizes& sizes, double logits_scaling, double attention_multiplier) {
  ModelConfig c = rotary_config(sizes);
  c.vocabulary = 49155;
  c.context = 4096;
  c.rope_theta = 10000;
  c.embedding_scale = 12;
  c.residual_scale = 0.22;
  c.attention_scale = attention_multiplier;
  c.logits_divisor = logits_scaling;
  c.tied = true;
  c.special_tokens = {{"bos_token_id", "0"}, {"eos_token_id", "0"}, {"pad_token_id", "0"}};
  return c;
}

int64_t ffn(int64_t width) { return 4 * width; }

constexpr std::pair<const char*, double ModelConfig::*> kFactors[] = {
    {"embedding_multiplier", &ModelConfig::embedding_scale},
    {"residual_multiplier", &ModelConfig::residual_scale},
    {"attention_multiplier", &ModelConfig::attention_scale},
    {"logits_scaling", &ModelConfig::logits_divisor}};

std::vector<Preset> presets() {
  return {{"granite-3-2b", third({40, 2048, 32, 8, 8192}, 8, 0.015625), 2'533'531'648},
          {"granite-3-8b", third({40, 4096, 32, 8, 12800}, 16, 0.0078125), 8'170'848'256}};
}

void read(const ConfigReader& file, ModelConfig& c) {
  read_rotary_sizes(file, {}, c);
  for (const auto& [key, factor] : kFactors) {
    c.*factor = file.number_or(key, 1);
    if (c.*factor <= 0) file.complain(std::string(key) + " is not positive.", "Correct the file.");
  }
  read_rope(file, {}, c);
  file.reject_flag("attention_bias");
  file.reject_flag("mlp_bias");
  file.require_text("hidden_act", {"silu"});
  reject_foreign_keys(
      file, {"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"});
}

void write(const ModelConfig& c, nlohmann::ordered_json& file) {
  write_rotary_sizes(c, file);
  file["attention_bias"] = file["mlp_bias"] = false;
  for (const auto& [key, factor] : kFactors) file[key] = c.*factor;
  write_rope(c, {}, file);
}

void build(const ModelConfig& c, Model& model) { build_rotary(c, {}, model); }

}  // namespace

extern const Family kGranite = {.name = "granite",
                                .title = "Granite",
                                .architecture = "GraniteForCausalLM",
                                .presets = presets,
                                .plain_preset = "granite-3-2b",
                                .keys = kRotarySizeKeys,
                                .ffn = ffn,
                                .read = read,
                                .write = write,
                                .is_buffer = is_rotary_buffer,
                                .build = build};

}  // namespace sluice
