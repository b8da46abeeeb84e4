// Qwen3-MoE: Qwen3 with experts. Yang et al., "Qwen3 Technical Report" (2025); shapes as published in the
// models' config.json files.
#include <nlohmann/json.hpp>

#include "models/families/experts_config.h"
#include "models/families/rotary.h"

namespace sluice {
namespace {

ModelConfig preset(const RotarySizes& sizes, int64_t expert_ffn) {
  ModelConfig c = rotary_config(sizes);
  c.vocabulary = 151936;
  c.context = 40960;
  c.head_size = 128;
  c.epsilon = 1e-6;
  c.rope_theta = 1000000;
  c.experts = 128;
  c.experts_per_token = 8;
  c.expert_ffn = expert_ffn;
  c.normalized_experts = true;
  c.router_loss = 0.001;
  c.special_tokens = {{"bos_token_id", "151643"}, {"eos_token_id", "151645"}};
  return c;
}

std::vector<Preset> presets() {
  return {{"qwen3-30b-a3b", preset({48, 2048, 32, 4, 6144}, 768), 30'532'122'624},
          {"qwen3-235b-a22b", preset({94, 4096, 64, 4, 12288}, 1536), 235'093'634'560}};
}

void read(const ConfigReader& file, ModelConfig& c) {
  read_rotary_sizes(file, {.kv_heads = 4}, c);
  c.attention_bias = file.flag_or("attention_bias", false);
  read_experts(file, "num_experts", 8, 0.001, c);
  read_qwen_experts(file, 768, c);
  read_rope(file, {}, c);
  if (file.flag_or("use_sliding_window", false)) read_window(file, 4096, c);
  file.require_texts("layer_types", {c.window > 0 ? "sliding_attention" : "full_attention"});
  file.require_text("hidden_act", {"silu"});
  reject_foreign_keys(file, {"sliding_window", "layer_types", "num_experts", "num_local_experts"});
}

void write(const ModelConfig& c, nlohmann::ordered_json& file) {
  write_rotary_sizes(c, file);
  file["attention_bias"] = c.attention_bias;
  write_experts(c, "num_experts", file);
  write_qwen_experts(c, file);
  file["use_sliding_window"] = c.window > 0;
  write_window(c, file);
  write_rope(c, {}, file);
}

void build(const ModelConfig& c, Model& model) {
  build_rotary(c,
               {.qkv_bias = c.attention_bias, .output_bias = c.attention_bias, .head_norm = HeadNorm::heads},
               model);
}

}  // namespace

extern const Family kQwen3Moe = {.name = "qwen3_moe",
                                 .title = "Qwen3-MoE",
                                 .architecture = "Qwen3MoeForCausalLM",
                                 .presets = presets,
                                 .plain_preset = "qwen3-30b-a3b",
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
