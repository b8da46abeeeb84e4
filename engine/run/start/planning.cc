#include "engine/run/start/planning.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/base/units.h"
#include "engine/run/start/plan_request.h"
#include "engine/verify/ranks.h"
#include "engine/verify/verify.h"

namespace sluice {

namespace {

// "--gpu-mem 16203776": for the user to paste.
std::string argument(const TierBudget& row, uint64_t bytes) {
  return fmt::format("--{} {}", row.option, bytes);
}

// The largest number from 1 to `most` for which `works` returns true; 0: none. All smaller numbers must work,
// too.
template <typename F>
int64_t largest(int64_t most, F works) {
  int64_t low = 0;
  while (low < most) {
    const int64_t middle = low + (most - low + 1) / 2;
    if (works(middle))
      low = middle;
    else
      most = middle - 1;
  }
  return low;
}

// Options with shorter sequences, smaller micro-batches or fewer sequences, each of which makes the request
// work.
std::vector<std::string> less_work(const PlanRequest& request) {
  constexpr uint64_t kTasksAtMost = 30'000;  // larger programs are not varied
  constexpr int64_t kLengths = 16;  // lengths to try, at equal distances; then halves of the shortest
  std::vector<std::string> found;
  const uint64_t tasks = program_tasks(request, request.micro_batches.back());
  if (tasks > kTasksAtMost) return found;
  const auto ranks = int64_t{request.mesh.ranks()};
  const auto works_with_length = [&](int64_t sequence) {
    PlanRequest shorter = request;
    shorter.sequence = sequence;
    return is_feasible(shorter);
  };
  if (const int64_t part = request.sequence / kLengths; part > 0 && works_with_length(1)) {
    int64_t length = part * largest(kLengths - 1, [&](int64_t n) { return works_with_length(n * part); });
    for (int64_t half = part / 2; length == 0; half /= 2)
      if (half <= 1 || works_with_length(half)) length = std::max<int64_t>(half, 1);
    found.push_back(fmt::format("--seq {} instead of {}", length, request.sequence));
  }
  const int64_t smallest = request.micro_batches.back();
  if (smallest > 1 && tasks * static_cast<uint64_t>(smallest) <= kTasksAtMost &&
      request.lower.batch <= kMicroBatchesMax) {
    PlanRequest smaller = request;
    smaller.micro_batches = {1};
    if (is_short_enough(smaller, 1) && is_feasible(smaller)) found.push_back("--micro-batch 1");
  }
  const int64_t halvings = std::bit_width(static_cast<uint64_t>(request.lower.batch)) - 1;
  for (int64_t halved = 1; halved <= halvings && request.lower.batch % (int64_t{1} << halved) == 0;
       ++halved) {
    PlanRequest fewer = request;
    fewer.lower.batch >>= halved;
    std::erase_if(fewer.micro_batches,
                  [&](int64_t m) { return fewer.lower.batch % (m * request.waves.value_or(1)) != 0; });
    if (fewer.micro_batches.empty() || !is_feasible(fewer)) continue;
    found.push_back(fmt::format("--batch {}", fewer.lower.batch * ranks));
    break;
  }
  return found;
}

// Whether a larger host arena alone makes the request work. More pinned memory needs larger page tables,
// which may leave the device's arena too small.
bool works_with_host(const PlanRequest& request, const Budgets& budgets, uint64_t arena) {
  if (!budgets.host.driver) return true;
  const uint64_t before = page_table_bytes(budgets.host.limit),
                 tables = page_table_bytes(budgets.host.limit_for(arena));
  if (tables <= before) return true;
  PlanRequest larger = request;
  const std::vector<const TierBudget*> rows = budgets.by_tier();
  for (size_t t = 0; t < rows.size(); ++t) {
    uint64_t& capacity = larger.machine.tiers[t].capacity;
    if (rows[t] == &budgets.host) capacity = arena;
    if (budgets.device && rows[t] == &*budgets.device) capacity -= std::min(capacity, tables - before);
  }
  if (is_feasible(larger)) return true;
  larger.long_waves = true;
  return is_feasible(larger);
}

// The most host memory that is of use to a plan, as a multiple of what the least plan takes in all tiers
// together. It is more than 1 since copies are kept in more than one tier.
constexpr uint64_t kUseful = 2;

// The request with less host memory: no more than is useful, and so little that its page tables leave enough
// device memory. None: page tables are not why the request is infeasible.
std::optional<PlanRequest> with_fewer_page_tables(PlanRequest request, const Infeasible& why,
                                                  const Budgets& budgets) {
  if (!budgets.device || !budgets.device->driver) return std::nullopt;
  const uint64_t needed = why.least_together.front();
  if (needed <= request.machine.tiers.front().capacity) return std::nullopt;
  uint64_t low = 0, high = budgets.host.limit;  // page tables for `high` bytes are too large
  if (budgets.with_host_limit(low).device->arena < needed) return std::nullopt;
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    (budgets.with_host_limit(middle).device->arena < needed ? high : low) = middle;
  }
  const uint64_t all = std::accumulate(why.least_together.begin(), why.least_together.end(), uint64_t{0});
  const Budgets fewer = budgets.with_host_limit(std::min(low, budgets.host.limit_for(kUseful * all)));
  const std::vector<const TierBudget*> rows = fewer.by_tier();
  for (size_t t = 0; t < rows.size(); ++t) request.machine.tiers[t].capacity = rows[t]->arena;
  return request;
}

}  // namespace

std::variant<Plan, Infeasible> plan_within(const PlanRequest& request, const Budgets& budgets) {
  auto result = make_plan(request);
  const auto* why = std::get_if<Infeasible>(&result);
  if (!why) return result;
  const std::optional<PlanRequest> fewer = with_fewer_page_tables(request, *why, budgets);
  if (!fewer) return result;
  auto other = make_plan(*fewer);
  return std::holds_alternative<Plan>(other) ? std::move(other) : std::move(result);
}

Plan plan_or_throw(const PlanRequest& request, const Budgets& budgets) {
  auto result = plan_within(request, budgets);
  if (const auto* why = std::get_if<Infeasible>(&result)) throw infeasible_error(request, *why, budgets);
  Plan plan = std::move(std::get<Plan>(result));
  check_program(plan);
  malloc_trim(0);  // returns freed memory of planning, which would count beside the arenas
  return plan;
}

Plan plan_alike(const PlanRequest& request, const Budgets& budgets, const Ranks& ranks, Plan own) {
  const StepShape shape = ranks.all(own.shape).front();
  if (own.shape == shape) return own;
  PlanRequest alike = request;
  alike.micro_batches = {shape.micro_batch};
  alike.shape = shape;
  return plan_or_throw(alike, budgets);
}

void check_program(const Plan& plan) {
  const Program& program = plan.program;
  const std::vector<Violation> violations = verify(program);
  CHECK(violations.empty(), describe(program, violations.front()));
  if (plan.lowering.mesh.ranks() == 1) return;
  const Program* const roles[] = {&program};  // a single role: all ranks run this program
  const std::optional<std::string> fault = verify_ranks(roles);
  CHECK(!fault, *fault);
}

Error infeasible_error(const PlanRequest& request, const Infeasible& why, const Budgets& budgets) {
  const Machine& machine = request.machine;
  const Tier& tier = machine.tiers[why.tier];
  const std::string task = why.task.empty() ? "" : "; largest task: " + why.task;
  const std::vector<const TierBudget*> rows = budgets.by_tier();
  const std::vector<uint64_t> limits = budgets.limits_for(why.least_together);
  const std::vector<std::optional<uint64_t>> alone = budgets.limits_alone(why.least, why.least_together);
  const uint64_t least_together = why.least_together[why.tier];
  uint64_t bytes_needed = why.least[why.tier].value_or(least_together);
  if (bytes_needed > rows[why.tier]->most && least_together > tier.capacity)
    bytes_needed = std::min(bytes_needed, least_together);
  std::vector<std::string> each, together, sizes, beyond;
  for (size_t t = 0; t < rows.size(); ++t) {
    together.push_back(argument(*rows[t], limits[t]));
    sizes.push_back(format_size(limits[t]));
    if (limits[t] > rows[t]->most) beyond.push_back(format_size(rows[t]->most) + " for --" + rows[t]->option);
    if (!why.least[t] || *why.least[t] <= machine.tiers[t].capacity) continue;
    if (*alone[t] > rows[t]->most) continue;
    if (rows[t] == &budgets.host && !works_with_host(request, budgets, *why.least[t])) continue;
    each.push_back(argument(*rows[t], *alone[t]) + " (" + format_size(*alone[t]) + ")");
  }
  if (budgets.device && !budgets.device->driver && beyond.empty() &&  // both arenas lie in host memory
      limits[0] + limits[1] > budgets.host.most)
    beyond.push_back(format_size(budgets.host.most) + " for both");
  std::string remedy;
  if (!each.empty())
    remedy += fmt::format("Enough with the other budgets as given: {}. ", fmt::join(each, ", or "));
  remedy += fmt::format("The least together: {} ({})", fmt::join(together, " "), fmt::join(sizes, ", "));
  remedy += beyond.empty() ? "." : ", but the machine has only " + enumerated(beyond) + ".";
  if (!machine.tiers.back().file)
    remedy += " With --nvme-dir DIR, or in a plan --nvme-mem SIZE, what does not fit goes to drives.";
  const bool of_planning = why.tier == lowest_memory_tier(machine) && bytes_needed == why.planning;
  const std::string user = of_planning ? "making so long a plan" : fmt::format("the {} arena", tier.name);
  return Error(ExitCode::infeasible,
               fmt::format("The budgets cannot work: {} needs {} ({} bytes{}) and may have {}.", user,
                           format_size(bytes_needed), bytes_needed, of_planning ? " of host memory" : task,
                           format_size(tier.capacity)),
               remedy);
}

Error with_less_work(const Error& error, const PlanRequest& request) {
  const std::vector<std::string> less = less_work(request);
  if (less.empty()) return error;
  return Error(error.code(), error.what(),
               fmt::format("{} Within these budgets, {} works.", error.remedy(), fmt::join(less, " or ")));
}

}  // namespace sluice
