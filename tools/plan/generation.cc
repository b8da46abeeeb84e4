#include "tools/plan/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "engine/base/units.h"
#include "engine/run/start/generation_request.h"
#include "engine/run/start/planning.h"
#include "engine/run/start/run_data.h"
#include "engine/simulate/simulate.h"
#include "models/text/samples/generation_settings.h"
#include "tools/command/screen.h"
#include "tools/command/waiting.h"
#include "tools/plan/report.h"

namespace sluice {

namespace {

// A reading, simulated alone. It begins when the reading before has ended, since its tokens follow from that
// reading.
struct ReadingRate {
  const Reading* reading;
  double seconds = 0, tokens_per_second = 0;
};

std::vector<ReadingRate> rates_of(const Plan& plan) {
  std::vector<ReadingRate> rates;
  for (size_t r = 0; r < plan.model.readings.size(); ++r) {
    const Reading& reading = plan.model.readings[r];
    const std::array body = {plan.lowering.bodies().readings[r]};
    const double seconds = simulate(plan.program, plan.rates, body).seconds;
    rates.push_back({&reading, seconds, static_cast<double>(reading.sequences * reading.tokens) / seconds});
  }
  return rates;
}

uint64_t cache_bytes(const Model& model) {
  uint64_t bytes = 0;
  for (const Activation& a : model.activations)
    if (a.kept) bytes += static_cast<uint64_t>(element_count(a.shape)) * dtype_bytes(a.dtype);
  return bytes;
}

std::string text_of(const Plan& plan, const Budgets& budgets, const Options& options) {
  const Model& m = plan.model;
  std::string out = fmt::format("{} parameters, {} of up to {} at once, cached in {}\n", parameter_count(m),
                                counted(m.micro_batch, "sequence", "sequences"),
                                counted(m.sequence, "token", "tokens"), format_size(cache_bytes(m)));
  out += device_text(plan, options);
  out += memory_text(plan, budgets);
  for (const ReadingRate& r : rates_of(plan))
    out += fmt::format("  predicted: {} {} of each sequence in {}, {} tokens/s\n", r.reading->name,
                       counted(r.reading->tokens, "token", "tokens"), readable_seconds(r.seconds),
                       r.tokens_per_second < 100 ? fmt::format("{:.3g}", r.tokens_per_second)
                                                 : fmt::format("{:.0f}", r.tokens_per_second));
  return out;
}

void add_readings(const Plan& plan, nlohmann::ordered_json& out) {
  for (const ReadingRate& r : rates_of(plan))
    out["readings"][r.reading->name] = {{"tokens", r.reading->tokens},
                                        {"seconds_predicted", r.seconds},
                                        {"tokens_per_second", r.tokens_per_second}};
}

std::string json_of(const Plan& plan, const Budgets& budgets) {
  nlohmann::ordered_json out;
  out["feasible"] = true;
  out["machine"] = printable(plan.rates.name);
  out["parameters"] = parameter_count(plan.model);
  out["sequences"] = plan.model.micro_batch;
  out["context"] = plan.model.sequence;
  out["cache_bytes"] = cache_bytes(plan.model);
  add_readings(plan, out);
  for (size_t t = 0; t < plan.program.arena_bytes.size(); ++t)
    out["arenas"][plan.program.machine.tiers[t].name] = plan.program.arena_bytes[t];
  for (const TierBudget* row : budgets.by_tier()) out["budgets"][row->tier] = row->limit;
  return out.dump(2) + "\n";
}

}  // namespace

std::string samples_text(const Plan& plan, const Options& options) {
  if (!plan.model.samples()) return "";
  const std::vector<ReadingRate> rates = rates_of(plan);
  const Reading &decode = *rates.front().reading, &prefill = *rates.back().reading;
  const int64_t tokens = std::min(options.sample.tokens, decode.context);
  return fmt::format(
      "  samples every {}: {} of up to {} at once, cached in {}; {} of each prompt read in {}, {} written in "
      "{}\n",
      counted(options.sample.every, "step", "steps"), counted(decode.sequences, "sequence", "sequences"),
      counted(decode.context, "token", "tokens"), format_size(cache_bytes(plan.model)),
      counted(prefill.tokens, "token", "tokens"), readable_seconds(rates.back().seconds),
      counted(tokens, "token", "tokens"),
      readable_seconds(static_cast<double>(tokens) * rates.front().seconds));
}

void add_samples(const Plan& plan, const Options& options, nlohmann::ordered_json& out) {
  out["every"] = options.sample.every;
  out["sequences"] = plan.model.readings.front().sequences;
  out["context"] = plan.model.readings.front().context;
  out["cache_bytes"] = cache_bytes(plan.model);
  add_readings(plan, out);
}

ExitCode plan_generation(PlannedRun run, std::FILE* out) {
  Options& options = run.options;
  const int64_t sequences = is_given(options, "batch") ? options.batch.batch : 1;
  const ModelConfig& config = run.start.source.config;
  for (const std::string& note : apply_generation_settings(
           options, read_generation_settings(text_directory(run.start)), config.context))
    run.start.notes.push_back(note);
  const GenerationSizes sizes = generation_sizes(options, config, sequences);
  if (const auto note = length_note(config, sizes.context, "--max-context")) run.start.notes.push_back(*note);
  run.request = generation_request(options, config, sizes, run.budgets, run.device.needs);
  const auto result = make_plan_patiently(run.request, run.budgets);
  const auto* const why = std::get_if<Infeasible>(&result);
  if (why && options.print.json) {
    std::fputs(infeasible_json(run.request, *why, run.budgets, options).c_str(), out);
    return ExitCode::infeasible;
  }
  if (!options.print.json && !options.print.text) {
    for (const std::string& note : run.start.notes) show(out, note + "\n");
    for (const std::string& note : run.budgets.notes) show(out, note + "\n");
  }
  if (why) throw infeasible_error(run.request, *why, run.budgets);
  const Plan& plan = std::get<Plan>(result);
  check_program(plan);
  if (options.print.text)
    std::fputs(to_text(plan.program).c_str(), out);
  else if (options.print.json)
    std::fputs(json_of(plan, run.budgets).c_str(), out);
  else
    show(out, text_of(plan, run.budgets, options));
  return ExitCode::done;
}

}  // namespace sluice
