// A training session whose steps a benchmark issues itself, on made-up tokens. It has no files but those of
// the nvme tier.
//
// Callers: benchmarks of steps, on their main thread; header only.
#pragma once

#include <memory>

#include "engine/run/start/budgets.h"
#include "engine/run/start/devices.h"
#include "engine/run/start/loader.h"
#include "engine/run/start/model_source.h"
#include "engine/run/start/plan_request.h"
#include "engine/run/start/planning.h"
#include "engine/run/start/run_start.h"
#include "engine/run/start/session_start.h"
#include "engine/run/train/guess_choice.h"

namespace sluice {

class SteppedSession {
 public:
  // `options` are those of train; --data and --out are not touched.
  SteppedSession(Options options, ExecutorKind executor) {
    const ModelSource source = resolve_model(options.model);
    options.batch.sequence = options.batch.sequence.value_or(source.config.context);
    const Budgets budgets = resolve_budgets(options.memory, memory_limits(), true);
    device_ = make_device(options.memory, budgets.threads);
    plan_ = plan_or_throw(plan_request(options, source.config, budgets, needs_of(*device_), {}), budgets);
    SessionOptions session = session_options(options, budgets.threads);
    session.executor = executor;
    session_ = std::make_unique<Session>(plan_, *device_, session);
    Workers workers(budgets.threads);
    load(*session_, load_from(plan_.model, source_of(options.numbers.seed), workers));
    StepScalars& start = session_->scalars(session_->position(kTrainRing));
    start = {};
    start.update.loss_scale = first_state(options, source.config).loss_scale;
    learning_rate_ = options.optimizer.learning_rate;
  }

  // Issues a step and returns the ticket of its last body.
  uint64_t issue_step() {
    const Lowering& lowering = plan_.lowering;
    const uint64_t position = session_->next_position(kTrainRing);
    session_->executor().make_room();
    for (uint32_t wave = 0; wave < lowering.waves; ++wave)
      for (const char* input : {"tokens", "labels"})
        fill(input_buffer(plan_.model, lowering, input), session_->next_position(kWaveRing) + wave);
    session_->scalars(position).input = {
        learning_rate_,
        static_cast<double>(lowering.micro_batches() * plan_.model.micro_batch * plan_.model.sequence)};
    const BodyIds& bodies = lowering.bodies();
    const BodyId begin = next_step(*session_, bodies, last_ ? &*last_ : nullptr, true);
    for (const BodyId body : bodies.step_from(begin)) last_ = {session_->issue(body), position, body};
    return last_->ticket;
  }
  void wait(uint64_t ticket) {
    session_->executor().wait(ticket);
    session_->check();
  }

  const Plan& plan() const { return plan_; }
  Executor& executor() { return session_->executor(); }

 private:
  // Fills the buffer for a wave with tokens that are spread over the vocabulary.
  void fill(BufferId buffer, uint64_t position) {
    auto* tokens = reinterpret_cast<int32_t*>(session_->runner().ring_slot(buffer, position));
    const uint64_t count = plan_.program.buffers[buffer].bytes() / sizeof(int32_t);
    for (uint64_t i = 0; i < count; ++i)
      tokens[i] = static_cast<int32_t>((i * 2654435761u + position * 40503u) %
                                       static_cast<uint64_t>(plan_.model.vocabulary));
  }

  std::unique_ptr<Device> device_;
  Plan plan_;
  std::unique_ptr<Session> session_;
  double learning_rate_ = 0;
  std::optional<IssuedWave> last_;
};

}  // namespace sluice
