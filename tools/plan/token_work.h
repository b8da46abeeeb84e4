// What keeps a step's resources busy: tokens, or weights and state. The work of tokens grows with the batch:
// forwards, backwards, and transfers of activations. All other work is for weights, gradients and optimizer
// state. It depends on the number of waves, not on the number of tokens. So weights and state are the
// bottleneck of a step with few tokens, and tokens are the bottleneck of a step with many. Models with
// experts need many. All figures are predicted: work at full rates, in any order (Loads). Callers: plan and
// its sweep.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>

#include "tools/plan/facts.h"

namespace sluice {

struct TokenWork {
  uint64_t tokens = 0;                          // of a step, over all ranks
  Bottleneck of_tokens, of_state;               // of a rank; the resource that each keeps busy longest
  std::string tokens_resource, state_resource;  // in words: "compute", "drive nvme"
  // Whether tokens keep a resource busy for at least as long as weights and state do.
  bool suffice() const { return of_tokens.seconds >= of_state.seconds; }
};
TokenWork token_work_of(const Plan& plan);

// The number of tokens with which the work of tokens takes as long as the work of weights and state, if the
// work of tokens grows in proportion to their number and the other work stays constant. None if the plan has
// no work of one kind.
std::optional<double> tokens_to_suffice(const TokenWork& work);

// The number of tokens from which on they suffice in all `plans`, interpolated between two plans. The plans
// have ascending numbers of tokens. None if tokens suffice in all plans, or do not suffice in the last one.
std::optional<double> tokens_to_suffice(std::span<const TokenWork> plans);

// A line of `sluice plan`, without its heading; "" if there is nothing to say.
std::string token_work_words(const TokenWork& work);
// A sentence below a sweep over steps with several numbers of tokens. `sequence`: tokens of one sequence.
// `all_fit`: the step with the most tokens fitted as well.
std::string token_work_sentence(std::span<const TokenWork> plans, int64_t sequence, bool all_fit);

void add_token_work(const TokenWork& work, nlohmann::ordered_json& out);

}  // namespace sluice
