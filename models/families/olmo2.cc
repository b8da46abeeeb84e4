// OLMo 2: Llama with norms of the outputs of attention and the feed-forward part instead of their inputs, a
// norm of all heads' q together, and one of all heads' k. OLMo Team, "2 OLMo 2 Furious" (2024); shapes as
// published in the models' config.json files.
#include <nlohmann/json.hpp>

#include "models/families/olmo_form.h"

namespace sluice {
namespace {

ModelConfig second(const RotarySizes& sizes) {
  ModelConfig c = rotary_config(sizes);
  c.vocabulary = 100352;
  c.context = 4096;
  c.epsilon = 1e-6;
  c.rope_theta = 500000;
  c.special_tokens = {{"eos_token_id", "100257"}, {"pad_token_id", "100277"}};
  return c;
}

std::vector<Preset> presets() {
  return {{"olmo-2-1b", second({16, 2048, 16, 16, 8192}), 1'484'916'736},
          {"olmo-2-7b", second({32, 4096, 32, 32, 11008}), 7'298'617'344},
          {"olmo-2-13b", second({40, 5120, 40, 40, 13824}), 13'716'198'400},
          {"olmo-2-32b", second({64, 5120, 40, 8, 27648}), 32'234'279'936}};
}

void read(const ConfigReader& file, ModelConfig& c) {
  read_rotary_sizes(file, {.epsilon = 1e-5}, c);
  c.attention_bias = file.flag_or("attention_bias", false);
  read_rope(file, {}, c);
  file.require_text("hidden_act", {"silu"});
  reject_foreign_keys(file);
}

void write(const ModelConfig& c, nlohmann::ordered_json& file) {
  write_rotary_sizes(c, file);
  file["attention_bias"] = c.attention_bias;
  write_rope(c, {}, file);
}

void build(const ModelConfig& c, Model& model) { build_rotary(c, olmo_form(c), model); }

}  // namespace

extern const Family kOlmo2 = {.name = "olmo2",
                              .title = "OLMo 2",
                              .architecture = "Olmo2ForCausalLM",
                              .presets = presets,
                              .plain_preset = "olmo-2-1b",
                              .keys = kRotarySizeKeys,
                              .ffn = gated_ffn,
                              .read = read,
                              .write = write,
                              .is_buffer = is_rotary_buffer,
                              .build = build};

}  // namespace sluice
