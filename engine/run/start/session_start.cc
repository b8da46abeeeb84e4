#include "engine/run/start/session_start.h"

#include <algorithm>

#include "engine/base/pack.h"
#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/start/nvme_directories.h"

namespace sluice {

namespace {

// If the `measured` bytes and the arena together exceed the limit, makes `bytes` the reserve and returns
// true.
bool set_aside(uint64_t bytes, uint64_t measured, uint64_t arena, TierBudget& budget) {
  if (budget.taken_by(arena) + measured <= budget.limit) return false;
  budget.set_aside(bytes);
  return true;
}

}  // namespace

SessionOptions session_options(const Options& options, int threads) {
  const OptimizerOptions& o = options.optimizer;
  SessionOptions session;
  session.threads = threads;
  session.rules = {o.kind, {o.beta1, o.beta2, o.epsilon, o.weight_decay}, o.clip};
  session.nvme_directories = nvme_directories(options.memory);
  session.io = options.memory.io;
  return session;
}

double rank_timeout(const Options& options, const Plan& plan) {
  constexpr double kLeast = 60, kSteps = 10, kBytesPerSecond = 100e6;  // of a slow shared drive
  const uint64_t writers = plan.lowering.sharing.shares_state() ? plan.lowering.mesh.ranks() : 1;
  const uint64_t checkpoint = checkpoint_bytes(plan, options.optimizer.kind);
  const double share = static_cast<double>(checkpoint / writers) / kBytesPerSecond;
  return options.ranks.timeout.value_or(std::max(kLeast, kSteps * plan.step_seconds + share));
}

std::unique_ptr<PlannedSession> start_session(Device& device, Budgets& budgets, const SessionOptions& options,
                                              const std::function<Plan()>& make_plan,
                                              const std::function<void(const Plan&)>& planned) {
  constexpr uint64_t kStep = 16 << 20;  // rounds up, since the next preparation may load a little more
  uint64_t loaded = 0;                  // bytes of host memory that libraries took
  for (;;) {
    Plan plan = make_plan();
    planned(plan);
    PreparedDevice prepared(plan, device);
    bool too_little = false;
    if (prepared.arena) {
      const std::vector<uint64_t>& arenas = plan.program.arena_bytes;
      const uint64_t held = device.accelerator()->memory().held;
      const uint64_t arena = std::min(held, round_up(arenas.front(), kAcceleratorGranule));
      const uint64_t host_arena = arenas[lowest_memory_tier(plan.program.machine)];
      // The host's arena is pinned later, which takes device memory for page tables. A reserve has page
      // tables for the whole budget.
      too_little = set_aside(held - arena + page_table_bytes(budgets.host.limit),
                             held - arena + page_table_bytes(host_arena), arenas.front(), *budgets.device);
      loaded += prepared.library_bytes;
      const uint64_t libraries = std::max(budgets.library_bytes, round_up(loaded, kStep));
      const uint64_t host_reserve = budgets.host.reserve - budgets.library_bytes + libraries;
      if (set_aside(host_reserve, host_reserve, host_arena + plan.program_bytes, budgets.host)) {
        budgets.library_bytes = libraries;
        too_little = true;
      }
    }
    if (!too_little)
      return std::make_unique<PlannedSession>(std::move(plan), device, options, std::move(prepared));
  }
}

}  // namespace sluice
