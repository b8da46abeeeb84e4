#include "tools/train/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/clock.h"
#include "engine/base/units.h"

namespace sluice {

namespace {

// Prints the GPU memory that is held: it shows what a driver or library takes beyond the plan.
void tell_memory(Accelerator& accelerator, uint64_t limit, Progress& progress) try {
  const AcceleratorMemory memory = accelerator.memory();
  progress.note("GPU memory after the first step: " + format_size(memory.held) + " held, of " +
                format_size(limit) + "; " + format_size(memory.free) + " free");
} catch (const Error&) {
  // If the GPU was lost meanwhile, the next step reports it.
}

// The first sample, on a line.
std::string sample_note(const SampleMetrics& samples) {
  constexpr size_t kPromptEnd = 40, kTextBegin = 100;
  const SampledText& first = samples.texts.front();
  const std::string prompt = last_characters(first.prompt, kPromptEnd);
  return fmt::format("sample after step {}: {} | {}", samples.step, printable(prompt),
                     printable(first_characters(first.text, kTextBegin)));
}

bool trains_routers(const Model& model) {
  const auto is_trained = [&](const SegmentUse& use) {
    const Segment& segment = model.segments[use.segment];
    return std::ranges::any_of(segment.ops, [&](const Op& op) {
      return op.kind == OpKind::router && std::ranges::any_of(op.parameters, [&](uint32_t p) {
               const SegmentParameter& of = segment.parameters[p];
               const Group& group = model.groups[use.groups[of.slot]];
               return group.trainable && !group.parameters[of.parameter].frozen;
             });
    });
  };
  return std::ranges::any_of(
      model.layers, [&](const Layer& layer) { return std::ranges::any_of(layer.segments, is_trained); });
}

}  // namespace

Records::Records(const Options& options, const std::string& metrics, int64_t done, const Plan& plan,
                 const ModelConfig& model, std::FILE* out, StopForecast& forecast)
    : metrics_(metrics),
      progress_(progress_of(plan.program, options.batch.steps, out)),
      routers_({.tokens = options.batch.batch * options.batch.sequence.value(),
                .router_loss = model.has_router_loss ? model.router_loss : 0,
                .capacity = model.capacity_factor,
                .frozen = !trains_routers(plan.model)}),
      forecast_(forecast),
      stop_within_(options.run.stop_within.seconds) {
  if (options.run.tensorboard) events_.emplace(options.run.out, done, unix_seconds());
}

// A sentence if a stop may take longer than --stop-within. The prediction at the start was within that limit.
std::optional<std::string> Records::late_stop(const StepMetrics& newest) {
  if (stop_within_ == 0 || !forecast_.has_measured()) return std::nullopt;
  const double most = forecast_.longest(steps_before_stop(newest.seconds));
  if (most <= stop_within_) return std::nullopt;
  return fmt::format(
      "A stop may take {}, by what steps and checkpoints of this run take: longer than --stop-within {}. "
      "Send the signal earlier.",
      readable_seconds(most), readable_seconds(std::exchange(stop_within_, 0)));
}

// Event files have no samples.
void Records::write(const auto& figures) {
  const double time = unix_seconds();
  metrics_.write(figures, time);
  if constexpr (requires { events_->write(figures, time); })
    if (events_) events_->write(figures, time);
  if (const auto trouble = metrics_.trouble()) progress_.note(*trouble);
  if (const auto trouble = events_ ? events_->trouble() : std::nullopt) progress_.note(*trouble);
}

TrainEvents Records::events(Comparison& comparison, Accelerator* accelerator, uint64_t limit) {
  TrainEvents events;
  events.forecast = &forecast_;
  events.step = [this, &comparison, accelerator, limit](const StepMetrics& m) mutable {
    write(m);
    progress_.step(m, steady_seconds());
    if (const auto sentence = comparison.add(m)) progress_.note(*sentence);
    if (const auto sentences = routers_.add(m)) progress_.note(*sentences);
    if (const auto sentences = late_stop(m)) progress_.note(*sentences);
    if (Accelerator* const first = std::exchange(accelerator, nullptr)) tell_memory(*first, limit, progress_);
  };
  events.validation = [this](const ValidationMetrics& v) {
    write(v);
    progress_.validation(v);
  };
  events.samples = [this](const SampleMetrics& s) {
    write(s);
    progress_.note(sample_note(s));
  };
  events.checkpoint = [this](const std::string& path) { progress_.note("checkpoint " + printable(path)); };
  events.trouble = [this](const std::string& sentences) { progress_.note(sentences); };
  return events;
}

void Records::finish() {
  metrics_.finish();
  if (events_) events_->finish();
  if (const size_t bytes = metrics_.unwritten() + (events_ ? events_->unwritten() : 0))
    progress_.note(format_size(bytes) + " of metrics could not be written.");
  progress_.finish();
}

}  // namespace sluice
