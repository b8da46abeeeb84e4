// What OLMo 2 and OLMo 3 share.
#pragma once

#include "models/families/rotary.h"

namespace sluice {

// Norms of what attention and the feed-forward part give, and of all heads' q and k together.
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
