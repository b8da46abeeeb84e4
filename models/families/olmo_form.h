// What OLMo 2 and OLMo 3 share.
#pragma once

#include "models/families/rotary.h"

namespace sluice {

// Norms of the outputs of attention and the feed-forward part, of all heads' q together, and of all heads' k.
inline RotaryForm olmo_form(const ModelConfig& config) {
  return {.qkv_bias = config.attention_bias,
          .output_bias = config.attention_bias,
          .attention_in = "",
          .attention_out = "post_attention_layernorm",
          .mlp_in = "",
          .mlp_out = "post_feedforward_layernorm",
          .head_norm = HeadNorm::projection};
}

}  // namespace sluice
