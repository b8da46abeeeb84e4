#include "tools/plan/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "engine/base/units.h"
#include "tools/command/waiting.h"

namespace sluice {

namespace {

constexpr uint64_t kAdapterRank = 16;

// Bytes that a budget may grow to. An arena of the cpu device lies in host memory, beside the host arena.
uint64_t most_of(const TierBudget& row, const Budgets& budgets) {
  if (&row == &budgets.host) return kNoLimit;
  if (row.most == kNoLimit) return row.limit;  // what a GPU elsewhere has beyond its budget is not known
  return row.driver ? row.most : row.most - std::min(row.most, budgets.host.limit);
}

Amounts more_memory(TierId tier, const TierBudget& row, uint64_t arena, uint64_t most) {
  Amounts amounts;
  for (const uint64_t quarters : {6, 8, 16, 32})
    if (const uint64_t bytes = arena / 4 * quarters; row.limit_for(bytes) <= most)
      amounts.push_back({Change::Kind::capacity, tier, arena, bytes});
  return amounts;
}

// Options that change what is trained, or how.
std::vector<Amounts> other_training(const Options& options, const PlanRequest& request) {
  std::vector<Amounts> all;
  if (options.optimizer.clip > 0 && request.lower.update_waits_for_norm)
    all.push_back({{.kind = Change::Kind::clip}});
  // Adapters need trained weights, which do not exist for sizes that the user has chosen.
  const bool has_own_sizes = options.model.model.find(':') != std::string::npos;
  if (options.lora.rank == 0 && options.run.resume.empty() && !has_own_sizes)
    all.push_back({{.kind = Change::Kind::adapters, .to = kAdapterRank}});
  return all;
}

}  // namespace

ChangeWords words_of(const Change& change, const Budgets& budgets, uint64_t ranks) {
  constexpr uint64_t kMib = 1 << 20, kGib = 1 << 30;
  switch (change.kind) {
    case Change::Kind::capacity: {
      const TierBudget& budget = *budgets.by_tier()[change.tier];
      const uint64_t limit = budget.limit_for(change.to), unit = limit < 8 * kGib ? kMib : kGib;
      const uint64_t units = (limit + unit - 1) / unit;
      return {format_size(change.to - change.from) + " more " + budget.tier + " memory", budget.option,
              fmt::format("{}{}", units, unit == kMib ? "MiB" : "GiB"),
              units * unit > budget.most ? "more than the machine has" : ""};
    }
    case Change::Kind::batch:
      return {fmt::format("a batch of {} sequences instead of {}", change.to * ranks, change.from * ranks),
              "batch", fmt::format("{}", change.to * ranks), ""};
    case Change::Kind::recompute:
      return {"layers recomputed only where that pays", "recompute", "auto", ""};
    case Change::Kind::clip:
      return {"gradients that are not clipped", "clip", "0", "without clipping"};
    case Change::Kind::adapters:
      return {fmt::format("adapters of rank {}", change.to), "lora", fmt::format("{}", change.to),
              "trains adapters beside the weights of a model directory"};
  }
  return {};
}

void type_in(const ChangeWords& words, Options& options) {
  set_option(options, *find_option(words.option, Verb::plan), {words.value});
  options.given.push_back(words.option);
}

std::vector<Amounts> amounts_to_try(const Options& options, const PlanRequest& request,
                                    const Budgets& budgets) {
  std::vector<Amounts> all;
  const std::vector<const TierBudget*> rows = budgets.by_tier();
  for (TierId t = 0; t < rows.size(); ++t)
    if (!request.machine.tiers[t].file)
      all.push_back(more_memory(t, *rows[t], request.machine.tiers[t].capacity, most_of(*rows[t], budgets)));
  const auto batch = static_cast<uint64_t>(request.lower.batch);
  if (options.run.resume.empty())
    all.push_back({{Change::Kind::batch, 0, batch, 2 * batch}, {Change::Kind::batch, 0, batch, 4 * batch}});
  if (request.recompute) all.push_back({{.kind = Change::Kind::recompute}});
  return all;
}

uint64_t tasks_to_plan(const PlanRequest& request) {
  uint64_t tasks = kTasksOfSearch;
  for (const int64_t micro_batch : request.micro_batches) tasks += program_tasks(request, micro_batch);
  return tasks;
}

std::string advice_text(const Options& given, const PlannedRun& run, const Plan& plan, uint64_t tasks_most) {
  const bool keeps_batch = !run.options.run.resume.empty();
  const uint64_t tasks = tasks_to_plan(run.request);
  uint64_t left = tasks_most - std::min(tasks_most, tasks);
  if (tasks > left)
    return fmt::format("  faster         no other budget{} was tried: plans of {} tasks take long\n",
                       keeps_batch ? "" : " or batch", tasks - kTasksOfSearch);
  bool all_tried = true;
  const Waiting waiting(stderr, keeps_batch ? "trying other budgets" : "trying other budgets and batches");
  const uint64_t ranks = plan.lowering.mesh.ranks();
  const auto as_typed = [&](const Change& change) -> std::optional<Plan> {
    if (!all_tried) return std::nullopt;
    Options options = given;
    type_in(words_of(change, run.budgets, ranks), options);
    const PlannedRun other = planned_run(std::move(options));
    const uint64_t takes = tasks_to_plan(other.request);
    all_tried = takes <= left;
    if (!all_tried) return std::nullopt;
    left -= takes;
    auto result = plan_within(other.request, other.budgets);
    return std::holds_alternative<Plan>(result) ? std::optional(std::move(std::get<Plan>(result)))
                                                : std::nullopt;
  };
  // Changes of the training may gain most, so they are tried first.
  std::vector<WhatIf> training = best_changes(other_training(run.options, run.request), plan, as_typed);
  std::vector<WhatIf> changes =
      best_changes(amounts_to_try(run.options, run.request, run.budgets), plan, as_typed);
  std::ranges::move(training, std::back_inserter(changes));
  const std::string not_tried =
      all_tried ? "" : fmt::format("not all was tried: plans of {} tasks take long", tasks - kTasksOfSearch);
  if (changes.empty())
    return fmt::format("  faster         no other budget{} that was tried gains a hundredth{}\n",
                       keeps_batch ? "" : " or batch", all_tried ? "" : "; " + not_tried);
  const double now = tokens_of(plan) / plan.step_seconds;
  std::string out;
  for (const WhatIf& change : changes) {
    const ChangeWords words = words_of(change.change, run.budgets, ranks);
    const bool of_rank = change.change.kind == Change::Kind::capacity && ranks > 1;
    out += fmt::format("  {:<15}{}{}: {:.0f} tokens/s, {:+.0f} %{}{}{}\n", out.empty() ? "faster" : "",
                       words.arguments(), of_rank ? " for each rank" : "", change.outlook.tokens_per_second,
                       100 * (change.outlook.tokens_per_second / now - 1), words.besides.empty() ? "" : ", ",
                       words.besides,
                       is_given(given, words.option.c_str()) ? ", in place of the one given" : "");
  }
  if (!all_tried) out += fmt::format("  {:<15}{}\n", "", not_tried);
  return out;
}

}  // namespace sluice
