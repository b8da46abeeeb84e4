// What Llama and its relatives share: RMS norm, rotary positions, grouped-query attention, SwiGLU, the keys
// under which their config.json gives sizes, and the names of their tensors
// (model.layers.i.self_attn.q_proj).
//
// A family that differs only in biases or in keys is written with these functions. Weights are [out, in].
// Papers: Su et al., "RoFormer" (2021); Touvron et al., "LLaMA" (2023); Shazeer, "GLU variants" (2020).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "models/families/config_reader.h"
#include "models/families/family.h"

namespace sluice {

// read_rotary_sizes() reads sizes, epsilon and `tied`, and checks the activation function.
// write_rotary_sizes() writes the same but for `tied`, which config_to_json() writes. RoPE's keys are left to
// ConfigReader::rope and write_rope. Absent keys get Llama's defaults: as many key/value heads as heads, a
// head size of width / heads, epsilon 1e-6, an untied head. A family with another default reads that key
// again after this call.
void read_rotary_sizes(const ConfigReader& file, ModelConfig& config);
void write_rotary_sizes(const ModelConfig& config, nlohmann::ordered_json& file);

inline constexpr SizeKey kRotarySizeKeys[] = {
    {"kv_heads", &ModelConfig::kv_heads, kHeadsMax, "heads of keys and values, a divisor of heads"},
    {"head_size", &ModelConfig::head_size, kWidthMax, "columns of a head; follows a new width"},
    {"rope_theta", &ModelConfig::rope_theta, int64_t{1} << 40, "base of the rotary positions"}};

struct RotarySizes {
  int64_t layers, width, heads, kv_heads, ffn;
};
// Other fields as in an empty ModelConfig: epsilon is 1e-5.
ModelConfig rotary_config(const RotarySizes& sizes);

// Frequencies of the rotary embedding, which older versions of transformers saved along with the parameters.
bool is_rotary_buffer(std::string_view tensor);

struct RotaryBiases {
  bool qkv, output;  // of attention's projections
  bool mlp;
};
void build_rotary(const ModelConfig& config, const RotaryBiases& biases, Model& model);

}  // namespace sluice
