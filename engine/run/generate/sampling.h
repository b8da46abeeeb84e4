// Which token follows: drawn from logits, on the host.
//
// Repetition penalty, temperature, top-k, top-p and min-p mean what they mean in generate() of transformers.
// Of equal logits the lower id counts as likelier. A draw is a function of (seed, prompt, position), so
// neither batches nor budgets change it.
#pragma once

#include <cstdint>
#include <span>

namespace sluice {

struct Sampling {
  double temperature = 0;  // 0: the most likely token
  int64_t top_k = 0;       // 0: all
  double top_p = 1;
  double min_p = 0;               // the least probability, as a part of the likeliest token's
  double repetition_penalty = 1;  // of tokens that occurred: divides logits above 0, multiplies others
  uint64_t seed = 0;
  double soft_cap = 0;  // of the logits; 0: none (OpAttributes)
};

// `prompt`: the prompt's number. `position`: the place in the sequence of the token to be drawn. `before`:
// the tokens of the prompt and of the answer so far, for the penalty; ids beyond the logits are ignored.
// Throws Error(numerics) unless all logits are finite.
uint32_t drawn_token(const Sampling& sampling, std::span<const float> logits, uint64_t prompt,
                     uint64_t position, std::span<const uint32_t> before = {});

}  // namespace sluice
