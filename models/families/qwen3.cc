// Qwen3: Llama with a norm of each head's q and k, and heads of 128 columns whatever the width. Yang et al.,
// "Qwen3 Technical Report" (2025); shapes as published in the models' config.json files.
#include <nlohmann/json.hpp>

#include "models/families/rotary.h"

namespace sluice {
namespace {

ModelConfig third(const RotarySizes& sizes, bool tied) {
  ModelConfig c = rotary_config(sizes);
  c.vocabulary = 151936;
  c.context = 40960;
  c.head_size = 128;
  c.epsilon = 1e-6;
  c.rope_theta = 1000000;
  c.tied = tied;
  c.special_tokens = {{"bos_token_id", "151643"}, {"eos_token_id", "151645"}};
  return c;
}

std::vector<Preset> presets() {
  return {{"qwen3-0.6b", third({28, 1024, 16, 8, 3072}, true), 596'049'920},
          {"qwen3-1.7b", third({28, 2048, 16, 8, 6144}, true), 1'720'574'976},
          {"qwen3-4b", third({36, 2560, 32, 8, 9728}, true), 4'022'468'096},
          {"qwen3-8b", third({36, 4096, 32, 8, 12288}, false), 8'190'735'360},
          {"qwen3-14b", third({40, 5120, 40, 8, 17408}, false), 14'768'307'200},
          {"qwen3-32b", third({64, 5120, 64, 8, 25600}, false), 32'762'123'264}};
}

void read(const ConfigReader& file, ModelConfig& c) {
  read_rotary_sizes(file, {.kv_heads = 32, .head_size = 128}, c);
  c.attention_bias = file.flag_or("attention_bias", false);
  read_rope(file, {}, c);
  read_late_window(file, c);
  file.require_text("hidden_act", {"silu"});
  reject_foreign_keys(file, {"sliding_window", "layer_types"});
}

void write(const ModelConfig& c, nlohmann::ordered_json& file) {
  write_rotary_sizes(c, file);
  file["attention_bias"] = c.attention_bias;
  write_late_window(c, file);
  write_rope(c, {}, file);
}

void build(const ModelConfig& c, Model& model) {
  build_rotary(c,
               {.qkv_bias = c.attention_bias, .output_bias = c.attention_bias, .head_norm = HeadNorm::heads},
               model);
}

}  // namespace

extern const Family kQwen3 = {.name = "qwen3",
                              .title = "Qwen3",
                              .architecture = "Qwen3ForCausalLM",
                              .presets = presets,
                              .plain_preset = "qwen3-0.6b",
                              .keys = kRotarySizeKeys,
                              .ffn = gated_ffn,
                              .read = read,
                              .write = write,
                              .is_buffer = is_rotary_buffer,
                              .build = build};

}  // namespace sluice
