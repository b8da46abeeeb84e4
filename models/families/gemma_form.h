// What Gemma 2 and Gemma 3 share.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "models/families/rotary.h"

namespace sluice {

// Norms before and after attention and the feed-forward part, norm weights that are added to one, GELU, and
// scaled embeddings.
RotaryForm gemma_form(const ModelConfig& config);

// Read and write query_pre_attn_scalar, attn_logit_softcapping and final_logit_softcapping.
struct SoftCaps {
  double attention = 0, logits = 0;  // the caps where a file lacks their keys
};
void read_gemma_scores(const ConfigReader& file, const SoftCaps& absent, ModelConfig& config);
// Also writes hidden_activation and attention_bias.
void write_gemma_scores(const ModelConfig& config, nlohmann::ordered_json& file);

}  // namespace sluice
