#include "models/families/gemma_form.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace sluice {

RotaryForm gemma_form(const ModelConfig& c) {
  return {.qkv_bias = c.attention_bias,
          .output_bias = c.attention_bias,
          .attention_out = "post_attention_layernorm",
          .mlp_in = "pre_feedforward_layernorm",
          .mlp_out = "post_feedforward_layernorm",
          .weight_from_one = true,
          .gelu_gate = true,
          .scaled_embedding = true};
}

void read_gemma_scores(const ConfigReader& file, const SoftCaps& absent, ModelConfig& c) {
  const auto cap = [&](const char* key, double otherwise) {
    return file.is_null(key) ? 0 : file.number_or(key, otherwise);
  };
  c.attention_cap = cap("attn_logit_softcapping", absent.attention);
  c.logits_cap = cap("final_logit_softcapping", absent.logits);
  const double scalar = file.number_or("query_pre_attn_scalar", 256);
  if (scalar <= 0) file.complain("query_pre_attn_scalar is not positive.", "Correct the file.");
  c.attention_scale = 1 / std::sqrt(scalar);
}

void write_gemma_scores(const ModelConfig& c, nlohmann::ordered_json& file) {
  const auto cap = [&](const char* key, double value) {
    file[key] = nullptr;
    if (value > 0) file[key] = value;
  };
  file.erase("hidden_act");
  file["hidden_activation"] = "gelu_pytorch_tanh";
  file["attention_bias"] = c.attention_bias;
  file["query_pre_attn_scalar"] = std::llround(1 / (c.attention_scale * c.attention_scale));
  cap("attn_logit_softcapping", c.attention_cap);
  cap("final_logit_softcapping", c.logits_cap);
}

}  // namespace sluice
