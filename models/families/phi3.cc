// Phi-3, Phi-3.5 and Phi-4: Llama with q, k and v in one matrix, gate and up in another, and longrope. Abdin
// et al., "Phi-3 Technical Report" (2024); shapes as published in the models' config.json files.
#include <nlohmann/json.hpp>

#include "models/families/rotary.h"

namespace sluice {
namespace {

constexpr RopeKeys kRope{.may_be_partial = true};

ModelConfig third(const RotarySizes& sizes) {
  ModelConfig c = rotary_config(sizes);
  c.vocabulary = 32064;
  c.context = 4096;
  c.rope_theta = 10000;
  c.window = 2047;
  c.layer_types = {LayerType::sliding};
  c.special_tokens = {{"bos_token_id", "1"}, {"eos_token_id", "32000"}, {"pad_token_id", "32000"}};
  return c;
}

ModelConfig fourth(const RotarySizes& sizes) {
  ModelConfig c = rotary_config(sizes);
  c.vocabulary = 100352;
  c.context = 16384;
  c.rope_theta = 250000;
  c.special_tokens = {{"bos_token_id", "100257"}, {"eos_token_id", "100265"}, {"pad_token_id", "100349"}};
  return c;
}

std::vector<Preset> presets() {
  return {{"phi-3-mini-4k", third({32, 3072, 32, 32, 8192}), 3'821'079'552},
          {"phi-3-medium-4k", third({40, 5120, 40, 10, 17920}), 13'960'238'080},
          {"phi-4", fourth({40, 5120, 40, 10, 17920}), 14'659'507'200}};
}

void read(const ConfigReader& file, ModelConfig& c) {
  read_rotary_sizes(file, {.epsilon = 1e-5}, c);
  read_rope(file, kRope, c);
  if (c.rope_scaling.type == RopeType::longrope && c.rope_scaling.original_context == 0)
    c.rope_scaling.original_context = 4096;  // as transformers has it; other families take the context
  read_window(file, 0, c);
  file.reject_flag("attention_bias");
  file.require_text("hidden_act", {"silu"});
  reject_foreign_keys(file, {"sliding_window"});
}

void write(const ModelConfig& c, nlohmann::ordered_json& file) {
  write_rotary_sizes(c, file);
  for (const char* dropout : {"resid_pdrop", "embd_pdrop"}) file[dropout] = 0.0;
  write_window(c, file);
  write_rope(c, kRope, file);
  file["original_max_position_embeddings"] = c.context;
  if (c.rope_scaling.original_context > 0)
    file["original_max_position_embeddings"] = static_cast<int64_t>(c.rope_scaling.original_context);
}

void build(const ModelConfig& c, Model& model) { build_rotary(c, {.packed = true}, model); }

}  // namespace

extern const Family kPhi3 = {.name = "phi3",
                             .title = "Phi-3",
                             .architecture = "Phi3ForCausalLM",
                             .presets = presets,
                             .plain_preset = "phi-3-mini-4k",
                             .keys = kRotarySizeKeys,
                             .ffn = gated_ffn,
                             .read = read,
                             .write = write,
                             .is_buffer = is_rotary_buffer,
                             .build = build};

}  // namespace sluice
