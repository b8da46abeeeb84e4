// What tests of generation share: a session that generates, with arenas set to the byte.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/simd/convert.h"
#include "engine/run/generate/generator.h"
#include "engine/run/start/generation_request.h"
#include "tests/support/training_support.h"

namespace sluice {

struct Speech {
  std::string model;  // a Hugging Face directory, or a name for random weights
  GenerationSizes sizes;
  Sampling sampling;
  std::vector<uint32_t> ends;
  int64_t tokens_max = 24;
  DeviceKind device = DeviceKind::cpu;
  DType precision = DType::f32;
  Placement placement = Placement::automatic;
  ExecutorKind executor = ExecutorKind::threaded;
  TierCapacities arenas{std::nullopt, kRoomy, std::nullopt};
  std::string nvme_directory;
  bool picks_experts = true;
  // Wraps the device.
  std::function<std::unique_ptr<Device>(std::unique_ptr<Device>)> around;
};

inline TestRun run_of(const Speech& speech) {
  TestRun run;
  run.options.model.model = speech.model;
  run.options.numbers.precision = speech.precision;
  run.options.memory.device.kind = speech.device;
  run.options.memory.placement = speech.placement;
  if (!speech.nvme_directory.empty()) run.options.memory.nvme_directories = {speech.nvme_directory};
  run.arenas = speech.arenas;
  return run;
}

inline PlanRequest request_of(const Speech& speech, const Device& device) {
  const TestRun run = run_of(speech);
  PlanRequest request = generation_request(run.options, resolve_model(run.options.model).config, speech.sizes,
                                           budgets_of(run), needs_of(device));
  request.lower.picks_experts = speech.picks_experts;
  return request;
}

class Speaking {
 public:
  explicit Speaking(const Speech& speech)
      : speech_(speech), run_(run_of(speech)), device_(make_device(run_.options.memory, run_.threads)) {
    if (speech.around) device_ = speech.around(std::move(device_));
    const ModelSource source = resolve_model(run_.options.model);
    plan_ = plan_or_throw(request_of(speech, *device_), budgets_of(run_));
    SessionOptions options = session_options(run_.options, run_.threads);
    options.executor = speech.executor;
    options.poison = true;
    session_ = std::make_unique<Session>(plan_, *device_, options);
    Workers workers(run_.threads);
    if (source.weights_directory.empty()) {
      load(*session_, load_from(plan_.model, source_of(1), workers));
    } else {
      const HfWeights weights = HfWeights::open(source.weights_directory, source.config.family);
      load(*session_, load_from(plan_.model, source_of(weights), workers));
    }
    generator_ = std::make_unique<Generator>(*session_, speech.sampling, speech.ends);
  }

  const Plan& plan() const { return plan_; }
  Generator& generator() { return *generator_; }
  Session& session() { return *session_; }

  // Row `place` of the logits of the reading that ran last, in fp32. `reading` is its name.
  std::vector<float> logits(const std::string& reading, int64_t place) {
    std::vector<float> row(static_cast<size_t>(plan_.model.vocabulary));
    const BufferId buffer = output_buffer(plan_.model, plan_.lowering, reading + ".logits");
    const uint64_t bytes = row.size() * dtype_bytes(plan_.model.precision);
    const std::byte* const slot = session_->runner().ring_slot(buffer, session_->position(kWaveRing));
    widen(plan_.model.precision, slot + static_cast<uint64_t>(place) * bytes, row.data(), row.size());
    return row;
  }

  // The answers to all prompts. As many prompts run together as the plan has sequences.
  std::vector<Answer> answers(const std::vector<std::vector<uint32_t>>& prompts) {
    std::vector<Answer> all;
    const auto at_once = static_cast<size_t>(speech_.sizes.sequences);
    for (size_t first = 0; first < prompts.size(); first += at_once) {
      std::vector<Prompt> some;
      for (size_t i = first; i < std::min(prompts.size(), first + at_once); ++i)
        some.push_back({prompts[i], i});
      for (Answer& answer : generator_->answer(
               some, speech_.tokens_max, false, [](size_t, uint32_t) { return true; }, never_))
        all.push_back(std::move(answer));
    }
    return all;
  }

 private:
  Speech speech_;
  TestRun run_;
  std::unique_ptr<Device> device_;
  Plan plan_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Generator> generator_;
  const std::atomic<bool> never_{false};
};

inline std::vector<std::vector<uint32_t>> tokens_of(const std::vector<Answer>& answers) {
  std::vector<std::vector<uint32_t>> tokens;
  for (const Answer& answer : answers) tokens.push_back(answer.tokens);
  return tokens;
}

// Returns why the planner says that the arenas of `speech` do not suffice.
inline Infeasible refusal_of(const Speech& speech) {
  const auto device = make_device(run_of(speech).options.memory, 2);
  auto result = make_plan(request_of(speech, *device));
  const auto* why = std::get_if<Infeasible>(&result);
  CHECK(why != nullptr, "a plan without memory");
  return *why;
}

}  // namespace sluice
