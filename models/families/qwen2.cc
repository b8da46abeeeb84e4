// Qwen2 and Qwen2.5: Llama with biases of q, k and v, which the config does not mention. Yang et al., "Qwen2
// Technical Report" (2024); shapes as published in the models' config.json files.
#include <nlohmann/json.hpp>

#include "models/families/rotary.h"

namespace sluice {
namespace {

// Base models of Qwen2.5.
ModelConfig second(const RotarySizes& sizes, int64_t vocabulary, bool tied) {
  ModelConfig c = rotary_config(sizes);
  c.vocabulary = vocabulary;
  c.context = tied ? 32768 : 131072;
  c.epsilon = tied || sizes.width == 3584 ? 1e-6 : 1e-5;
  c.rope_theta = 1000000;
  c.tied = tied;
  c.special_tokens = {{"bos_token_id", "151643"}, {"eos_token_id", "151643"}};
  return c;
}

std::vector<Preset> presets() {
  return {{"qwen2.5-0.5b", second({24, 896, 14, 2, 4864}, 151936, true), 494'032'768},
          {"qwen2.5-1.5b", second({28, 1536, 12, 2, 8960}, 151936, true), 1'543'714'304},
          {"qwen2.5-3b", second({36, 2048, 16, 2, 11008}, 151936, true), 3'085'938'688},
          {"qwen2.5-7b", second({28, 3584, 28, 4, 18944}, 152064, false), 7'615'616'512},
          {"qwen2.5-14b", second({48, 5120, 40, 8, 13824}, 152064, false), 14'770'033'664},
          {"qwen2.5-32b", second({64, 5120, 40, 8, 27648}, 152064, false), 32'763'876'352},
          {"qwen2.5-72b", second({80, 8192, 64, 8, 29568}, 152064, false), 72'706'203'648}};
}

void read(const ConfigReader& file, ModelConfig& c) {
  read_rotary_sizes(file, {.kv_heads = 32}, c);
  read_rope(file, {}, c);
  read_late_window(file, c);
  file.require_text("hidden_act", {"silu"});
  reject_foreign_keys(file, {"sliding_window", "layer_types"});
}

void write(const ModelConfig& c, nlohmann::ordered_json& file) {
  write_rotary_sizes(c, file);
  write_late_window(c, file);
  write_rope(c, {}, file);
}

void build(const ModelConfig& c, Model& model) { build_rotary(c, {.qkv_bias = true}, model); }

}  // namespace

extern const Family kQwen2 = {.name = "qwen2",
                              .title = "Qwen2",
                              .architecture = "Qwen2ForCausalLM",
                              .presets = presets,
                              .plain_preset = "qwen2.5-0.5b",
                              .keys = kRotarySizeKeys,
                              .ffn = gated_ffn,
                              .read = read,
                              .write = write,
                              .is_buffer = is_rotary_buffer,
                              .build = build};

}  // namespace sluice
