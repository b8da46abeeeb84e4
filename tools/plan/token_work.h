// What keeps a step's resources busy: tokens, or weights and state. The work of tokens grows with the batch:
// forwards, backwards, and transfers of activations. All other work is that of weights, gradients and
// optimizer state; it is the same for any number of tokens in as many waves. So with few tokens weights and
// state are the bottleneck, and with many tokens are: models with experts need many. All figures are
// predicted: work at full rates, in any order (Loads). Callers: plan and its sweep.
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
  // Whether tokens keep a resource busy for as long as weights and state do.
  bool suffice() const { return of_tokens.seconds >= of_state.seconds; }
};
TokenWork token_work_of(const Plan& plan);

// Tokens of a step with which both take as long, if the work of tokens grows in proportion to them and that
// of weights and state stays as it is; none if the plan has no work of one kind.
std::optional<double> tokens_to_suffice(const TokenWork& work);

// The same by plans for several numbers of tokens, in ascending order: from which on tokens suffice in all of
// them, interpolated between two plans. None: not within them, so they suffice in all, or not in the last.
std::optional<double> tokens_to_suffice(std::span<const TokenWork> plans);

// A line of `sluice plan`, without its heading; "" if there is nothing to say.
std::string token_work_words(const TokenWork& work);
// A sentence below a sweep over steps with several numbers of tokens. `sequence`: its tokens. `all_fit`: the
// largest did, too.
std::string token_work_sentence(std::span<const TokenWork> plans, int64_t sequence, bool all_fit);

void add_token_work(const TokenWork& work, nlohmann::ordered_json& out);

}  // namespace sluice
