// Mistral: Llama, with an attention window in the first version. Jiang et al., "Mistral 7B" (2023); shapes as
// published in the models' config.json files.
#include <nlohmann/json.hpp>

#include "models/families/rotary.h"

namespace sluice {
namespace {

ModelConfig later(const RotarySizes& sizes, int64_t vocabulary, int64_t context) {
  ModelConfig c = rotary_config(sizes);
  c.vocabulary = vocabulary;
  c.context = context;
  c.head_size = 128;
  c.rope_theta = 1000000;
  c.special_tokens = {{"bos_token_id", "1"}, {"eos_token_id", "2"}};
  return c;
}

ModelConfig first(const RotarySizes& sizes) {
  ModelConfig c = later(sizes, 32000, 32768);
  c.rope_theta = 10000;
  c.window = 4096;
  c.layer_types = {LayerType::sliding};
  return c;
}

// The presets' ratio.
int64_t ffn(int64_t width) { return 7 * width / 2; }

std::vector<Preset> presets() {
  return {{"mistral-7b", first({32, 4096, 32, 8, 14336}), 7'241'732'096},
          {"mistral-7b-v0.3", later({32, 4096, 32, 8, 14336}, 32768, 32768), 7'248'023'552},
          {"mistral-nemo", later({40, 5120, 32, 8, 14336}, 131072, 131072), 12'247'782'400}};
}

void read(const ConfigReader& file, ModelConfig& c) {
  read_rotary_sizes(file, {.kv_heads = 8}, c);
  read_rope(file, {}, c);
  read_window(file, 4096, c);
  file.require_texts("layer_types", {c.window > 0 ? "sliding_attention" : "full_attention"});
  file.require_text("hidden_act", {"silu"});
  reject_foreign_keys(file, {"sliding_window", "layer_types"});
}

void write(const ModelConfig& c, nlohmann::ordered_json& file) {
  write_rotary_sizes(c, file);
  write_window(c, file);
  write_rope(c, {}, file);
}

void build(const ModelConfig& c, Model& model) { build_rotary(c, {}, model); }

}  // namespace

extern const Family kMistral = {.name = "mistral",
                                .title = "Mistral",
                                .architecture = "MistralForCausalLM",
                                .presets = presets,
                                .plain_preset = "mistral-7b",
                                .keys = kRotarySizeKeys,
                                .ffn = ffn,
                                .read = read,
                                .write = write,
                                .is_buffer = is_rotary_buffer,
                                .build = build};

}  // namespace sluice
