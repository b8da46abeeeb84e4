#include "engine/run/start/plan_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
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

int64_t busy_tokens(const ModelConfig& config, int64_t tokens) {
  if (config.experts == 0) return tokens;
  return tokens *
         std::max<int64_t>(1, config.experts / config.experts_per_token / config.mesh.size(Axis::expert));
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
  if (imbalance > most)
    throw Error(
        ExitCode::usage,
        fmt::format("--imbalance {} is not possible: an expert of this model takes at most {:.4g} times the "
                    "mean.",
                    imbalance, most),
        fmt::format("Give at most {:.4g}.", most));
}

}  // namespace

int64_t ranks_per_node(const RankOptions& ranks, const MachineRates& rates) {
  if (ranks.per_node > 0) return std::min(ranks.per_node, ranks.count);
  if (rates.network.empty()) return ranks.count;
  return std::min<int64_t>(rates.network.front().ranks, ranks.count);
}

int64_t experts_over(const Options& options) {
  const RankOptions& ranks = options.ranks;
  return is_given(options, "experts-over") ? ranks.experts_over : std::gcd(ranks.experts_over, ranks.count);
}

std::string experts_over_note(const Options& options) {
  const int64_t over = experts_over(options);
  if (over == options.ranks.experts_over) return "";
  return fmt::format("Experts were divided over {} ranks, which does not suit {}: now over {}.",
                     options.ranks.experts_over, options.ranks.count, over);
}

namespace {

void check_experts_over(const ModelConfig& config, const RankOptions& ranks, int64_t over, bool samples) {
  const auto refuse = [over](const std::string& why, const char* remedy) {
    throw Error(ExitCode::usage, fmt::format("--experts-over {}{}.", over, why), remedy);
  };
  if (config.experts == 0)
    refuse(": the model has no experts", "Leave it out: ranks share the state of such a model by --zero.");
  for (int64_t i = 0; i < config.layers; ++i)
    if (const int64_t experts = experts_of(config, i); experts % over != 0)
      refuse(fmt::format(" does not divide the {} experts of layer {}", experts, i),
             "Give a number that divides them.");
  if (ranks.count % over != 0)
    refuse(ranks.count == 1 ? " needs several ranks, and the run has one"
                            : fmt::format(" does not divide the {} ranks of the run", ranks.count),
           ranks.count == 1
               ? "Add --gpus N for N ranks in one process, or start ranks by mpirun; a plan is for --ranks N."
               : "Give a number that divides them, or another number of ranks.");
  if (samples)
    refuse(" excludes --sample-every: no rank has all experts, and text is generated by one",
           "Leave out one of them.");
}

// The model as one rank of the run has it.
ModelConfig with_ranks(ModelConfig config, const Options& options, uint32_t per_node, bool samples) {
  const int64_t over = experts_over(options);
  if (over > 1) check_experts_over(config, options.ranks, over, samples);
  const auto ranks = static_cast<uint32_t>(options.ranks.count), experts = static_cast<uint32_t>(over);
  config.mesh = Mesh({ranks / experts, experts}, per_node);
  config.rank = static_cast<uint32_t>(options.ranks.here);
  return config;
}

}  // namespace

PlanRequest plan_request(const Options& options, const ModelConfig& config, const Budgets& budgets,
                         const DeviceNeeds& needs, const DataUse& data, bool ranks_meet_in_device,
                         const std::optional<GenerationSizes>& samples) {
  PlanRequest r;
  const RankOptions& ranks = options.ranks;
  r.rates = resolve_machine(options.memory);
  const auto per_node = static_cast<uint32_t>(ranks_per_node(ranks, r.rates));
  share_machine(r.rates, per_node);
  const ModelConfig of_rank = with_ranks(config, options, per_node, samples.has_value());
  r.machine = machine_of(budgets.arenas(), ranks_meet_in_device);
  r.most = budgets.most_arenas();
  if (options.memory.threads && options.memory.device.kind != DeviceKind::cuda)
    for (PoolRate& pool : r.rates.pools)
      if (pool.name == kCoresPool)
        pool.capacity = std::min(pool.capacity, static_cast<double>(*options.memory.threads));
  r.rates.network = levels_for(r.rates, static_cast<uint32_t>(ranks.count), per_node);
  const int64_t sequence = options.batch.sequence.value_or(config.context);
  const DType precision = options.numbers.precision;
  r.model = [config = of_rank, precision, sizes = needs.sizes, documents = data.documents, samples,
             of_groups = options.optimizer.of_groups,
             imbalance = options.model.imbalance.value_or(1)](int64_t micro_batch, int64_t length) {
    Model model = sized_model(config, precision, sizes, micro_batch, length, documents, samples);
    apply_group_options(of_groups, model);
    assume_imbalance(model, imbalance);
    return model;
  };
  r.mesh = of_rank.mesh;
  r.sequence = sequence;
  BatchOptions batch = options.batch;
  batch.batch /= of_rank.mesh.data_ranks();
  r.micro_batch_tokens = busy_tokens(of_rank, needs.sizes.micro_batch_tokens);
  r.micro_batches = micro_batch_candidates(batch, sequence, r.micro_batch_tokens);
  // An imbalance that a run measured is not checked: it counts all choices, and a capacity may drop some.
  if (options.model.imbalance && is_given(options, "imbalance"))
    check_imbalance(*options.model.imbalance, r.model(r.micro_batches.back(), sequence));
  r.recompute = options.memory.recompute;
  if (batch.waves) r.waves = static_cast<uint32_t>(*batch.waves);
  r.placement = options.memory.placement;
  r.overlap = options.memory.overlap;
  r.lower.batch = batch.batch;
  apply_sharing(ranks, of_rank.mesh, r.lower);
  r.lower.compress_rank = ranks.compression.rank;
  r.lower.compress_after = ranks.compress_after;
  r.lower.share_layers_until = ranks.share_layers_until;
  r.lower.update_waits_for_norm = options.optimizer.clip > 0 || precision == DType::f16;
  r.lower.evaluate = data.validates;
  r.lower.optimizer = layout_of(optimizer_of(options.optimizer.kind), precision);
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
