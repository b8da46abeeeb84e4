#include "tools/plan/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/units.h"
#include "engine/rates/drives.h"
#include "engine/run/start/plan_request.h"
#include "engine/run/start/stopping.h"
#include "engine/run/train/guess_choice.h"
#include "tools/command/progress.h"
#include "tools/command/wrap.h"
#include "tools/plan/token_work.h"

namespace sluice {

namespace {

using nlohmann::ordered_json;

constexpr double kSecondsADay = 86400;
constexpr double kDriveEndurance = 600e12;  // bytes: what makers grant usual drives of 1 TB

// The simulated run has kSteps steps. Step kSteady has neighbours on both sides, so it is steady.
constexpr size_t kSteps = 4, kSteady = 2;

constexpr double kWorthNaming = 0.005;                       // of a step: what is printed as 1 %
constexpr const char* kKinds[] = {"lane", "pool", "drive"};  // Bottleneck::Kind
constexpr size_t kFactsIndent = 17;                          // columns of the headings below the table

std::vector<double> by_lane(const std::vector<WorkSeconds>& sums, size_t lanes) {
  std::vector<double> seconds(lanes);
  for (const WorkSeconds& s : sums) seconds[s.work.lane] += s.seconds;
  return seconds;
}

double sum_of(const std::vector<double>& all) {
  double sum = 0;
  for (const double one : all) sum += one;
  return sum;
}

bool is_trained(const Plan& plan, const UseInfo& use) { return use.layer < plan.model.trained_layers(); }
bool ends_in_loss(const Plan& plan, const UseInfo& use) {
  return plan.model.segments[plan.lowering.plans()[use.plan].segment].loss;
}

std::string percent(double part, double whole) { return fmt::format("{:.0f} %", 100 * part / whole); }

std::string drive_name(const MachineRates& rates, size_t drive) {
  const std::string& tier = rates.drives[drive].tier;
  size_t count = 0, number = 0;
  for (size_t d = 0; d < rates.drives.size(); ++d) {
    count += rates.drives[d].tier == tier;
    if (d == drive) number = count;
  }
  return count == 1 ? printable(tier) : fmt::format("{} {}", printable(tier), number);
}

// `pool` is an index as in lane_slowed: it counts the pools, then the drives.
std::string pool_name(const MachineRates& rates, size_t pool) {
  return pool < rates.pools.size() ? printable(rates.pools[pool].name)
                                   : drive_name(rates, pool - rates.pools.size());
}

// How much longer sharing makes a lane busy, and the pool or drive that costs most.
std::string slowed_words(const MachineRates& rates, const std::vector<double>& by_pool) {
  const auto most = std::max_element(by_pool.begin(), by_pool.end());
  return fmt::format("{:>12} ({})", readable_seconds(sum_of(by_pool)),
                     pool_name(rates, static_cast<size_t>(most - by_pool.begin())));
}

std::string lanes_table(const Machine& machine, const MachineRates& rates, const PlanFacts& f) {
  const auto is_slowed = [&](size_t l) { return sum_of(f.slowed[l]) >= kWorthNaming * f.seconds; };
  bool slowed = false;
  for (size_t l = 0; l < f.busy.size(); ++l) slowed |= is_slowed(l);
  std::string out = fmt::format("  {:<12}{:>20}{:>20}{:>20}{}\n", "a step", "busy", "compute waits for",
                                "critical path", slowed ? "   lost to sharing" : "");
  for (size_t l = 0; l < f.busy.size(); ++l) {
    if (std::max({f.busy[l], f.waited_for[l], f.critical[l]}) < kWorthNaming * f.seconds) continue;
    out += fmt::format("  {:<12}", machine.lanes[l].name);
    for (const double seconds : {f.busy[l], f.waited_for[l], f.critical[l]})
      out += seconds > 0 ? fmt::format("{:>14} {:>5}", readable_seconds(seconds), percent(seconds, f.seconds))
                         : fmt::format("{:>20}", "-");
    out += (is_slowed(l) ? slowed_words(rates, f.slowed[l]) : "") + "\n";
  }
  return out;
}

// Texts for the largest sums, three at most, then one text for the sum of the others.
std::vector<std::string> most_of(const Program& program, const std::vector<WorkSeconds>& sums,
                                 const PlanFacts& f) {
  std::vector<std::string> out;
  double rest = 0;
  for (size_t i = 0; i < sums.size(); ++i)
    if (i == 0 || (i < 3 && sums[i].seconds >= kWorthNaming * f.seconds))
      out.push_back(percent(sums[i].seconds, f.seconds) + " " + work_name(program, sums[i].work));
    else
      rest += sums[i].seconds;
  if (rest >= kWorthNaming * f.seconds) out.push_back(percent(rest, f.seconds) + " other work");
  return out;
}

std::string bottleneck_words(const Plan& plan, const PlanFacts& f) {
  const char* const takes[] = {"work alone takes", "use by all lanes takes", "reads and writes alone take"};
  const auto kind = static_cast<size_t>(f.bottleneck.kind);
  return fmt::format("{} {}: its {} {} ({} of the step), in any order", kKinds[kind],
                     bottleneck_name(plan.program, plan.rates, f.bottleneck), takes[kind],
                     readable_seconds(f.bottleneck.seconds), percent(f.bottleneck.seconds, f.seconds));
}

double written_a_day(const PlanFacts& f) {
  return static_cast<double>(f.bytes_written) / f.seconds * kSecondsADay;
}

double days_to_endurance(const PlanFacts& f) { return kDriveEndurance / (f.drive_part * written_a_day(f)); }

// The largest part of the bytes written to files that one drive gets.
double largest_part(const Machine& machine, const MachineRates& rates) {
  double largest = 0;
  for (const Tier& tier : machine.tiers)
    if (tier.file)
      for (const DrivePart& p : drive_parts(rates.drives, tier.name)) largest = std::max(largest, p.part);
  return largest > 0 ? largest : 1;  // a description without drives counts as one drive
}

// The value with three digits, or, from 1000 on, with all digits before the decimal point.
std::string rounded(double value) {
  return value < 999.5 ? fmt::format("{:.3g}", value) : fmt::format("{:.0f}", value);
}

std::string wear_words(const PlanFacts& f) {
  const double day = written_a_day(f);
  const std::string most = f.drive_part < 1 ? ", " + percent(f.drive_part, 1) + " to one drive" : "";
  return fmt::format("{} written a step{}, {} TB a day{}; 600 TBW last {} days", format_size(f.bytes_written),
                     f.ranks > 1 ? fmt::format(" by {} ranks", f.ranks) : "", rounded(day / 1e12), most,
                     rounded(days_to_endurance(f)));
}

// How long a run of `steps` steps takes, with its checkpoints, and how much these steps write to files.
std::string total_words(const PlanFacts& f, int64_t steps) {
  const double bytes = static_cast<double>(steps) * static_cast<double>(f.bytes_written);
  std::string out = fmt::format("{} step{} take {}", steps, steps == 1 ? "" : "s",
                                format_duration(f.saving.run_seconds(steps)));
  if (f.bytes_written == 0) return out;
  const double part = f.drive_part * bytes / kDriveEndurance;
  return out + fmt::format(" and write {} TB, {} of 600 TBW", rounded(bytes / 1e12),
                           part < 0.01 ? "under 1 %" : percent(part, 1));
}

ordered_json by_name(const Machine& machine, const std::vector<double>& by_lane) {
  ordered_json out = ordered_json::object();
  for (size_t l = 0; l < by_lane.size(); ++l) out[machine.lanes[l].name] = by_lane[l];
  return out;
}

ordered_json works(const Machine& machine, const std::vector<WorkSeconds>& sums) {
  ordered_json out = ordered_json::array();
  for (const WorkSeconds& s : sums) {
    ordered_json row{{"lane", machine.lanes[s.work.lane].name}};
    if (s.work.task) {
      row["task"] = task_kind_name(*s.work.task);
    } else {
      row["class"] = buffer_class_name(s.work.moved);
      row["from"] = machine.tiers[s.work.from].name;
      row["to"] = machine.tiers[s.work.to].name;
    }
    row["seconds"] = s.seconds;
    out.push_back(std::move(row));
  }
  return out;
}

// Where updates run, and what that brings.
std::string update_words(const Plan& plan) {
  int64_t groups = 0, in_backward = 0;
  for (size_t g = 0; g < plan.model.groups.size(); ++g) {
    groups += plan.model.groups[g].trainable;
    in_backward += plan.lowering.groups[g].updated_in_backward;
  }
  const BodyIds& bodies = plan.lowering.bodies();
  if (in_backward == 0)
    return std::string("in the forward of the next step") +
           (plan.lowering.update_waits_for_norm ? ", when the norm of all gradients is known" : "");
  std::string text = fmt::format("in backward for {} of {} parameter groups", in_backward, groups);
  const StepOrders& o = plan.orders;
  if (!bodies.guess) return text;
  text += ", by a guess that a step is not clipped";
  if (!o.guessed) return text;
  text += fmt::format(": {} a step, {} where guesses are wrong", readable_seconds(*o.guessed),
                      readable_seconds(*o.repaired));
  if (std::isfinite(o.plain))
    text += fmt::format(", {} if updates wait for the norm", readable_seconds(o.plain));
  if (bodies.step && o.break_even() < 1)
    text += fmt::format("; not if more than {:.0f} % of the last {} steps were clipped", 100 * o.break_even(),
                        GuessChoice::kSteps);
  return text;
}

}  // namespace

Bottleneck bottleneck_of(const Loads& loads) {
  Bottleneck most;
  const auto consider = [&](Bottleneck::Kind kind, const std::vector<double>& seconds) {
    // If a lane and a pool tie, because the lane alone fills the pool, the lane is named: it says more.
    for (size_t i = 0; i < seconds.size(); ++i)
      if (seconds[i] > most.seconds * (1 + 1e-9)) most = {kind, i, seconds[i]};
  };
  consider(Bottleneck::Kind::lane, loads.lanes);
  consider(Bottleneck::Kind::drive, loads.drives);
  consider(Bottleneck::Kind::pool, loads.pools);
  return most;
}

std::string bottleneck_name(const Program& program, const MachineRates& rates, const Bottleneck& bottleneck) {
  if (bottleneck.kind == Bottleneck::Kind::lane) return program.machine.lanes[bottleneck.index].name;
  if (bottleneck.kind == Bottleneck::Kind::pool) return printable(rates.pools[bottleneck.index].name);
  return drive_name(rates, bottleneck.index);
}

SegmentLevels segment_levels(const Plan& plan) {
  SegmentLevels levels{};
  for (const UseInfo& use : plan.lowering.uses)
    if (is_trained(plan, use) && !ends_in_loss(plan, use)) ++levels[static_cast<size_t>(use.recompute)];
  return levels;
}

std::string levels_words(const SegmentLevels& levels) {
  std::string words;
  for (const Recompute level : kRecomputes)
    if (const uint32_t count = levels[static_cast<size_t>(level)]; count > 0)
      words += fmt::format("{}{} of {}", words.empty() ? "" : ", ", recompute_name(level), count);
  return words + " segments";
}

double recompute_seconds(const Plan& plan) {
  Program program;
  program.machine = plan.program.machine;
  const auto seconds = [&](const PassPlan& pass) {
    program.passes = {pass.work};
    const Task task{.kind = TaskKind::backward, .flops = pass.flops, .bytes = pass.bytes, .pass = 0};
    return task_seconds(program, plan.rates, task);
  };
  double sum = 0;
  for (const UseInfo& use : plan.lowering.uses) {
    if (!is_trained(plan, use) || ends_in_loss(plan, use)) continue;
    const SegmentPlan& segment = plan.lowering.plans()[use.plan];
    sum += seconds(segment.at(use.recompute).backward) - seconds(segment.at(Recompute::none).backward);
  }
  return sum * plan.lowering.micro_batches();
}

PlanFacts facts_of(const Plan& plan, const Options& options) {
  const Program& program = plan.program;
  const std::vector<BodyId> step = plan.lowering.bodies().usual(), sequence = repeated(step, kSteps);
  const size_t lanes = program.machine.lanes.size();
  const SimulationResult run = simulate(program, plan.rates, sequence, true);
  const SimulationResult shorter =
      simulate(program, plan.rates, std::span(sequence).first((kSteps - 1) * step.size()));
  const History history{program, sequence, run.times};
  PlanFacts f;
  f.ranks = plan.lowering.mesh.node_ranks();
  f.seconds = plan.step_seconds;
  f.saving = predicted_saving(options, plan);
  f.slowed = run.lane_slowed;
  for (size_t l = 0; l < lanes; ++l) {
    f.busy.push_back(run.lane_busy[l] - shorter.lane_busy[l]);
    for (size_t p = 0; p < f.slowed[l].size(); ++p) f.slowed[l][p] -= shorter.lane_slowed[l][p];
  }
  std::vector<Charge> charges;
  for (const Idle& idle : idle_intervals(history, compute_lane(program.machine)))
    if (idle.position / step.size() == kSteady)
      charges.insert(charges.end(), idle.charges.begin(), idle.charges.end());
  f.waits = sum_by_work(history, charges, false);
  f.waited_for = by_lane(f.waits, lanes);
  const double end = run.seconds - f.seconds;
  f.path = sum_by_work(history, within(critical_path(history), end - f.seconds, end), false);
  f.critical = by_lane(f.path, lanes);
  f.drive_part = largest_part(program.machine, plan.rates);
  f.bottleneck = bottleneck_of(loads_of(program, plan.rates, step));
  f.bytes_written = f.ranks * bytes_to_files(program, step);
  return f;
}

std::string facts_text(const Plan& plan, const PlanFacts& f, std::optional<int64_t> steps) {
  std::string out = lanes_table(plan.program.machine, plan.rates, f);
  if (sum_of(f.waited_for) >= kWorthNaming * f.seconds)
    append_list(out, "  compute waits", most_of(plan.program, f.waits, f), kFactsIndent);
  append_list(out, "  critical path", most_of(plan.program, f.path, f), kFactsIndent);
  append_wrapped(out, "  updates", update_words(plan), kFactsIndent);
  append_wrapped(out, "  bottleneck", bottleneck_words(plan, f), kFactsIndent);
  const std::string tokens = token_work_words(token_work_of(plan));
  if (!tokens.empty()) append_wrapped(out, "  tokens", tokens, kFactsIndent);
  if (plan.least_seconds > 0)  // 0: the machine description has nothing that takes time
    append_wrapped(out, "  limit",
                   fmt::format("under any placement a step takes {} at least; this is {:.2f} times that",
                               readable_seconds(plan.least_seconds), plan.step_seconds / plan.least_seconds),
                   kFactsIndent);
  if (f.bytes_written > 0) append_wrapped(out, "  drive wear", wear_words(f), kFactsIndent);
  if (steps) append_wrapped(out, "  in all", total_words(f, *steps), kFactsIndent);
  return out;
}

std::string short_wear_text(const PlanFacts& f, int64_t steps) {
  constexpr double kYear = 365;
  if (f.bytes_written == 0 || days_to_endurance(f) >= kYear) return "";
  return fmt::format("  drive wear: {}; {}\n", wear_words(f), total_words(f, steps));
}

std::optional<int64_t> steps_of(const Options& options) {
  return is_given(options, "steps") ? std::optional(options.batch.steps) : std::nullopt;
}

void add_facts(const Plan& plan, const PlanFacts& f, std::optional<int64_t> steps, ordered_json& out) {
  const Machine& machine = plan.program.machine;
  out["lane_busy"] = by_name(machine, f.busy);
  std::vector<double> fractions;
  for (const double busy : f.busy) fractions.push_back(busy / f.seconds);
  out["lane_busy_fraction"] = by_name(machine, fractions);
  out["lane_lost_to_sharing"] = ordered_json::object();
  for (size_t l = 0; l < f.slowed.size(); ++l) {
    ordered_json& pools = out["lane_lost_to_sharing"][machine.lanes[l].name] = ordered_json::object();
    for (size_t p = 0; p < f.slowed[l].size(); ++p)
      if (f.slowed[l][p] > 0) pools[pool_name(plan.rates, p)] = f.slowed[l][p];
  }
  out["compute_waits"] = {{"seconds", sum_of(f.waited_for)}, {"for", works(machine, f.waits)}};
  out["critical_path"] = works(machine, f.path);
  out["least_seconds"] = plan.least_seconds;
  out["bottleneck"] = {{"kind", kKinds[static_cast<size_t>(f.bottleneck.kind)]},
                       {"name", bottleneck_name(plan.program, plan.rates, f.bottleneck)},
                       {"seconds", f.bottleneck.seconds},
                       {"fraction", f.bottleneck.seconds / f.seconds}};
  add_token_work(token_work_of(plan), out);
  if (steps)
    out["total"] = {{"steps", *steps},
                    {"seconds", f.saving.run_seconds(*steps)},
                    {"bytes_written", static_cast<uint64_t>(*steps) * f.bytes_written}};
  if (f.bytes_written == 0) return;
  out["drive_wear"] = {{"bytes_per_step", f.bytes_written},
                       {"bytes_per_day", written_a_day(f)},
                       {"largest_part_of_a_drive", f.drive_part},
                       {"days_to_600_tbw", days_to_endurance(f)}};
}

}  // namespace sluice
