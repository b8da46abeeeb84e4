#include "tools/plan/advice.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/units.h"
#include "tools/command/waiting.h"

namespace sluice {

ChangeWords words_of(const Change& change, const Budgets& budgets, uint64_t ranks) {
  constexpr uint64_t kMib = 1 << 20, kGib = 1 << 30;
  switch (change.kind) {
    case Change::Kind::capacity: {
      const TierBudget& budget = *budgets.by_tier()[change.tier];
      const uint64_t limit = budget.limit_for(change.to), unit = limit < 8 * kGib ? kMib : kGib;
      const uint64_t units = (limit + unit - 1) / unit;
      return {format_size(change.to - change.from) + " more " + budget.tier + " memory",
              fmt::format("--{} {}{}", budget.option, units, unit == kMib ? "MiB" : "GiB"),
              units * unit > budget.most};
    }
    case Change::Kind::batch:
      return {fmt::format("a batch of {} sequences instead of {}", change.to * ranks, change.from * ranks),
              fmt::format("--batch {}", change.to * ranks)};
    case Change::Kind::recompute:
      return {"layers recomputed only where that pays", "--recompute auto"};
  }
  return {};
}

std::string advice_text(const PlannedRun& run, const Plan& plan, uint64_t tasks_most) {
  const bool keeps_batch = !run.options.run.resume.empty();
  if (const uint64_t tasks = program_size(run.request, plan.model.micro_batch).tasks; tasks > tasks_most)
    return fmt::format("  faster         no other budget{} was tried: plans of {} tasks take long\n",
                       keeps_batch ? "" : " or batch", tasks);
  const Waiting waiting(stderr, keeps_batch ? "trying other budgets" : "trying other budgets and batches");
  const Options& options = run.options;
  const auto micro_batch = is_given(options, "micro-batch") ? options.batch.micro_batch : std::nullopt;
  std::vector<WhatIf> changes = best_changes(run.request, plan, micro_batch, keeps_batch);
  changes.resize(std::min(changes.size(), kChangesShown));
  if (changes.empty())
    return fmt::format("  faster         no other budget{} that was tried gains a hundredth\n",
                       keeps_batch ? "" : " or batch");
  const double now = tokens_of(plan) / plan.step_seconds;
  std::string out;
  for (const WhatIf& change : changes) {
    const ChangeWords words = words_of(change.change, run.budgets, plan.lowering.ranks);
    const bool of_rank = change.change.kind == Change::Kind::capacity && plan.lowering.ranks > 1;
    out += fmt::format("  {:<15}{}{}: {:.0f} tokens/s, {:+.0f} %{}\n", out.empty() ? "faster" : "",
                       words.arguments, of_rank ? " for each rank" : "", change.outlook.tokens_per_second,
                       100 * (change.outlook.tokens_per_second / now - 1),
                       words.is_beyond ? ", more than the machine has" : "");
  }
  return out;
}

}  // namespace sluice
