// Which token follows: drawn from logits, on the host.
//
// As transformers' generate() does: temperature, then top-k, then top-p. Of equal logits the lower id counts
// as likelier. A draw is a function of (seed, prompt, position), so neither batches nor budgets change it.
#pragma once

#include <cstdint>
#include <span>

namespace sluice {

struct Sampling {
  double temperature = 0;  // 0: the most likely token
  int64_t top_k = 0;       // 0: all
  double top_p = 1;
  uint64_t seed = 0;
  double soft_cap = 0;  // of the logits; 0: none (OpAttributes)
};

// `prompt`: its number. `position`: of the token that is drawn. Throws Error(numerics) unless all logits are
// finite.
uint32_t drawn_token(const Sampling& sampling, std::span<const float> logits, uint64_t prompt,
                     uint64_t position);

}  // namespace sluice
