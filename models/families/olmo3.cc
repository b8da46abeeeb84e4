// OLMo 3: OLMo 2 with a window in three of four layers. Only the layers that see all keys have scaled rotary
// positions. OLMo Team, "OLMo 3" (2025); shapes as published in the models' config.json files.
#include <nlohmann/json.hpp>

#include "models/families/olmo_form.h"

namespace sluice {
namespace {

constexpr RopeKeys kRope{.theta = 500000, .sliding_theta = 500000};

ModelConfig third(const RotarySizes& sizes) {
  ModelConfig c = rotary_config(sizes);
  c.vocabulary = 100278;
  c.context = 65536;
  c.epsilon = 1e-6;
  c.rope_theta = c.sliding_rope_theta = 500000;
  c.rope_scaling = {.type = RopeType::yarn, .factor = 8, .original_context = 8192};
  c.rope_scaling.attention_factor = 1.2079441541679836;
  c.window = 4096;
  c.layer_types = sliding_pattern(3);
  c.special_tokens = {{"eos_token_id", "100257"}, {"pad_token_id", "100277"}};
  return c;
}

std::vector<Preset> presets() {
  return {{"olmo-3-7b", third({32, 4096, 32, 32, 11008}), 7'298'011'136},
          {"olmo-3-32b", third({64, 5120, 40, 8, 27648}), 32'233'522'176}};
}

void read(const ConfigReader& file, ModelConfig& c) {
  read_rotary_sizes(file, {.epsilon = 1e-5}, c);
  c.attention_bias = file.flag_or("attention_bias", false);
  read_rope(file, kRope, c);
  c.window = file.integer_or("sliding_window", kContextMax, 4096);
  read_layer_types(file, sliding_pattern(3), c);
  file.require_text("hidden_act", {"silu"});
  reject_foreign_keys(file, {"sliding_window", "layer_types"});
}

void write(const ModelConfig& c, nlohmann::ordered_json& file) {
  write_rotary_sizes(c, file);
  file["attention_bias"] = c.attention_bias;
  file["sliding_window"] = c.window;
  write_layer_types(c, file);
  write_rope(c, kRope, file);
}

void build(const ModelConfig& c, Model& model) { build_rotary(c, olmo_form(c), model); }

}  // namespace

extern const Family kOlmo3 = {.name = "olmo3",
                              .title = "OLMo 3",
                              .architecture = "Olmo3ForCausalLM",
                              .presets = presets,
                              .plain_preset = "olmo-3-7b",
                              .keys = kRotarySizeKeys,
                              .ffn = gated_ffn,
                              .read = read,
                              .write = write,
                              .is_buffer = is_rotary_buffer,
                              .build = build};

}  // namespace sluice
