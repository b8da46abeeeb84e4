#include "engine/run/training_setup.h"

#include <algorithm>

namespace sluice {

RunData open_run_data(const Options& options, const ModelConfig& config) {
  const int64_t sequence = options.batch.sequence.value();
  TokenData train = TokenData::open(options.data.train, config.vocabulary);
  const DataOrder order =
      make_data_order(train, sequence, options.data.order == RowOrder::shuffled, options.numbers.seed);
  RunData d{std::move(train), order, std::nullopt, {}};
  if (options.data.validation.empty()) return d;
  d.validation = TokenData::open(options.data.validation, config.vocabulary);
  d.validation_order =
      make_validation_order(*d.validation, sequence, static_cast<uint64_t>(options.data.val_batches),
                            static_cast<uint64_t>(options.batch.batch));
  return d;
}

CheckpointState first_state(const Options& options, const ModelConfig& config) {
  CheckpointState state;
  state.loss_scale = options.numbers.precision == DType::f16 ? kFirstLossScale : 1;
  state.precision = options.numbers.precision;
  state.model_config = config_to_json(config, options.numbers.precision);
  return state;
}

SessionOptions session_options(const Options& options, int threads) {
  const OptimizerOptions& o = options.optimizer;
  SessionOptions session;
  session.threads = threads;
  session.rules = {{o.beta1, o.beta2, o.epsilon, o.weight_decay}, o.clip};
  session.nvme_directories = options.memory.nvme_directories;
  session.io = options.memory.io;
  return session;
}

std::unique_ptr<PlannedSession> start_session(Device& device, Budgets& budgets, const SessionOptions& options,
                                              const std::function<Plan()>& make_plan,
                                              const std::function<void(const Plan&)>& planned) {
  for (;;) {
    Plan plan = make_plan();
    planned(plan);
    PreparedDevice prepared(plan, device);
    const uint64_t limit = budgets.limits.device.value_or(0);
    const uint64_t held = prepared.arena ? device.accelerator()->memory().held : 0;
    if (held <= limit)
      return std::make_unique<PlannedSession>(std::move(plan), device, options, std::move(prepared));
    const uint64_t arena = plan.program.arena_bytes.front();
    budgets.device_reserve = held - std::min(held, arena);
    budgets.arenas.device = limit - std::min(limit, budgets.device_reserve);
  }
}

}  // namespace sluice
