// How a run that ends before its last step goes on: words for the remedies of errors.
//
// `out` is the directory of the run, wherever it is by now; nullptr: the run only measures and saves nothing.
// If the run's checkpoints cannot be looked at, as with too few descriptors, the run counts as having some.
// Nothing throws.
#pragma once

#include <cstdint>
#include <string>

#include "engine/run/checkpoint/directory.h"
#include "engine/run/options/options.h"

namespace sluice {

// "go on with --resume auto", or how to start again.
std::string way_on(const RunOptions& run, const OutDirectory* out);

// Sentences: repeat the command with `change` ("a smaller --lr"), and what to do if that ends as before.
std::string way_on_with(const std::string& change, const RunOptions& run, const OutDirectory* out);

// As way_on_with(), for a run in which step `step` had numbers that are not finite. `has_experts`: the model
// has experts. Before step 1 there is no update, so --lr is not to blame.
std::string way_on_from_bad_numbers(int64_t step, bool has_experts, const RunOptions& run,
                                    const OutDirectory* out);

// A sentence that says that the checkpoint after `step` of `steps` is written, and where.
std::string saved_words(int64_t step, int64_t steps, const OutDirectory& out);

}  // namespace sluice
