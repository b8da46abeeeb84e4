// What Llama and its relatives share: RMS norm, rotary positions, grouped-query attention, a gated
// feed-forward part, the keys under which their config.json gives sizes, and the names of their tensors
// (model.layers.i.self_attn.q_proj).
//
// A family says in a RotaryForm what its layers have, and reads and writes its keys with these functions.
// Weights are [out, in]. Papers: Su et al., "RoFormer" (2021); Touvron et al., "LLaMA" (2023); Shazeer, "GLU
// variants" (2020); Henry et al., "Query-key normalization" (2020).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "models/families/config_reader.h"
#include "models/families/family.h"
#include "models/families/rope_config.h"

namespace sluice {

// What transformers' class of the family takes for keys that a file does not have. The values here are
// LlamaConfig's.
struct RotaryDefaults {
  int64_t kv_heads = 0;   // 0: as many as heads; a null in the file always means that
  int64_t head_size = 0;  // 0: width / heads; a null in the file always means that
  double epsilon = 1e-6;
  bool tied = false;
};

// read_rotary_sizes() reads sizes, epsilon and `tied`. write_rotary_sizes() writes sizes and epsilon, the
// activation function "silu", and that there is no dropout; config_to_json() writes `tied`. RoPE's keys are
// left to rope_config.h.
void read_rotary_sizes(const ConfigReader& file, const RotaryDefaults& defaults, ModelConfig& config);
void write_rotary_sizes(const ModelConfig& config, nlohmann::ordered_json& file);

// layer_types: "full_attention" or "sliding_attention" for each layer. Absent: `pattern`, over and over.
void read_layer_types(const ConfigReader& file, std::vector<LayerType> pattern, ModelConfig& config);
void write_layer_types(const ModelConfig& config, nlohmann::ordered_json& file);
// sliding_window: null, or the window of all layers. `absent`: the window where there is no such key; 0:
// none.
void read_window(const ConfigReader& file, int64_t absent, ModelConfig& config);
void write_window(const ModelConfig& config, nlohmann::ordered_json& file);
// The keys of Qwen: with use_sliding_window and a sliding_window that is not null, the layers that slide are
// those from max_window_layers on, or those that layer_types names.
void read_late_window(const ConfigReader& file, ModelConfig& config);
void write_late_window(const ModelConfig& config, nlohmann::ordered_json& file);
// `sliding` layers that slide, then one layer that sees all keys.
std::vector<LayerType> sliding_pattern(int64_t sliding);

// Complains about keys that ask for something which relatives of Llama compute and this family does not. Keys
// in `known` are the family's own.
void reject_foreign_keys(const ConfigReader& file, std::initializer_list<std::string_view> known = {});

inline constexpr SizeKey kRotarySizeKeys[] = {
    {"kv_heads", &ModelConfig::kv_heads, kHeadsMax, "heads of keys and values, a divisor of heads"},
    {"head_size", &ModelConfig::head_size, kWidthMax, "columns of a head; follows a new width"},
    {"rope_theta", &ModelConfig::rope_theta, int64_t{1} << 40, "base of the rotary positions"}};

struct RotarySizes {
  int64_t layers, width, heads, kv_heads, ffn;
};
// Other fields keep ModelConfig's defaults, such as epsilon = 1e-5.
ModelConfig rotary_config(const RotarySizes& sizes);

// 8/3 of the width rounded up to a multiple of 256 (Touvron et al., "LLaMA", section 2.2).
int64_t gated_ffn(int64_t width);

// Frequencies of the rotary embedding, which older versions of transformers saved along with the parameters.
bool is_rotary_buffer(std::string_view tensor);

// Which RMS norms q and k have before they are rotated.
enum class HeadNorm : uint8_t {
  none,
  heads,       // of each head by itself
  projection,  // of all heads together
};

// Names of a layer's experts and their router, where it has any.
struct ExpertNames {
  std::string part = "mlp";  // stands before all other names
  std::string router = "gate", gate = "gate_proj", up = "up_proj", down = "down_proj";
  // These name the expert that takes all tokens (ModelConfig::shared_expert_ffn).
  std::string shared = "shared_expert", shared_router = "shared_expert_gate";
  bool biased = false;  // routers and experts have biases
  bool in_out = false;  // matrices of experts are [in, out]; they get no adapters
  Routing::Scores scores = Routing::Scores::softmax;
};

struct RotaryForm {
  bool qkv_bias = false, output_bias = false;  // of attention's projections
  bool mlp_bias = false;
  // Names of the norms of what attention and the feed-forward part read and write; "": there is none.
  std::string attention_in = "input_layernorm", attention_out;
  std::string mlp_in = "post_attention_layernorm", mlp_out;
  HeadNorm head_norm = HeadNorm::none;
  bool weight_from_one = false;  // of all norms (op.h)
  bool gelu_gate = false;
  bool sinks = false;             // attention has sinks: self_attn.sinks
  bool packed = false;            // q|k|v and gate|up are one matrix each: qkv_proj and gate_up_proj
  bool scaled_embedding = false;  // by the root of the width, rounded to the working precision
  ExpertNames experts;
};
void build_rotary(const ModelConfig& config, const RotaryForm& form, Model& model);

}  // namespace sluice
