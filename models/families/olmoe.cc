// OLMoE: Llama with experts, a norm of all heads' q together, and one of all heads' k. Muennighoff et al.,
// "OLMoE: open mixture-of-experts language models" (2024); shapes as published in the model's config.json
// file.
#include <nlohmann/json.hpp>

#include "models/families/experts_config.h"
#include "models/families/rotary.h"

namespace sluice {
namespace {

std::vector<Preset> presets() {
  ModelConfig c = rotary_config({16, 2048, 16, 16, 1024});
  c.vocabulary = 50304;
  c.context = 4096;
  c.rope_theta = 10000;
  c.experts = 64;
  c.experts_per_token = 8;
  c.expert_ffn = 1024;
  c.router_loss = 0.01;
  c.special_tokens = {{"bos_token_id", "null"}, {"eos_token_id", "50279"}, {"pad_token_id", "1"}};
  return {{"olmoe-1b-7b", c, 6'919'161'856}};
}

void read(const ConfigReader& file, ModelConfig& c) {
  read_rotary_sizes(file, {.epsilon = 1e-5}, c);
  c.attention_bias = file.flag_or("attention_bias", false);
  c.expert_ffn = c.ffn;
  c.normalized_experts = file.flag_or("norm_topk_prob", false);
  read_experts(file, "num_experts", 8, 0.01, c);
  read_rope(file, {}, c);
  file.require_text("hidden_act", {"silu"});
  reject_foreign_keys(file, {"num_experts", "num_local_experts"});
}

void write(const ModelConfig& c, nlohmann::ordered_json& file) {
  write_rotary_sizes(c, file);
  file["attention_bias"] = c.attention_bias;
  file["intermediate_size"] = c.expert_ffn;
  file["norm_topk_prob"] = c.normalized_experts;
  write_experts(c, "num_experts", file);
  write_rope(c, {}, file);
}

void build(const ModelConfig& c, Model& model) {
  build_rotary(
      c, {.qkv_bias = c.attention_bias, .output_bias = c.attention_bias, .head_norm = HeadNorm::projection},
      model);
}

}  // namespace

extern const Family kOlmoe = {.name = "olmoe",
                              .title = "OLMoE",
                              .architecture = "OlmoeForCausalLM",
                              .presets = presets,
                              .plain_preset = "olmoe-1b-7b",
                              .keys = kExpertSizeKeys,
                              .ffn = gated_ffn,
                              .read = read,
                              .write = write,
                              .experts = "mlp.experts",
                              .stacked = kStackedExperts,
                              .peft_joins = true,
                              .is_buffer = is_rotary_buffer,
                              .build = build};

}  // namespace sluice
