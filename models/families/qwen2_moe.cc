// Qwen2-MoE: Qwen2 with experts, and one beside them that all tokens use. Yang et al., "Qwen2 Technical
// Report" (2024); shapes as published in the models' config.json files.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "models/families/experts_config.h"
#include "models/families/rotary.h"

namespace sluice {
namespace {

ModelConfig preset(const RotarySizes& sizes, int64_t expert_ffn, int64_t shared_ffn, int64_t experts,
                   int64_t top) {
  ModelConfig c = rotary_config(sizes);
  c.vocabulary = 151936;
  c.context = 32768;
  c.epsilon = 1e-6;
  c.rope_theta = 1000000;
  c.experts = experts;
  c.experts_per_token = top;
  c.expert_ffn = expert_ffn;
  c.shared_expert_ffn = shared_ffn;
  c.router_loss = 0.001;
  c.special_tokens = {{"bos_token_id", "151643"}, {"eos_token_id", "151643"}};
  return c;
}

constexpr auto kKeys =
    with_keys(kExpertSizeKeys, {{"shared_ffn", &ModelConfig::shared_expert_ffn, kFfnMax,
                                 "columns of the expert of all tokens; follow a new width"}});

std::vector<Preset> presets() {
  return {{"qwen1.5-moe-a2.7b", preset({24, 2048, 16, 16, 5632}, 1408, 5632, 60, 4), 14'315'784'192},
          {"qwen2-57b-a14b", preset({28, 3584, 28, 4, 18944}, 2560, 20480, 64, 8), 57'408'658'944}};
}

// Sliding layers are refused: unlike in Qwen2, every other layer up to max_window_layers would slide.
void read(const ConfigReader& file, ModelConfig& c) {
  read_rotary_sizes(file, {.kv_heads = 16}, c);
  if (!file.flag_or("qkv_bias", true))
    file.complain("qkv_bias is false, which is not supported.", "Use a model with biases of q, k and v.");
  read_experts(file, "num_experts", 4, 0.001, c);
  read_qwen_experts(file, 1408, c);
  c.shared_expert_ffn = file.integer_or("shared_expert_intermediate_size", kFfnMax, 5632);
  read_rope(file, {}, c);
  file.reject_flag("use_sliding_window");
  file.require_text("hidden_act", {"silu"});
  reject_foreign_keys(file, {"sliding_window", "num_experts", "num_local_experts"});
}

void write(const ModelConfig& c, nlohmann::ordered_json& file) {
  write_rotary_sizes(c, file);
  write_experts(c, "num_experts", file);
  write_qwen_experts(c, file);
  file["shared_expert_intermediate_size"] = c.shared_expert_ffn;
  file["qkv_bias"] = true;
  file["use_sliding_window"] = false;
  write_rope(c, {}, file);
}

void build(const ModelConfig& c, Model& model) { build_rotary(c, {.qkv_bias = true}, model); }

}  // namespace

extern const Family kQwen2Moe = {.name = "qwen2_moe",
                                 .title = "Qwen2-MoE",
                                 .architecture = "Qwen2MoeForCausalLM",
                                 .presets = presets,
                                 .plain_preset = "qwen1.5-moe-a2.7b",
                                 .keys = kKeys,
                                 .ffn = gated_ffn,
                                 .read = read,
                                 .write = write,
                                 .experts = "mlp.experts",
                                 .stacked = kStackedExperts,
                                 .is_buffer = is_rotary_buffer,
                                 .build = build};

}  // namespace sluice
