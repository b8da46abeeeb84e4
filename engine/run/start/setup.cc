#include "engine/run/start/setup.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <bit>
#include <filesystem>

#include "cpu_optim/optimizer.h"
#include "engine/base/error.h"
#include "engine/rates/drives.h"
#include "engine/rates/network.h"
#include "engine/verify/ranks.h"
#include "engine/verify/verify.h"
#include "gpu/cuda/device.h"
#include "gpu/machine.h"
#include "models/families/family.h"
#include "models/files/file.h"
#include "models/weights/hf_weights.h"

namespace sluice {

namespace {

constexpr uint64_t kConfigBytesMax = 1 << 20, kMachineBytesMax = 1 << 20;
constexpr int64_t kSlicesMax = 1024;    // of a step: a plan's size, and the seconds it takes, grow with them
constexpr int64_t kZeroStages[] = {3, 1, 0};  // the first shares most; 1 and 2 are one program
constexpr double kLessSharedWorthwhile = 0.95;  // of the seconds with more shared
constexpr int64_t kSliceTokens = 2048;  // enough rows to keep matrix products busy; more only costs workspace

// What ranks share.
struct ZeroChoice {
  int64_t stage = 3;
  WeightShards weights = WeightShards::all;
};

// The largest power of two that divides what every machine has, the last one too, so that blocks are part of
// the tree of sums. Throws where weights shall be shared in blocks and there are none.
uint32_t block_ranks(const RankOptions& options, uint32_t per_node) {
  const auto ranks = static_cast<uint32_t>(options.count);
  const uint32_t block = per_node >= ranks ? ranks : 1u << std::countr_zero(per_node | ranks);
  if (block == 1 && ranks > 1 && options.shard_weights == WeightShards::node)
    throw Error(ExitCode::usage,
                fmt::format("--shard-weights node is for an even number of ranks on every machine, not {}.",
                            per_node % 2 ? per_node : ranks % per_node),
                "Use --shard-weights all, or --zero 2, where every rank has all weights.");
  return block;
}

void lower_sharing(const ZeroChoice& sharing, LowerOptions& lower) {
  lower.zero_stage = static_cast<int>(sharing.stage);
  lower.weights_in_block = sharing.weights == WeightShards::node;
}

// What the options leave open, from what shares most on.
std::vector<ZeroChoice> open_sharings(const RankOptions& options, const LowerOptions& lower) {
  const bool has_blocks = lower.block_ranks > 1 && lower.block_ranks < lower.ranks;
  std::vector<ZeroChoice> open;
  const auto add = [&](int64_t stage) {
    for (const WeightShards weights : {WeightShards::all, WeightShards::node})
      if (options.shard_weights ? weights == *options.shard_weights
                                : weights == WeightShards::all || (stage == 3 && has_blocks))
        open.push_back({stage, weights});
  };
  if (options.zero || lower.ranks == 1) {
    add(options.zero.value_or(kZeroStages[0]));
    return open;
  }
  for (const int64_t stage : kZeroStages)
    if (stage < 2 || lower.compress_rank == 0) add(stage);
  return open;
}

MachineRates read_machine(const MemoryOptions& options) {
  std::string machine = options.device.kind == DeviceKind::cuda ? kGpuMachine : kDefaultMachine;
  if (!options.machine.empty()) machine = options.machine;
  if (auto known = built_in_machine(machine)) return *std::move(known);
  std::error_code ignored;
  if (!std::filesystem::exists(machine, ignored))
    throw Error(ExitCode::usage, "There is no machine description " + printable(machine) + ".",
                "Name one of " + built_in_machine_names() + ", or a JSON file as docs/machine.md describes.");
  return parse_machine_rates(read_text_file(machine, kMachineBytesMax), machine);
}

std::string sharing_words(const ZeroChoice& sharing) {
  const bool in_machines = sharing.stage == 3 && sharing.weights == WeightShards::node;
  return std::to_string(sharing.stage) + (in_machines ? " within nodes" : "");
}

}  // namespace

ModelSource resolve_model(const ModelOptions& options) {
  ModelSource source;
  const std::filesystem::path path(options.model);
  std::error_code ignored;
  const bool directory = std::filesystem::is_directory(path, ignored);
  const bool file_name =
      std::filesystem::exists(path, ignored) || path.has_parent_path() || path.extension() == ".json";
  if (!file_name) {
    source.config = config_from_name(options.model);
    return source;
  }
  if (directory && !std::filesystem::exists(path / "config.json", ignored))
    throw Error(ExitCode::usage, "The directory " + printable(options.model) + " has no config.json.",
                "Give a Hugging Face directory; `sluice export` makes one of a run.");
  const std::string file = directory ? (path / "config.json").string() : path.string();
  source.config = config_from_json(read_text_file(file, kConfigBytesMax), file);
  if (directory && !options.from_scratch && has_weights(options.model))
    source.weights_directory = options.model;
  return source;
}

MachineRates resolve_machine(const MemoryOptions& options) {
  MachineRates rates = read_machine(options);
  if (options.nvme_directories.empty()) return rates;
  const std::vector<DriveRates> drives = match_drives(rates.drives, kNvmeTier, options.nvme_directories);
  std::erase_if(rates.drives, [](const DriveRates& drive) { return drive.tier == kNvmeTier; });
  rates.drives.insert(rates.drives.end(), drives.begin(), drives.end());
  return rates;
}

std::optional<MachineRates> described_machine(const MemoryOptions& options) {
  if (options.machine.empty()) return std::nullopt;
  MachineRates rates = resolve_machine(options);
  if (!rates.memory) return std::nullopt;
  return rates;
}

std::vector<std::string> settle_device(Options& options, bool precision_is_settled,
                                       const MachineRates* elsewhere) {
  DeviceChoice& device = options.memory.device;
  if (device.kind != DeviceKind::automatic && device.kind != DeviceKind::cuda) return {};
  if (elsewhere) {
    if (device.kind == DeviceKind::automatic)
      device.kind = elsewhere->memory->device ? DeviceKind::cuda : DeviceKind::cpu;
    const LaneRates* compute = find_lane(*elsewhere, "compute", "device");
    const bool lacks_bf16 = compute && compute->flops.bf16 == kUnlimited && compute->flops.fp16 < kUnlimited;
    if (!lacks_bf16 || options.numbers.precision != DType::bf16) return {};
    const std::string lacks = printable(elsewhere->name) + " has no rate for bf16";
    if (precision_is_settled || is_given(options, "precision"))
      throw Error(ExitCode::environment, lacks + ".", "Give --precision fp16, or another --machine.");
    options.numbers.precision = DType::f16;
    return {lacks + ": --precision is fp16."};
  }
  const CudaStatus status = cuda_status(device.ordinal);
  if (device.kind == DeviceKind::automatic) {
    device.kind = status.available ? DeviceKind::cuda : DeviceKind::cpu;
    // A driver tells of a GPU that somebody may count on.
    if (!status.available && status.driver_version > 0) return {status.reason + " So --device is cpu."};
  }
  if (!status.available || status.bf16 || precision_is_settled || is_given(options, "precision")) return {};
  options.numbers.precision = DType::f16;
  return {status.name + " has no bf16: --precision is fp16."};
}

std::unique_ptr<Device> make_device(const MemoryOptions& options, int threads) {
  switch (options.device.kind) {
    case DeviceKind::reference:
      return make_reference_device();
    case DeviceKind::cuda:
      return make_cuda_device(options.device.ordinal);
    case DeviceKind::cpu:
    case DeviceKind::automatic:
      break;
  }
  return make_cpu_device(threads);
}

AcceleratorRanks connect_accelerators(Device& device, const Ranks& ranks) {
  Accelerator* const accelerator = device.accelerator();
  if (ranks.size() == 1 || !accelerator) return {nullptr, ""};
  return accelerator->connect(*ranks.lane);
}

std::optional<AcceleratorUse> accelerator_use(Device& device) {
  Accelerator* const accelerator = device.accelerator();
  if (!accelerator) return std::nullopt;
  return AcceleratorUse{accelerator->memory(), process_peak_bytes()};
}

WorkspaceBytes workspaces_of(const Device& device) {
  return [&device](const OpShapes& shapes, Pass pass) { return device.workspace_bytes(shapes, pass); };
}

std::vector<int64_t> micro_batch_candidates(const BatchOptions& batch, int64_t sequence) {
  std::vector<int64_t> candidates;
  const auto add = [&](int64_t micro_batch) {
    if (batch.batch / micro_batch <= kSlicesMax) candidates.push_back(micro_batch);
  };
  if (batch.micro_batch) {
    add(*batch.micro_batch);
  } else {
    for (int64_t m = std::min(batch.batch, kSliceTokens / sequence); m > 1; --m)
      if (batch.batch % m == 0) add(m);
    add(1);
  }
  if (candidates.empty())
    throw Error(ExitCode::usage,
                "--batch " + std::to_string(batch.batch) + " makes more than " + std::to_string(kSlicesMax) +
                    " micro-batches, the most that a step may have.",
                "Give a smaller --batch, or a larger --micro-batch that divides it.");
  return candidates;
}

int64_t ranks_per_node(const RankOptions& ranks, const MachineRates& rates) {
  if (ranks.per_node > 0) return std::min(ranks.per_node, ranks.count);
  if (rates.network.empty()) return ranks.count;
  return std::min<int64_t>(rates.network.front().ranks, ranks.count);
}

PlanRequest plan_request(const Options& options, const ModelConfig& config, const Budgets& budgets,
                         WorkspaceBytes workspaces, bool evaluate, bool ranks_meet_in_device) {
  PlanRequest r;
  r.machine = machine_of(budgets.arenas(), ranks_meet_in_device);
  const RankOptions& ranks = options.ranks;
  r.rates = resolve_machine(options.memory);
  const auto per_node = static_cast<uint32_t>(ranks_per_node(ranks, r.rates));
  share_machine(r.rates, per_node);
  if (options.memory.threads && options.memory.device.kind != DeviceKind::cuda)
    for (PoolRate& pool : r.rates.pools)
      if (pool.name == kCoresPool)
        pool.capacity = std::min(pool.capacity, static_cast<double>(*options.memory.threads));
  r.rates.network = levels_for(r.rates, static_cast<uint32_t>(ranks.count), per_node);
  const int64_t sequence = options.batch.sequence.value_or(config.context);
  const DType precision = options.numbers.precision;
  r.model = [config, precision, sequence](int64_t micro_batch) {
    return build_model(config, precision, micro_batch, sequence);
  };
  BatchOptions batch = options.batch;
  batch.batch /= ranks.count;  // of one rank
  r.micro_batches = micro_batch_candidates(batch, sequence);
  r.recompute = options.memory.recompute;
  r.placement = options.memory.placement;
  r.lower.batch = batch.batch;
  r.lower.ranks = static_cast<uint32_t>(ranks.count);
  r.lower.block_ranks = block_ranks(ranks, per_node);
  lower_sharing({ranks.zero.value_or(kZeroStages[0]), ranks.shard_weights.value_or(WeightShards::all)},
                r.lower);
  r.lower.compress_rank = ranks.compression.rank;
  r.lower.compress_after = ranks.compress_after;
  r.lower.share_layers_until = ranks.share_layers_until;
  r.lower.update_waits_for_norm = options.optimizer.clip > 0 || precision == DType::f16;
  r.lower.evaluate = evaluate;
  const Optimizer& optimizer = optimizer_of(options.optimizer.kind);
  r.lower.optimizer.planes = optimizer.moments + (precision == DType::f32 ? 0 : 1);
  r.lower.optimizer.plane_stride = state_plane_stride;
  r.lower.optimizer.whole_tensors = optimizer.whole_tensors;
  r.lower.workspace_bytes = std::move(workspaces);
  const size_t tiers = r.machine.tiers.size();
  r.program_memory = {[tiers](uint64_t tasks) { return program_bytes_beside_reserve(tasks, tiers); },
                      [tiers](uint64_t tasks) { return planning_bytes_beside_reserve(tasks, tiers); }};
  return r;
}

Error infeasible_error(const PlanRequest& request, const Infeasible& why, const Budgets& budgets) {
  const Machine& machine = request.machine;
  const Tier& tier = machine.tiers[why.tier];
  const uint64_t bytes_needed = why.least[why.tier].value_or(why.least_together[why.tier]);
  const std::string task = why.task.empty() ? "" : " (largest task: " + why.task + ")";
  const std::vector<const TierBudget*> rows = budgets.by_tier();
  const std::vector<uint64_t> limits = budgets.limits_for(why.least_together);
  const auto argument = [&](size_t t, uint64_t bytes) {  // to be pasted
    return "--" + rows[t]->option + " " + std::to_string(bytes);
  };
  std::string each, together;
  for (size_t t = 0; t < rows.size(); ++t) {
    together += (t ? " " : "") + argument(t, limits[t]);
    if (!why.least[t] || *why.least[t] <= machine.tiers[t].capacity) continue;
    const uint64_t limit = rows[t]->limit_for(*why.least[t]);
    // More pinned memory may leave the device's arena less than it was given here.
    if (rows[t] == &budgets.host && budgets.host.driver &&
        page_table_bytes(limit) > page_table_bytes(budgets.host.limit))
      continue;
    each += (each.empty() ? "" : ", or ") + argument(t, limit);
  }
  std::string remedy = each.empty() ? "" : "Enough with the other budgets as given: " + each + ". ";
  remedy += "The least together: " + together + ".";
  if (!machine.tiers.back().file) remedy += " With --nvme-dir DIR, what does not fit goes to drives.";
  return Error(ExitCode::infeasible,
               "The budgets cannot work: the " + tier.name + " arena needs " +
                   std::to_string(bytes_needed) + " bytes" + task + " and may have " +
                   std::to_string(tier.capacity) + ".",
               remedy);
}

std::string settle_sharing(RankOptions& options, PlanRequest request) {
  const std::vector<ZeroChoice> open = open_sharings(options, request.lower);
  ZeroChoice choice = open.front();
  double best = 0;  // nothing yet
  std::string others;
  for (const ZeroChoice& sharing : open) {
    if (open.size() == 1) break;
    lower_sharing(sharing, request.lower);
    const auto result = make_plan(request);
    const Plan* plan = std::get_if<Plan>(&result);
    const std::string seconds = plan ? fmt::format("{:.3g} s", plan->step_seconds) : "does not fit";
    others += fmt::format("{}{}: {}", others.empty() ? "" : ", ", sharing_words(sharing), seconds);
    if (!plan || (best > 0 && plan->step_seconds >= kLessSharedWorthwhile * best)) continue;
    best = plan->step_seconds;
    choice = sharing;
  }
  options.zero = choice.stage;
  options.shard_weights = choice.weights;
  if (others.empty()) return "";
  return fmt::format("Ranks share at ZeRO stage {} (a step at stage {}).", sharing_words(choice), others);
}

void check_program(const Plan& plan) {
  const Program& program = plan.program;
  const std::vector<Violation> violations = verify(program);
  CHECK(violations.empty(), describe(program, violations.front()));
  if (plan.lowering.ranks == 1) return;
  const Program* const roles[] = {&program};  // one: all ranks run it
  const std::optional<std::string> fault = verify_ranks(roles);
  CHECK(!fault, *fault);
}

Plan plan_or_throw(const PlanRequest& request, const Budgets& budgets) {
  auto result = make_plan(request);
  if (const auto* why = std::get_if<Infeasible>(&result)) throw infeasible_error(request, *why, budgets);
  Plan plan = std::move(std::get<Plan>(result));
  check_program(plan);
  malloc_trim(0);  // or what planning took would count beside the arenas
  return plan;
}

}  // namespace sluice
