// Gemma 2: Gemma with norms before and after attention and the feed-forward part, soft caps of scores and
// logits, and a window in every other layer. Gemma Team, "Gemma 2: Improving Open Language Models at a
// Practical Size" (2024); shapes as published in the models' config.json files.
#include <cmath>
#include <nlohmann/json.hpp>

#include "models/families/gemma_form.h"

namespace sluice {
namespace {

ModelConfig second(const RotarySizes& sizes, int64_t head_size, double query_scalar) {
  ModelConfig c = rotary_config(sizes);
  c.vocabulary = 256000;
  c.context = 8192;
  c.head_size = head_size;
  c.epsilon = 1e-6;
  c.rope_theta = 10000;
  c.window = 4096;
  c.layer_types = sliding_pattern(1);
  c.attention_scale = 1 / std::sqrt(query_scalar);
  c.attention_cap = 50;
  c.logits_cap = 30;
  c.tied = true;
  c.special_tokens = {{"bos_token_id", "2"}, {"eos_token_id", "1"}, {"pad_token_id", "0"}};
  return c;
}

int64_t ffn(int64_t width) { return 4 * width; }

std::vector<Preset> presets() {
  return {{"gemma-2-2b", second({26, 2304, 8, 4, 9216}, 256, 256), 2'614'341'888},
          {"gemma-2-9b", second({42, 3584, 16, 8, 14336}, 256, 256), 9'241'705'984},
          {"gemma-2-27b", second({46, 4608, 32, 16, 36864}, 128, 144), 27'227'128'320}};
}

void read(const ConfigReader& file, ModelConfig& c) {
  read_rotary_sizes(file, {.kv_heads = 4, .head_size = 256, .tied = true}, c);
  c.attention_bias = file.flag_or("attention_bias", false);
  read_rope(file, {}, c);
  c.window = file.integer_or("sliding_window", kContextMax, 4096);
  read_layer_types(file, sliding_pattern(1), c);
  read_gemma_scores(file, {.attention = 50, .logits = 30}, c);
  file.require_text("hidden_activation", {"gelu_pytorch_tanh"});
  reject_foreign_keys(file,
                      {"sliding_window", "layer_types", "attn_logit_softcapping", "final_logit_softcapping"});
}

void write(const ModelConfig& c, nlohmann::ordered_json& file) {
  write_rotary_sizes(c, file);
  file["sliding_window"] = c.window;
  write_layer_types(c, file);
  write_gemma_scores(c, file);
  write_rope(c, {}, file);
}

void build(const ModelConfig& c, Model& model) { build_rotary(c, gemma_form(c), model); }

}  // namespace

extern const Family kGemma2 = {.name = "gemma2",
                               .title = "Gemma 2",
                               .architecture = "Gemma2ForCausalLM",
                               .presets = presets,
                               .plain_preset = "gemma-2-2b",
                               .keys = kRotarySizeKeys,
                               .ffn = ffn,
                               .read = read,
                               .write = write,
                               .is_buffer = is_rotary_buffer,
                               .build = build};

}  // namespace sluice
