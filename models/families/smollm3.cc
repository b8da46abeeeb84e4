// SmolLM3: Llama without rotary positions in every fourth layer. Bakouch et al., "SmolLM3" (2025); shapes as
// published in the models' config.json files.
#include <nlohmann/json.hpp>

#include "models/families/rotary.h"

namespace sluice {
namespace {

// `interval` - 1 layers with positions, then one without.
std::vector<LayerType> pattern(int64_t interval) {
  std::vector<LayerType> types(static_cast<size_t>(interval - 1), LayerType::full);
  types.push_back(LayerType::no_rope);
  return types;
}

ModelConfig third(const RotarySizes& sizes) {
  ModelConfig c = rotary_config(sizes);
  c.vocabulary = 128256;
  c.context = 65536;
  c.epsilon = 1e-6;
  c.rope_theta = 5000000;
  c.layer_types = pattern(4);
  c.tied = true;
  c.special_tokens = {{"bos_token_id", "128000"}, {"eos_token_id", "128012"}, {"pad_token_id", "128004"}};
  return c;
}

// no_rope_layers has a 1 for each layer that has positions.
void read_positions(const ConfigReader& file, ModelConfig& c) {
  c.layer_types = pattern(file.integer_or("no_rope_layer_interval", kLayersMax, 4));
  if (!file.has("no_rope_layers")) return;
  const std::vector<double> rotated = file.numbers("no_rope_layers");
  if (rotated.size() != static_cast<size_t>(c.layers))
    file.complain("no_rope_layers needs a number for each layer.", "Correct the file.");
  c.layer_types.clear();
  for (const double one : rotated) c.layer_types.push_back(one == 0 ? LayerType::no_rope : LayerType::full);
}

constexpr RopeKeys kRope{.theta = 2000000};

std::vector<Preset> presets() { return {{"smollm3-3b", third({36, 2048, 16, 4, 11008}), 3'075'098'624}}; }

void read(const ConfigReader& file, ModelConfig& c) {
  read_rotary_sizes(file, {.kv_heads = 4, .tied = true}, c);
  c.attention_bias = file.flag_or("attention_bias", false);
  c.mlp_bias = file.flag_or("mlp_bias", false);
  read_rope(file, kRope, c);
  read_positions(file, c);
  file.reject_flag("use_sliding_window");
  file.require_text("hidden_act", {"silu"});
  reject_foreign_keys(file, {"sliding_window", "no_rope_layers"});
}

void write(const ModelConfig& c, nlohmann::ordered_json& file) {
  write_rotary_sizes(c, file);
  file["attention_bias"] = c.attention_bias;
  file["mlp_bias"] = c.mlp_bias;
  file["use_sliding_window"] = false;
  std::vector<int> rotated;
  for (int64_t i = 0; i < c.layers; ++i) rotated.push_back(layer_type(c, i) == LayerType::no_rope ? 0 : 1);
  file["no_rope_layers"] = rotated;
  write_rope(c, kRope, file);
}

void build(const ModelConfig& c, Model& model) {
  build_rotary(c, {.qkv_bias = c.attention_bias, .output_bias = c.attention_bias, .mlp_bias = c.mlp_bias},
               model);
}

}  // namespace

extern const Family kSmolLm3 = {.name = "smollm3",
                                .title = "SmolLM3",
                                .architecture = "SmolLM3ForCausalLM",
                                .presets = presets,
                                .plain_preset = "smollm3-3b",
                                .keys = kRotarySizeKeys,
                                .ffn = gated_ffn,
                                .read = read,
                                .write = write,
                                .is_buffer = is_rotary_buffer,
                                .build = build};

}  // namespace sluice
