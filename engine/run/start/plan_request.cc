#include "engine/run/start/plan_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cpu_optim/optimizer.h"
#include "engine/base/error.h"
#include "engine/graph/imbalance.h"
#include "engine/rates/network.h"
#include "engine/run/start/group_options.h"
#include "engine/run/start/sharing.h"
#include "gpu/machine.h"

namespace sluice {

Model sized_model(const ModelConfig& config, DType precision, const DeviceSizes& sizes, int64_t micro_batch,
                  int64_t sequence, bool documents, const std::optional<GenerationSizes>& samples) {
  Model model = build_model(config, precision, micro_batch, sequence, documents, samples);
  for (Segment& segment : model.segments)
    for (Op& op : segment.ops)
      if (op.kind == OpKind::linear_cross_entropy)
        op.attributes.loss_rows = loss_rows(config.vocabulary, sizes.logits);
  return model;
}

std::vector<int64_t> micro_batch_candidates(const BatchOptions& batch, int64_t sequence, int64_t tokens) {
  std::vector<int64_t> candidates;
  bool waves_fit = true;
  const auto add = [&](int64_t micro_batch) {
    const int64_t micro_batches = batch.batch / micro_batch;
    if (micro_batches > kMicroBatchesMax) return;
    waves_fit = micro_batches % batch.waves.value_or(1) == 0;
    if (waves_fit) candidates.push_back(micro_batch);
  };
  if (batch.micro_batch) {
    add(*batch.micro_batch);
  } else {
    for (int64_t m = std::min(batch.batch, tokens / sequence); m > 1; --m)
      if (batch.batch % m == 0) add(m);
    add(1);
  }
  if (!waves_fit && candidates.empty())
    throw Error(ExitCode::usage,
                fmt::format("--waves {} does not divide the micro-batches of a step of {} sequences.",
                            *batch.waves, batch.batch),
                "Give a number that does, or leave out --waves: then the planner chooses.");
  if (candidates.empty())
    throw Error(ExitCode::usage,
                "--batch " + std::to_string(batch.batch) + " makes more than " +
                    std::to_string(kMicroBatchesMax) + " micro-batches, the most that a step may have.",
                "Give a smaller --batch, or a larger --micro-batch that divides it.");
  return candidates;
}

namespace {

void check_imbalance(double imbalance, const Model& model) {
  const double most = most_imbalance(model);
  if (most == 0)
    throw Error(ExitCode::usage, "--imbalance is for models with experts, and this one has none.",
                "Leave it out.");
  if (imbalance > most * (1 + 1e-9))  // a measured one is rounded
    throw Error(
        ExitCode::usage,
        fmt::format("--imbalance {} is not possible: with {:.4g} times the mean, an expert of this model "
                    "has all tokens.",
                    imbalance, most),
        fmt::format("Give at most {:.4g}.", most));
}

}  // namespace

int64_t ranks_per_node(const RankOptions& ranks, const MachineRates& rates) {
  if (ranks.per_node > 0) return std::min(ranks.per_node, ranks.count);
  if (rates.network.empty()) return ranks.count;
  return std::min<int64_t>(rates.network.front().ranks, ranks.count);
}

PlanRequest plan_request(const Options& options, const ModelConfig& config, const Budgets& budgets,
                         const DeviceNeeds& needs, bool evaluate, bool ranks_meet_in_device,
                         const std::optional<GenerationSizes>& samples) {
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
  r.model = [config, precision, sizes = needs.sizes, documents = options.data.documents, samples,
             of_groups = options.optimizer.of_groups,
             imbalance = options.model.imbalance.value_or(1)](int64_t micro_batch, int64_t length) {
    Model model = sized_model(config, precision, sizes, micro_batch, length, documents, samples);
    apply_group_options(of_groups, model);
    assume_imbalance(model, imbalance);
    return model;
  };
  r.sequence = sequence;
  BatchOptions batch = options.batch;
  batch.batch /= ranks.count;  // one rank's part
  r.micro_batches = micro_batch_candidates(batch, sequence, needs.sizes.micro_batch_tokens);
  r.micro_batch_tokens = needs.sizes.micro_batch_tokens;
  if (options.model.imbalance)
    check_imbalance(*options.model.imbalance, r.model(r.micro_batches.back(), sequence));
  r.recompute = options.memory.recompute;
  if (batch.waves) r.waves = static_cast<uint32_t>(*batch.waves);
  r.placement = options.memory.placement;
  r.overlap = options.memory.overlap;
  r.lower.batch = batch.batch;
  r.lower.ranks = static_cast<uint32_t>(ranks.count);
  apply_sharing(ranks, per_node, r.lower);
  r.lower.compress_rank = ranks.compression.rank;
  r.lower.compress_after = ranks.compress_after;
  r.lower.share_layers_until = ranks.share_layers_until;
  r.lower.update_waits_for_norm = options.optimizer.clip > 0 || precision == DType::f16;
  r.lower.evaluate = evaluate;
  const Optimizer& optimizer = optimizer_of(options.optimizer.kind);
  r.lower.optimizer.planes = optimizer.moments + (precision == DType::f32 ? 0 : 1);
  r.lower.optimizer.plane_stride = state_plane_stride;
  r.lower.optimizer.whole_tensors = optimizer.whole_tensors;
  r.lower.workspace_bytes = needs.workspaces;
  r.program_memory = {running_bytes_beside_reserve, planning_bytes_beside_reserve};
  const int64_t smallest = r.micro_batches.back();
  std::erase_if(r.micro_batches, [&](int64_t m) { return !is_short_enough(r, m); });
  if (r.micro_batches.empty())
    throw Error(
        ExitCode::usage,
        fmt::format("{} micro-batches of this model in {} take too long to plan.", batch.batch / smallest,
                    batch.waves ? fmt::format("{} waves", *batch.waves) : "a wave"),
        "Give more --waves, a smaller --batch, or a larger --micro-batch that divides it.");
  return r;
}

}  // namespace sluice
