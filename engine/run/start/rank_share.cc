#include "engine/run/start/rank_share.h"

#include <algorithm>
#include <thread>

#include "engine/base/units.h"
#include "gpu/cuda/device.h"
#include "offload/system/memory_limits.h"
#include "offload/system/processors.h"

namespace sluice {

namespace {

// Where a rank runs.
struct Post {
  int machine = 0;  // the first rank of its machine
  ProcessorSet allowed;
  ShownGpus shown;
};

ShownGpus shown_gpus(const DeviceChoice& device) {
  ShownGpus shown{device.ordinal, 0, {}};
  if (device.kind != DeviceKind::cuda) return shown;
  const std::vector<uint64_t> gpus = visible_gpus();
  shown.count = static_cast<int>(std::min(gpus.size(), shown.gpus.size()));
  std::copy_n(gpus.begin(), shown.count, shown.gpus.begin());
  return shown;
}

// The ordinal of the GPU that this rank takes. `here`: its place among the ranks of its machine.
int gpu_of(const std::vector<Post>& posts, int machine, int here) {
  std::vector<ShownGpus> shown;
  for (const Post& post : posts)
    if (post.machine == machine) shown.push_back(post.shown);
  return choose_gpus(shown).at(static_cast<size_t>(here));
}

std::string count_of(int number, const char* what) {
  return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

std::string describe(const ProcessorShare& share, int users) {
  const std::string each =
      "Each of the " + std::to_string(users) + " ranks here has " + count_of(share.threads, "thread") + ", ";
  return each + (share.apart ? "on cores of its own."
                             : "and shares the cores, since there are fewer cores than ranks.");
}

}  // namespace

std::vector<int> choose_gpus(const std::vector<ShownGpus>& ranks) {
  std::vector<int> chosen;
  std::vector<uint64_t> taken;
  for (const ShownGpus& shown : ranks) {
    int ordinal = shown.first;
    const auto gpu = [&] { return shown.gpus[static_cast<size_t>(ordinal)]; };
    while (ordinal < shown.count && std::count(taken.begin(), taken.end(), gpu()) > 0) ++ordinal;
    if (ordinal < shown.count) taken.push_back(gpu());
    chosen.push_back(ordinal);
  }
  return chosen;
}

RankShare rank_share(const MemoryOptions& memory, const Ranks& ranks) {
  RankShare out{memory, std::nullopt, {}};
  if (ranks.size() == 1) return out;
  const Post mine{ranks.first_here, allowed_processors(), shown_gpus(memory.device)};
  const std::vector<Post> posts = ranks.all(mine);
  out.memory.device.ordinal = gpu_of(posts, mine.machine, ranks.here);
  if (mine.allowed.count() == 0) return out;
  int user = 0, users = 0;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const Post& post = posts[static_cast<size_t>(rank)];
    if (post.machine != mine.machine || !(post.allowed == mine.allowed)) continue;
    if (rank < ranks.rank()) ++user;
    ++users;
  }
  const ProcessorShare share = share_of(cores_of(mine.allowed), user, users);
  out.memory.threads = memory.threads.value_or(share.threads);
  const int processors = static_cast<int>(std::thread::hardware_concurrency());
  if (users == 1 && ranks.all_here > 1 && mine.allowed.count() * ranks.all_here < processors)
    out.notes.push_back("The launcher lets each rank run on " + count_of(mine.allowed.count(), "processor") +
                        " of " + std::to_string(processors) +
                        ". With mpirun --bind-to none, the ranks divide all of them.");
  if (users == 1) return out;
  if (!memory.threads) out.notes.push_back(describe(share, users));
  if (share.apart && *out.memory.threads <= share.processors.count()) out.processors = share.processors;
  return out;
}

int ranks_together(const std::vector<int>& machines) {
  const size_t ranks = machines.size();
  const auto fits = [&](size_t together) {
    for (size_t rank = 0; rank < ranks; ++rank)
      if (machines[rank] != machines[rank / together * together]) return false;
    return ranks % together == 0;
  };
  size_t together = ranks;
  while (!fits(together)) --together;
  return static_cast<int>(together);
}

Budgets resolve_shared_budgets(const MemoryOptions& memory, const Ranks& ranks,
                               const std::optional<AcceleratorUse>& accelerator) {
  MemoryLimits limits = shared_by(ranks.all_here, ranks.in_process, memory_limits());
  limits.available = ranks.least({limits.usable()}).front();
  Budgets budgets = resolve_budgets(memory, limits, true, accelerator, ranks.all_here);
  struct Row {
    const Size& size;
    TierBudget* budget;
  };
  const Row rows[] = {{memory.gpu, budgets.device ? &*budgets.device : nullptr},
                      {memory.host, &budgets.host},
                      {memory.nvme, budgets.nvme ? &*budgets.nvme : nullptr}};
  const auto is_found = [](const Row& row) {
    return row.budget && (row.size.kind != Size::Kind::bytes || row.size.of_run);
  };
  std::vector<uint64_t> found;
  for (const Row& row : rows) found.push_back(is_found(row) ? row.budget->limit : UINT64_MAX);
  const std::vector<uint64_t> least = ranks.least(found);  // no rank takes memory before all have looked
  for (size_t i = 0; i < found.size(); ++i) {
    if (!is_found(rows[i]) || least[i] >= found[i]) continue;  // a limit in bytes stays
    TierBudget& budget = *rows[i].budget;
    budget.limit = least[i];
    budget.set_aside(budget.reserve);
    budgets.notes.push_back("--" + budget.option + ": another rank has less, so it is " + in_mib(least[i]) +
                            " for all.");
  }
  return budgets;
}

}  // namespace sluice
