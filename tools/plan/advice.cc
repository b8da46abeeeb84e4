#include "tools/plan/advice.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/units.h"
#include "tools/command/waiting.h"

namespace sluice {

namespace {

constexpr uint64_t kTasksTried = 60'000;  // of a program: a larger one takes seconds for each change

}  // namespace

ChangeWords words_of(const Change& change, const Budgets& budgets, const std::vector<uint64_t>& most,
                     uint64_t ranks) {
  constexpr uint64_t kMib = 1 << 20, kGib = 1 << 30;
  switch (change.kind) {
    case Change::Kind::capacity: {
      const TierBudget& budget = *budgets.by_tier()[change.tier];
      const uint64_t limit = budget.limit_for(change.to);
      return {format_size(change.to - change.from) + " more " + budget.tier + " memory" +
                  (limit > most[change.tier] ? ", more than is here," : ""),
              limit < 8 * kGib ? fmt::format("--{} {}MiB", budget.option, (limit + kMib - 1) / kMib)
                               : fmt::format("--{} {}GiB", budget.option, (limit + kGib - 1) / kGib)};
    }
    case Change::Kind::batch:
      return {fmt::format("a batch of {} sequences instead of {}", change.to * ranks, change.from * ranks),
              fmt::format("--batch {}", change.to * ranks)};
    case Change::Kind::recompute:
      return {"layers recomputed only where that pays", "--recompute auto"};
  }
  return {};
}

std::string advice_text(const PlannedRun& run, const Plan& plan) {
  if (program_size(run.request, plan.model.micro_batch).tasks > kTasksTried) return "";
  const Waiting waiting(stderr, "trying other budgets and batches");
  const Options& options = run.options;
  const auto micro_batch = is_given(options, "micro-batch") ? options.batch.micro_batch : std::nullopt;
  std::vector<WhatIf> changes = best_changes(run.request, plan, micro_batch);
  changes.resize(std::min(changes.size(), kChangesShown));
  if (changes.empty()) return "  faster         no other budget or batch that was tried gains a hundredth\n";
  std::vector<uint64_t> most;
  for (const TierBudget* budget : run.budgets.by_tier()) most.push_back(budget->most);
  const double now = tokens_of(plan) / plan.step_seconds;
  std::string out;
  for (const WhatIf& change : changes) {
    const ChangeWords words = words_of(change.change, run.budgets, most, plan.lowering.ranks);
    const bool is_beyond = words.words.ends_with(',');
    out += fmt::format("  {:<15}{}: {:.0f} tokens/s, {:+.0f} %{}\n", out.empty() ? "faster" : "",
                       words.arguments, change.outlook.tokens_per_second,
                       100 * (change.outlook.tokens_per_second / now - 1),
                       is_beyond ? ", more than the machine has" : "");
  }
  return out;
}

}  // namespace sluice
