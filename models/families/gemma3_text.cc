// The text part of Gemma 3. It differs from Gemma 2 in four things: scores and logits have no soft caps, each
// head's q and k are normalized, only every sixth layer sees all keys, and the layers between have a window
// and rotary positions of their own. Gemma Team, "Gemma 3 Technical Report" (2025); shapes are those of the
// models' config.json files.
#include <cmath>
#include <nlohmann/json.hpp>

#include "models/families/gemma_form.h"

namespace sluice {
namespace {

constexpr RopeKeys kRope{.theta = 1000000, .sliding_theta = 10000, .has_local_base = true};

ModelConfig third(const RotarySizes& sizes) {
  ModelConfig c = rotary_config(sizes);
  c.vocabulary = 262144;
  c.context = 32768;
  c.head_size = 256;
  c.epsilon = 1e-6;
  c.rope_theta = 1000000;
  c.sliding_rope_theta = 10000;
  c.window = 512;
  c.layer_types = sliding_pattern(5);
  c.attention_scale = 1 / std::sqrt(256.0);
  c.tied = true;
  c.special_tokens = {{"bos_token_id", "2"}, {"eos_token_id", "1"}, {"pad_token_id", "0"}};
  return c;
}

int64_t ffn(int64_t width) { return 6 * width; }

std::vector<Preset> presets() {
  return {{"gemma-3-270m", third({18, 640, 4, 1, 2048}), 268'098'176},
          {"gemma-3-1b", third({26, 1152, 4, 1, 6912}), 999'885'952}};
}

void read(const ConfigReader& file, ModelConfig& c) {
  read_rotary_sizes(file, {.kv_heads = 4, .head_size = 256, .tied = true}, c);
  c.attention_bias = file.flag_or("attention_bias", false);
  read_rope(file, kRope, c);
  c.window = file.integer_or("sliding_window", kContextMax, 4096);
  read_layer_types(file, sliding_pattern(file.integer_or("sliding_window_pattern", kLayersMax, 6) - 1), c);
  read_gemma_scores(file, {}, c);
  file.require_text("hidden_activation", {"gelu_pytorch_tanh"});
  reject_foreign_keys(file,
                      {"sliding_window", "layer_types", "attn_logit_softcapping", "final_logit_softcapping"});
}

void write(const ModelConfig& c, nlohmann::ordered_json& file) {
  write_rotary_sizes(c, file);
  file["sliding_window"] = c.window;
  write_layer_types(c, file);
  write_gemma_scores(c, file);
  write_rope(c, kRope, file);
}

// The tensors of the part that sees pictures count as buffers, too.
bool is_buffer(std::string_view tensor) {
  if (tensor.starts_with("model.")) tensor.remove_prefix(6);
  return is_rotary_buffer(tensor) || tensor.starts_with("vision_tower.") ||
         tensor.starts_with("multi_modal_projector.");
}

void build(const ModelConfig& c, Model& model) {
  RotaryForm form = gemma_form(c);
  form.head_norm = HeadNorm::heads;
  build_rotary(c, form, model);
}

}  // namespace

extern const Family kGemma3Text = {.name = "gemma3_text",
                                   .title = "Gemma 3",
                                   .architecture = "Gemma3ForCausalLM",
                                   .presets = presets,
                                   .plain_preset = "gemma-3-1b",
                                   .keys = kRotarySizeKeys,
                                   .ffn = ffn,
                                   .read = read,
                                   .write = write,
                                   .is_buffer = is_buffer,
                                   .build = build,
                                   .nested = {.name = "gemma3",
                                              .defaults = R"({"vocab_size": 262208, "hidden_size": 2304,
                                                  "intermediate_size": 9216, "num_hidden_layers": 26,
                                                  "num_attention_heads": 8, "num_key_value_heads": 4,
                                                  "max_position_embeddings": 131072})",
                                              .tensor_prefix = "model.language_model.",
                                              .older_prefix = "language_model."}};

}  // namespace sluice
