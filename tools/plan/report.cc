#include "tools/plan/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/units.h"
#include "engine/graph/imbalance.h"
#include "engine/profile/occupancy.h"
#include "engine/profile/what_if.h"
#include "engine/rates/network.h"
#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/start/plan_request.h"
#include "engine/run/start/planning.h"
#include "engine/run/start/stopping.h"
#include "engine/run/train/trainer.h"
#include "tools/plan/explain.h"
#include "tools/plan/facts.h"
#include "tools/plan/generation.h"

namespace sluice {

namespace {

using nlohmann::ordered_json;

using ByClassAndTier = std::map<BufferClass, std::vector<uint64_t>>;  // bytes

ByClassAndTier nothing_of(const Program& program) {
  ByClassAndTier out;
  for (const Buffer& b : program.buffers) out[b.kind].resize(program.machine.tiers.size());
  return out;
}

ByClassAndTier permanent_of(const Program& program) {
  ByClassAndTier out = nothing_of(program);
  const std::vector<ClassBytes> bytes = permanent_bytes(program);
  for (auto& [kind, tiers] : out)
    for (size_t t = 0; t < tiers.size(); ++t) tiers[t] = bytes[t][static_cast<size_t>(kind)];
  return out;
}

// The most that transient buffers of a class take of a tier at once, in any body.
ByClassAndTier transient_of(const Program& program) {
  ByClassAndTier most = nothing_of(program);
  for (const Body& body : program.bodies) {
    // A change at 2 i is the start of a stay at instruction i. A change at 2 i + 1 is the end of a stay
    // there.
    std::vector<std::pair<uint32_t, const Stay*>> changes;
    const std::vector<Stay> stays = stays_of(program, body);
    for (const Stay& s : stays)
      if (!s.staged) changes.insert(changes.end(), {{2 * s.first, &s}, {2 * s.last + 1, &s}});
    std::sort(changes.begin(), changes.end());
    ByClassAndTier now = nothing_of(program);
    for (const auto& [when, s] : changes) {
      const BufferClass kind = program.buffers[s->buffer].kind;
      uint64_t& bytes = now[kind][s->tier];
      bytes = when % 2 == 0 ? bytes + s->bytes : bytes - s->bytes;
      most[kind][s->tier] = std::max(most[kind][s->tier], bytes);
    }
  }
  return most;
}

// The heading, and a row for each class that has bytes.
std::string table_of(const char* heading, const Machine& machine, const ByClassAndTier& bytes) {
  std::string out = fmt::format("  {:<12}", heading);
  for (const Tier& t : machine.tiers) out += fmt::format("{:>14}", t.name);
  for (const auto& [kind, tiers] : bytes) {
    if (std::all_of(tiers.begin(), tiers.end(), [](uint64_t n) { return n == 0; })) continue;
    out += fmt::format("\n  {:<12}", buffer_class_name(kind));
    for (const uint64_t n : tiers) out += fmt::format("{:>14}", n ? format_size(n) : "-");
  }
  return out + "\n";
}

}  // namespace

std::string counted(int64_t count, const char* one, const char* several) {
  return fmt::format("{} {}", count, count == 1 ? one : several);
}

namespace {

// For each network level: its name, who sends over it (ranks, or members of the level below), and how many
// bytes each sender sends in a step.
struct LevelBytes {
  std::string level, unit;
  uint64_t bytes;
};
std::vector<LevelBytes> sent_over_network(const Plan& plan) {
  const std::vector<uint64_t> bytes =
      network_bytes(plan.program, plan.rates.network, plan.lowering.bodies().usual());
  std::vector<LevelBytes> levels;
  for (size_t l = 0; l < bytes.size(); ++l)
    levels.push_back(
        {printable(plan.rates.network[l].name), l == 0 ? "rank" : levels.back().level, bytes[l]});
  return levels;
}

// Says in how many waves micro-batches run. "" if there is only one micro-batch.
std::string waves_text(const Plan& plan) {
  const Lowering& l = plan.lowering;
  if (l.micro_batches() == 1) return "";
  if (l.waves == 1) return "  one wave: a layer runs with all micro-batches before the next layer does\n";
  return fmt::format("  {} waves of {}, one after the other\n", l.waves,
                     counted(l.slices, "micro-batch", "micro-batches"));
}

std::string ranks_text(const Plan& plan) {
  if (plan.lowering.mesh.ranks() == 1) return "";
  const uint32_t over = plan.lowering.mesh.size(Axis::expert);
  return fmt::format(
      "  {} ranks at ZeRO stage {}{}, {} on a node{}, each with:\n", plan.lowering.mesh.ranks(),
      plan.lowering.sharing.zero_stage, plan.lowering.sharing.weights_in_node_group ? " within nodes" : "",
      plan.lowering.mesh.node_ranks(), over > 1 ? fmt::format(", experts divided over {}", over) : "");
}

std::string network_text(const Plan& plan) {
  std::string out;
  for (const LevelBytes& l : sent_over_network(plan))
    out +=
        fmt::format("{} {} over {} by a {}", out.empty() ? "" : ",", format_size(l.bytes), l.level, l.unit);
  return out.empty() ? "" : "  sent a step:" + out + "\n";
}

double tokens_per_second(const Plan& plan) { return tokens_of(plan) / plan.step_seconds; }

// The time of a step with its share of the checkpoints during the run. "" if the share does not show in three
// digits.
std::string saving_text(const Plan& plan, const Saving& saving) {
  constexpr double kShows = 1.005;
  const double mean = saving.mean_step();
  if (mean < kShows * saving.step_seconds) return "";
  return fmt::format("  with a checkpoint every {}: {} a step, {:.0f} tokens/s\n",
                     saving.steps == 1 ? "step" : fmt::format("{} steps", saving.steps),
                     readable_seconds(mean), tokens_of(plan) / mean);
}

std::string device_name(const Options& options) {
  return option_values(options, *find_option("device")).front();
}

// Says how many parameters are trained. "" if all are.
std::string trained_words(const Model& model) {
  const uint64_t trained = parameter_count(model, true);
  return trained == parameter_count(model) ? "" : fmt::format(" ({} trained)", trained);
}

// What predictions assume of a mixture of experts.
std::string experts_text(const Model& model) {
  const double imbalance = assumed_imbalance(model);
  if (imbalance == 0) return "";
  if (imbalance == 1) return "  experts: predicted as if all had equally many rows (--imbalance 1)\n";
  return fmt::format(
      "  experts: predicted as if one of each layer had {:.4g} times the mean of rows, and the others "
      "equally many\n",
      imbalance);
}

// Page tables are counted for the host memory that may be pinned. plan_within() may keep that memory below
// the host budget.
std::string outside_device_text(const Machine& machine, const Budgets& budgets) {
  const TierBudget& device = *budgets.device;
  const uint64_t arena = machine.tiers.front().capacity;
  std::string out = fmt::format("  outside the device arena: {} for the driver, libraries and page tables\n",
                                format_size(device.reserve - (arena - std::min(arena, device.arena))));
  if (arena > device.arena)
    out +=
        fmt::format("  of --{} {}, at most {} are used: page tables of more would leave too little of --{}\n",
                    budgets.host.option, format_size(budgets.host.limit),
                    format_size(machine.tiers[lowest_memory_tier(machine)].capacity), device.option);
  return out;
}

void add_budgets(const Budgets& budgets, ordered_json& out) {
  for (const TierBudget* row : budgets.by_tier()) out["budgets"][row->tier] = row->limit;
  out["runtime_reserve"] = budgets.host.reserve;
  if (budgets.device && budgets.device->driver) out["device_reserve"] = budgets.device->reserve;
}

}  // namespace

std::string device_text(const Plan& plan, const Options& options) {
  return fmt::format("  on the {} device, at the rates of {}\n", device_name(options),
                     printable(plan.rates.name));
}

std::string memory_text(const Plan& plan, const Budgets& budgets) {
  const Program& p = plan.program;
  std::string out;
  out += table_of("permanent", p.machine, permanent_of(p));
  out += table_of("at once", p.machine, transient_of(p));
  out += fmt::format("  {:<12}", "arena");
  for (const uint64_t bytes : p.arena_bytes) out += fmt::format("{:>14}", format_size(bytes));
  out += fmt::format("\n  {:<12}", "allowed");
  for (const Tier& t : p.machine.tiers) out += fmt::format("{:>14}", format_size(t.capacity));
  const uint64_t host = p.arena_bytes[lowest_memory_tier(p.machine)];
  out += fmt::format(
      "\n  outside the host arena: {} for libraries, stacks, checksums and the program\n",
      format_size(budgets.host.reserve + plan.program_bytes + budgets.host.taken_by(host) - host));
  if (budgets.device && budgets.device->driver) out += outside_device_text(p.machine, budgets);
  return out;
}

std::string plan_text(const Plan& plan, const Budgets& budgets, const Options& options,
                      const std::optional<BreakEven>& even) {
  const Program& p = plan.program;
  std::string out =
      fmt::format("{} parameters{}, {} of {} a micro-batch, {} a step\n", parameter_count(plan.model),
                  trained_words(plan.model), counted(plan.model.micro_batch, "sequence", "sequences"),
                  counted(plan.model.sequence, "token", "tokens"),
                  counted(plan.lowering.micro_batches(), "micro-batch", "micro-batches"));
  out += device_text(plan, options);
  out += experts_text(plan.model);
  out += fmt::format("  recompute {}: {} a step\n", levels_words(segment_levels(plan)),
                     readable_seconds(recompute_seconds(plan)));
  out += waves_text(plan);
  out += ranks_text(plan);
  out += memory_text(plan, budgets);
  out += "  moved a step:";
  const std::vector<uint64_t> moved = moved_bytes(plan, plan.lowering.bodies().usual());
  for (size_t l = 0; l < moved.size(); ++l)
    if (moved[l]) out += fmt::format(" {} {}", p.machine.lanes[l].name, format_size(moved[l]));
  if (std::all_of(moved.begin(), moved.end(), [](uint64_t bytes) { return bytes == 0; })) out += " nothing";
  out += "\n" + network_text(plan);
  out += fmt::format("  predicted: {} a step, {:.0f} tokens/s ({} candidates weighed){}\n",
                     readable_seconds(plan.step_seconds), tokens_per_second(plan), plan.candidates,
                     options.memory.machine.empty() ? ", at another machine's rates" : "");
  if (plan.lowering.mesh.ranks() == 1 && options.ranks.compression.rank > 0)
    out += "  one rank sends nothing: --compress changes nothing\n";
  out += phases_text(plan, even);
  out += samples_text(plan, options);
  out += fmt::format("  a checkpoint takes {}", format_size(checkpoint_bytes(plan, options.optimizer.kind)));
  if (const std::optional<StopTime> stop = stop_time(plan))
    out += fmt::format(" and {}{}; a stop, from the signal on, up to {}", readable_seconds(stop->checkpoint),
                       plan.rates.network.size() > 1 ? ", sent to an --out that the nodes share" : "",
                       readable_seconds(stop->longest));
  return out + "\n" + saving_text(plan, predicted_saving(options, plan));
}

std::string plan_json(const Plan& plan, const Budgets& budgets, const Options& options,
                      const std::optional<BreakEven>& even) {
  const Program& p = plan.program;
  ordered_json out;
  out["feasible"] = true;
  out["device"] = device_name(options);
  out["machine"] = printable(plan.rates.name);
  out["seconds_predicted"] = plan.step_seconds;
  out["tokens_per_second"] = tokens_per_second(plan);
  if (plan.orders.guessed)
    out["updates"] = {
        {"seconds_guessed", *plan.orders.guessed},
        {"seconds_repaired", *plan.orders.repaired},
        {"seconds_plain", std::isfinite(plan.orders.plain) ? ordered_json(plan.orders.plain) : nullptr},
        {"break_even", plan.orders.break_even()}};
  else
    out["updates"] = nullptr;
  out["micro_batch"] = plan.model.micro_batch;
  out["waves"] = plan.lowering.waves;
  out["sequence"] = plan.model.sequence;
  out["ranks"] = plan.lowering.mesh.ranks();
  if (plan.lowering.mesh.ranks() > 1) {
    out["ranks_per_node"] = plan.lowering.mesh.node_ranks();
    out["zero_stage"] = plan.lowering.sharing.zero_stage;
    out["experts_over"] = plan.lowering.mesh.size(Axis::expert);
    out["weights_in_machines"] = plan.lowering.sharing.weights_in_node_group;
    out["ranks_exchange_in"] = exchange_tier(p.machine).name;
    for (const LevelBytes& l : sent_over_network(plan))
      out["network_bytes"][l.level] = {{"unit", l.unit}, {"bytes", l.bytes}};
  }
  if (const double imbalance = assumed_imbalance(plan.model); imbalance > 0) out["imbalance"] = imbalance;
  out["parameters"] = parameter_count(plan.model);
  out["parameters_trained"] = parameter_count(plan.model, true);
  ordered_json recompute = ordered_json::array();
  for (const UseInfo& use : plan.lowering.uses)
    if (use.layer < plan.model.trained_layers()) recompute.push_back(recompute_name(use.recompute));
  out["recompute"] = recompute;
  out["recompute_seconds"] = recompute_seconds(plan);
  for (size_t t = 0; t < p.arena_bytes.size(); ++t) out["arenas"][p.machine.tiers[t].name] = p.arena_bytes[t];
  for (const Body& body : p.bodies)
    for (size_t t = 0; t < body.peak_bytes.size(); ++t)
      out["body_peaks"][body.name][p.machine.tiers[t].name] = body.peak_bytes[t];
  add_budgets(budgets, out);
  out["program_bytes"] = plan.program_bytes;
  const ByClassAndTier transient = transient_of(p);
  for (const auto& [kind, tiers] : permanent_of(p))
    for (size_t t = 0; t < tiers.size(); ++t)
      out["homes"][buffer_class_name(kind)][p.machine.tiers[t].name] = tiers[t] + transient.at(kind)[t];
  const std::vector<uint64_t> moved = moved_bytes(plan, plan.lowering.bodies().usual());
  for (size_t l = 0; l < moved.size(); ++l) out["moved_bytes"][p.machine.lanes[l].name] = moved[l];
  add_facts(plan, facts_of(plan, options), steps_of(options), out);
  add_phases(plan, even, out);
  if (plan.model.samples()) add_samples(plan, options, out["samples"]);
  out["checkpoint_bytes"] = checkpoint_bytes(plan, options.optimizer.kind);
  const std::optional<StopTime> stop = stop_time(plan);
  out["checkpoint_seconds"] = stop ? ordered_json(stop->checkpoint) : ordered_json();
  out["stop_seconds"] = stop ? ordered_json(stop->longest) : ordered_json();
  const Saving saving = predicted_saving(options, plan);
  out["checkpoint_every"] = saving.steps;
  out["seconds_with_checkpoints"] = stop ? ordered_json(saving.mean_step()) : ordered_json();
  out["tokens_per_second_with_checkpoints"] =
      stop ? ordered_json(tokens_of(plan) / saving.mean_step()) : ordered_json();
  if (options.plan.explain) add_weighed(plan, out);
  out["smallest_budgets"] = nullptr;
  return out.dump(2) + "\n";
}

std::string infeasible_json(const PlanRequest& request, const Infeasible& why, const Budgets& budgets,
                            const Options& options) {
  ordered_json out;
  out["feasible"] = false;
  out["device"] = device_name(options);
  out["machine"] = printable(request.rates.name);
  out["reason"] = infeasible_error(request, why, budgets).what();
  out["micro_batch"] = why.micro_batch;
  add_budgets(budgets, out);
  const std::vector<const TierBudget*> rows = budgets.by_tier();
  const std::vector<uint64_t> limits = budgets.limits_for(why.least_together);
  const std::vector<std::optional<uint64_t>> alone = budgets.limits_alone(why.least, why.least_together);
  ordered_json smallest, together;
  for (size_t t = 0; t < rows.size(); ++t) {
    smallest[rows[t]->tier] = alone[t] ? ordered_json(*alone[t]) : ordered_json();
    together[rows[t]->tier] = limits[t];
  }
  smallest["together"] = together;
  out["smallest_budgets"] = smallest;
  return out.dump(2) + "\n";
}

}  // namespace sluice
