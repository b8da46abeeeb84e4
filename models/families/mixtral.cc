// Mixtral: Mistral with experts. Jiang et al., "Mixtral of Experts" (2024); shapes as published in the
// models' config.json files.
#include <nlohmann/json.hpp>

#include "models/families/experts_config.h"
#include "models/families/rotary.h"

namespace sluice {
namespace {

constexpr RopeKeys kRope{.theta = 1000000};

ModelConfig preset(const RotarySizes& sizes, int64_t vocabulary, int64_t context) {
  ModelConfig c = rotary_config(sizes);
  c.vocabulary = vocabulary;
  c.context = context;
  c.rope_theta = kRope.theta;
  c.experts = 8;
  c.experts_per_token = 2;
  c.expert_ffn = c.ffn;
  c.normalized_experts = true;
  c.router_loss = 0.02;
  c.special_tokens = {{"bos_token_id", "1"}, {"eos_token_id", "2"}};
  return c;
}

int64_t ffn(int64_t width) { return 7 * width / 2; }

std::vector<Preset> presets() {
  return {{"mixtral-8x7b", preset({32, 4096, 32, 8, 14336}, 32000, 32768), 46'702'792'704},
          {"mixtral-8x22b", preset({56, 6144, 48, 8, 16384}, 32000, 65536), 140'620'634'112}};
}

void read(const ConfigReader& file, ModelConfig& c) {
  read_rotary_sizes(file, {.kv_heads = 8, .epsilon = 1e-5}, c);
  c.expert_ffn = c.ffn;
  c.normalized_experts = true;
  read_experts(file, "num_local_experts", 2, 0.001, c);
  file.require_number("router_jitter_noise", 0);
  read_rope(file, kRope, c);
  read_window(file, 0, c);
  file.require_text("hidden_act", {"silu"});
  reject_foreign_keys(file, {"sliding_window", "num_local_experts"});
}

void write(const ModelConfig& c, nlohmann::ordered_json& file) {
  write_rotary_sizes(c, file);
  write_experts(c, "num_local_experts", file);
  file["intermediate_size"] = c.expert_ffn;
  write_window(c, file);
  write_rope(c, kRope, file);
}

void build(const ModelConfig& c, Model& model) {
  build_rotary(
      c, {.experts = {.part = "block_sparse_moe", .router = "gate", .gate = "w1", .up = "w3", .down = "w2"}},
      model);
}

constexpr Stacked kStacked[] = {{"mlp.experts.gate_up_proj", "w1.weight", "w3.weight"},
                                {"mlp.experts.down_proj", "w2.weight"}};

}  // namespace

extern const Family kMixtral = {.name = "mixtral",
                                .title = "Mixtral",
                                .architecture = "MixtralForCausalLM",
                                .presets = presets,
                                .plain_preset = "mixtral-8x7b",
                                .keys = kExpertSizeKeys,
                                .ffn = ffn,
                                .read = read,
                                .write = write,
                                .experts = "block_sparse_moe.experts",
                                .stacked = kStacked,
                                .peft_joins = true,
                                .alias = {"mlp.gate.weight", "block_sparse_moe.gate.weight"},
                                .is_buffer = is_rotary_buffer,
                                .build = build};

}  // namespace sluice
