#include "tools/plan/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/suggest.h"
#include "engine/base/units.h"
#include "engine/profile/what_if.h"
#include "engine/rates/drives.h"
#include "engine/run/options/size.h"
#include "engine/run/start/planned_run.h"
#include "engine/run/start/planning.h"
#include "engine/simulate/simulate.h"
#include "gpu/machine.h"
#include "tools/command/progress.h"
#include "tools/command/screen.h"
#include "tools/command/wrap.h"
#include "tools/plan/facts.h"

namespace sluice {

namespace {

using nlohmann::ordered_json;

struct Quantity {
  const char* name;
  bool bytes;  // true: bytes (a second), in 8 to 16 equal factors; false: a count, which is doubled
  void (*set)(Options&, uint64_t);  // throws Error(usage) where the option would; nullptr: `scale` is used
  void (*scale)(MachineRates&, uint64_t);
};

Size bytes_of(uint64_t value) { return {Size::Kind::bytes, value, 0}; }

void set_count(Options& options, const char* name, uint64_t value) {
  set_option(options, *find_option(name), {std::to_string(value)});
}

// Scales the rates of all NVMe drives, so that together they read `value` bytes a second. Writing keeps its
// proportion to reading.
void set_drives(MachineRates& rates, uint64_t value) {
  double now = 0;
  for (const DriveRates& d : rates.drives)
    if (d.tier == kNvmeTier) now += d.read;
  for (DriveRates& d : rates.drives)
    if (d.tier == kNvmeTier)
      for (double* rate : {&d.read, &d.write, &d.mixed}) *rate *= static_cast<double>(value) / now;
}

constexpr Quantity kQuantities[] = {
    {"host-mem", true, [](Options& o, uint64_t v) { o.memory.host = bytes_of(v); }, nullptr},
    {"gpu-mem", true, [](Options& o, uint64_t v) { o.memory.gpu = bytes_of(v); }, nullptr},
    {"nvme-mem", true, [](Options& o, uint64_t v) { o.memory.nvme = bytes_of(v); }, nullptr},
    {"nvme-bandwidth", true, nullptr, set_drives},
    {"batch", false, [](Options& o, uint64_t v) { set_count(o, "batch", v); }, nullptr},
    {"ranks", false, [](Options& o, uint64_t v) { set_count(o, "ranks", v); }, nullptr},
};

constexpr const char* kExample =
    "Write --sweep as in host-mem=8GiB:256GiB, nvme-bandwidth=1GB:20GB or batch=1:64.";

const Quantity& quantity_named(const std::string& name) {
  std::vector<std::string> names;
  for (const Quantity& q : kQuantities) {
    if (name == q.name) return q;
    names.emplace_back(q.name);
  }
  const std::string near = did_you_mean(name, names);
  throw Error(ExitCode::usage, fmt::format("--sweep does not know the quantity `{}`.", printable(name)),
              near.empty() ? fmt::format("It may be one of: {}.", fmt::join(names, ", ")) : near);
}

uint64_t end_of_range(const Quantity& quantity, const std::string& text) {
  try {
    const Size size = parse_size(text, "sweep");
    if (size.kind == Size::Kind::bytes && size.bytes > 0) return size.bytes;
  } catch (const Error&) {  // its remedy is for options whose value is one size
  }
  throw Error(ExitCode::usage,
              fmt::format("`{}` cannot begin or end a range of {}.", printable(text), quantity.name),
              kExample);
}

struct Sweep {
  const Quantity* quantity;
  std::vector<uint64_t> values;
};

// Values from `from` to `to`, both included, that grow by equal factors.
std::vector<uint64_t> spread(uint64_t from, uint64_t to) {
  constexpr double kFew = 8, kMany = 16;
  const double ratio = static_cast<double>(to) / static_cast<double>(from);
  const auto steps = static_cast<uint64_t>(std::clamp(std::ceil(2 * std::log2(ratio)), kFew, kMany));
  std::vector<uint64_t> values{from};
  for (uint64_t i = 1; i < steps; ++i) {
    const double value =
        static_cast<double>(from) * std::pow(ratio, static_cast<double>(i) / static_cast<double>(steps));
    if (value < static_cast<double>(to)) values.push_back(static_cast<uint64_t>(value));
  }
  values.push_back(to);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

Sweep parse_sweep(const std::string& text) {
  const size_t equals = text.find('='), colon = text.find(':', equals == std::string::npos ? 0 : equals);
  if (equals == std::string::npos || colon == std::string::npos)
    throw Error(ExitCode::usage, fmt::format("`{}` is not QUANTITY=FROM:TO.", printable(text)), kExample);
  Sweep sweep{&quantity_named(text.substr(0, equals)), {}};
  const uint64_t from = end_of_range(*sweep.quantity, text.substr(equals + 1, colon - equals - 1));
  const uint64_t to = end_of_range(*sweep.quantity, text.substr(colon + 1));
  if (from >= to)
    throw Error(ExitCode::usage, fmt::format("The range {} of --sweep is empty.", printable(text)),
                "Give two values, the smaller one before the colon.");
  if (sweep.quantity->bytes) {
    sweep.values = spread(from, to);
  } else {
    sweep.values.push_back(from);
    while (sweep.values.back() <= to / 2) sweep.values.push_back(2 * sweep.values.back());
    if (sweep.values.back() < to) sweep.values.push_back(to);
  }
  return sweep;
}

// `notes`: what is assumed for this point, as sentences.
SweepPoint plan_point(Options options, const Quantity& quantity, uint64_t value,
                      std::vector<std::string>& notes) {
  options.plan.sweep.clear();
  if (quantity.set) {
    quantity.set(options, value);
    options.given.emplace_back(quantity.name);
  }
  PlannedRun run = planned_run(std::move(options));
  if (quantity.scale) {
    if (!run.request.machine.tiers.back().file)
      throw Error(ExitCode::usage, "The run has no NVMe tier whose bandwidth could be swept.",
                  "Add --nvme-dir DIR or --nvme-mem SIZE.");
    if (drive_parts(run.request.rates.drives, kNvmeTier).empty())
      throw Error(
          ExitCode::usage, "The machine description has no drives to sweep.",
          "Give --machine a description with drives; `sluice bench --nvme-dir DIR` describes this machine.");
    quantity.scale(run.request.rates, value);
  }
  notes = run.start.notes;
  notes.insert(notes.end(), run.budgets.notes.begin(), run.budgets.notes.end());
  SweepPoint point{.value = value};
  const auto result = plan_within(run.request, run.budgets);
  const Plan* const plan = std::get_if<Plan>(&result);
  if (!plan) {
    point.reason = infeasible_error(run.request, std::get<Infeasible>(result), run.budgets).what();
    return point;
  }
  point.feasible = true;
  point.step_seconds = plan->step_seconds;
  point.token_seconds = plan->step_seconds / tokens_of(*plan);
  point.least_seconds = plan->least_seconds;
  const Loads loads = loads_of(plan->program, plan->rates, plan->lowering.bodies().usual());
  const Bottleneck bottleneck = bottleneck_of(loads);
  point.bottleneck = bottleneck_name(plan->program, plan->rates, bottleneck);
  point.bottleneck_fraction = bottleneck.seconds / plan->step_seconds;
  point.work = token_work_of(*plan);
  point.sequence = plan->model.sequence;
  point.parameters = parameter_count(plan->model);
  return point;
}

// Shows on a terminal what is under way, since a large batch takes a minute to plan. Writes are not checked:
// a closed terminal must not end a sweep.
void rewrite_line(const std::string& text) {
  if (!screen_of(stderr).is_terminal) return;
  constexpr size_t kColumns = 30;  // no text is longer
  std::fputs(("\r" + std::string(kColumns, ' ') + "\r" + text).c_str(), stderr);
  std::fflush(stderr);
}

// Throws the error of the first value if all are refused. `notes` gets the notes of the last value that is
// accepted.
std::vector<SweepPoint> plan_points(const Options& options, const Sweep& sweep,
                                    std::vector<std::string>& notes) {
  std::vector<SweepPoint> points;
  std::optional<Error> first;
  for (const uint64_t value : sweep.values) {
    rewrite_line(fmt::format("planning {} of {}", points.size() + 1, sweep.values.size()));
    try {
      points.push_back(plan_point(options, *sweep.quantity, value, notes));
    } catch (const Error& error) {
      rewrite_line("");  // clears the line for the error
      if (error.code() != ExitCode::usage) throw;
      if (points.empty()) first = error;
      points.push_back({.value = value, .refused = true, .reason = error.what()});
    }
  }
  rewrite_line("");
  if (std::all_of(points.begin(), points.end(), [](const SweepPoint& p) { return p.refused; })) throw *first;
  return points;
}

std::string value_text(const Quantity& quantity, uint64_t value) {
  if (!quantity.bytes) return fmt::format("{}", value);
  return quantity.scale ? fmt::format("{:.3g} GB/s", static_cast<double>(value) / 1e9) : format_size(value);
}

std::string row_of(const Quantity& quantity, const SweepPoint& p) {
  const std::string head = fmt::format("  {:<16}", value_text(quantity, p.value));
  if (p.refused) return fmt::format("{}  {}\n", head, p.reason);
  if (!p.feasible) return head + "  does not fit\n";
  const std::string bottleneck = fmt::format("{} {:.0f} %", p.bottleneck, 100 * p.bottleneck_fraction);
  return fmt::format("{}{:>12}{:>14.1f}{:>12.2f}   {}\n", head, readable_seconds(p.step_seconds),
                     1 / p.token_seconds, p.step_seconds / p.least_seconds,
                     p.knee ? fmt::format("{:<20}knee", bottleneck) : bottleneck);
}

// Whether the steps of feasible points have different numbers of tokens.
bool tokens_differ(std::span<const SweepPoint> points) {
  uint64_t most = 0, least = UINT64_MAX;
  for (const SweepPoint& p : points) {
    if (!p.feasible) continue;
    most = std::max(most, p.work.tokens);
    least = std::min(least, p.work.tokens);
  }
  return least < most;
}

// A drawing of seconds over the points, from zero up, with knees marked. The seconds are those of a step, or
// of a token if the steps have different numbers of tokens.
std::string curve(const Quantity& quantity, std::span<const SweepPoint> points) {
  constexpr int kRows = 12, kColumns = 4;
  if (std::ranges::none_of(points, &SweepPoint::feasible)) return "";
  double most = 0;
  const bool of_token = tokens_differ(points);
  const auto height = [&](const SweepPoint& p) { return of_token ? p.token_seconds : p.step_seconds; };
  for (const SweepPoint& p : points) most = std::max(most, height(p));
  std::string out = of_token ? "\n  a token\n" : "\n  a step\n";
  for (int row = kRows; row >= 0; --row) {
    std::string line = row % (kRows / 3) == 0 ? fmt::format("{:>10} |", readable_seconds(most * row / kRows))
                                              : fmt::format("{:>10} |", "");
    for (const SweepPoint& p : points) {
      const bool here = p.feasible && std::lround(height(p) / most * kRows) == row;
      line += fmt::format("{:>{}}", here ? (p.knee ? "K" : "*") : row == 0 ? "-" : "", kColumns);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  const size_t width = points.size() * kColumns;
  out += fmt::format("{:>14}{:>{}}\n", value_text(quantity, points.front().value),
                     value_text(quantity, points.back().value), width);
  std::string knees;
  for (const SweepPoint& p : points)
    if (p.knee) knees += (knees.empty() ? "" : ", ") + value_text(quantity, p.value);
  return out + (knees.empty()
                    ? "  No knee: there is no point up to which more brings much, and beyond which it brings "
                      "little.\n"
                    : fmt::format("  K, at {}: up to this point more brings much, just beyond it little.\n",
                                  knees));
}

// The text below a sweep over several numbers of tokens. It says from which number on weights and state are
// not the bottleneck.
std::string token_work_text(std::span<const SweepPoint> points) {
  if (!tokens_differ(points)) return "";
  std::vector<TokenWork> plans;
  for (const SweepPoint& p : points)
    if (p.feasible) plans.push_back(p.work);
  int64_t sequence = 0;
  for (const SweepPoint& p : points) sequence = std::max(sequence, p.sequence);
  std::string out;
  append_wrapped(out, " ", token_work_sentence(plans, sequence, points.back().feasible), 2);
  return out;
}

ordered_json json_of(const Quantity& quantity, std::span<const SweepPoint> points) {
  ordered_json out{{"quantity", quantity.name}, {"points", ordered_json::array()}};
  std::vector<TokenWork> plans;
  for (const SweepPoint& p : points) {
    ordered_json row{{"value", p.value}, {"feasible", p.feasible}};
    if (!p.feasible) row["reason"] = p.reason;
    if (p.feasible) {
      row["seconds_predicted"] = p.step_seconds;
      row["tokens_per_second"] = 1 / p.token_seconds;
      row["least_seconds"] = p.least_seconds;
      row["bottleneck"] = p.bottleneck;
      row["bottleneck_fraction"] = p.bottleneck_fraction;
      row["knee"] = p.knee;
      add_token_work(p.work, row);
      plans.push_back(p.work);
    }
    out["points"].push_back(row);
  }
  out["tokens_that_suffice"] = nullptr;
  if (tokens_differ(points))
    if (const std::optional<double> tokens = tokens_to_suffice(plans)) out["tokens_that_suffice"] = *tokens;
  return out;
}

}  // namespace

void mark_knees(std::span<SweepPoint> points) {
  constexpr double kMuch = 0.05, kLittle = 0.25;
  const auto doublings = [](const SweepPoint& from, const SweepPoint& to) {
    return std::log2(static_cast<double>(to.value) / static_cast<double>(from.value));
  };
  for (size_t i = 1; i + 1 < points.size(); ++i) {
    SweepPoint &before = points[i - 1], &here = points[i], &after = points[i + 1];
    if (!before.feasible || !here.feasible || !after.feasible) continue;
    const double gained = (before.token_seconds - here.token_seconds) / doublings(before, here);
    const double to_gain = (here.token_seconds - after.token_seconds) / doublings(here, after);
    here.knee = gained >= kMuch * before.token_seconds && to_gain < kLittle * gained;
  }
}

ExitCode run_sweep(const Options& options, std::FILE* out) {
  const Sweep sweep = parse_sweep(options.plan.sweep);
  if (Options largest = options; sweep.quantity->set)  // a refusal comes before time is spent on planning
    sweep.quantity->set(largest, sweep.values.back());
  std::vector<std::string> notes;
  std::vector<SweepPoint> points = plan_points(options, sweep, notes);
  mark_knees(points);
  if (options.print.json) {
    std::fputs((json_of(*sweep.quantity, points).dump(2) + "\n").c_str(), out);
    return ExitCode::done;
  }
  std::string text;
  for (const std::string& note : notes) text += note + "\n";
  if (const auto one = std::ranges::find_if(points, &SweepPoint::feasible); one != points.end())
    text += fmt::format("{} parameters, sequences of {} tokens\n", one->parameters, one->sequence);
  text += fmt::format("  {:<16}{:>12}{:>14}{:>12}   {}\n", sweep.quantity->name, "a step", "tokens/s",
                      "x limit", "bottleneck");
  for (const SweepPoint& p : points) text += row_of(*sweep.quantity, p);
  show(out, text + curve(*sweep.quantity, points) + token_work_text(points));
  return ExitCode::done;
}

}  // namespace sluice
