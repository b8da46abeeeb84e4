// The table of ops that ranks carry out together, through communicators. Their time is that of the network.
#include <algorithm>

#include "engine/graph/expert_ops.h"

namespace sluice {

namespace {

double no_flops_between_ranks(const OpShapes&, Pass) { return 0; }

constexpr OpRule kRulesBetweenRanks[] = {
    {.kind = OpKind::all_gather,
     .name = "all_gather",
     .made_again = Recompute::all,
     .inputs = {1, 1},
     .infer = infer_all_gather,
     .flops = no_flops_between_ranks},
    {.kind = OpKind::all_to_all,
     .name = "all_to_all",
     .made_again = Recompute::all,
     .inputs = {1, 1},
     .infer = infer_all_to_all,
     .flops = no_flops_between_ranks,
     .gradient_inputs = 0b1,
     .gradient_outputs = 0b1,
     .fp32_inputs = 0b1},
    {.kind = OpKind::all_to_allv,
     .name = "all_to_allv",
     .made_again = Recompute::all,
     .inputs = {3, 3},
     .infer = infer_all_to_allv,
     .flops = no_flops_between_ranks,
     .backward_reads_inputs = 0b11,
     .gradient_inputs = 0b100,
     .gradient_outputs = 0b1,
     .host_inputs = 0b10},
};
// The table's rows are complete, in the order of OpKind.
static_assert(std::ranges::all_of(kRulesBetweenRanks, [](const OpRule& rule) {
  return rule.complete() && &kRulesBetweenRanks[static_cast<size_t>(rule.kind) - kOpKinds - 1] == &rule;
}));

}  // namespace

std::span<const OpRule> rules_between_ranks() { return kRulesBetweenRanks; }

}  // namespace sluice
