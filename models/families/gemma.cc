// Gemma: RMS norms whose weights are added to one, embeddings scaled by the root of the width, and a gate
// with GELU. Gemma Team, "Gemma: Open Models Based on Gemini Research and Technology" (2024); shapes as
// published in the models' config.json files.
#include <nlohmann/json.hpp>

#include "models/families/rotary.h"

namespace sluice {
namespace {

ModelConfig first(const RotarySizes& sizes) {
  ModelConfig c = rotary_config(sizes);
  c.vocabulary = 256000;
  c.context = 8192;
  c.head_size = 256;
  c.epsilon = 1e-6;
  c.rope_theta = 10000;
  c.tied = true;
  c.special_tokens = {{"bos_token_id", "2"}, {"eos_token_id", "1"}, {"pad_token_id", "0"}};
  return c;
}

int64_t ffn(int64_t width) { return 8 * width; }

std::vector<Preset> presets() {
  return {{"gemma-2b", first({18, 2048, 8, 1, 16384}), 2'506'172'416},
          {"gemma-7b", first({28, 3072, 16, 16, 24576}), 8'537'680'896}};
}

void read(const ConfigReader& file, ModelConfig& c) {
  read_rotary_sizes(file, {.kv_heads = 16, .head_size = 256, .tied = true}, c);
  c.attention_bias = file.flag_or("attention_bias", false);
  read_rope(file, {}, c);
  file.require_text("hidden_act", {"gelu_pytorch_tanh", "gelu"});  // both mean the tanh form
  file.require_text("hidden_activation", {"gelu_pytorch_tanh"});
  reject_foreign_keys(file);
}

void write(const ModelConfig& c, nlohmann::ordered_json& file) {
  write_rotary_sizes(c, file);
  file["hidden_act"] = "gelu_pytorch_tanh";
  file["attention_bias"] = c.attention_bias;
  write_rope(c, {}, file);
}

void build(const ModelConfig& c, Model& model) {
  build_rotary(c,
               {.qkv_bias = c.attention_bias,
                .output_bias = c.attention_bias,
                .weight_from_one = true,
                .gelu_gate = true,
                .scaled_embedding = true},
               model);
}

}  // namespace

extern const Family kGemma = {.name = "gemma",
                              .title = "Gemma",
                              .architecture = "GemmaForCausalLM",
                              .presets = presets,
                              .plain_preset = "gemma-2b",
                              .keys = kRotarySizeKeys,
                              .ffn = ffn,
                              .read = read,
                              .write = write,
                              .is_buffer = is_rotary_buffer,
                              .build = build};

}  // namespace sluice
