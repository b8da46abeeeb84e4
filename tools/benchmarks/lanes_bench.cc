// How long every lane of a training step works when nothing else runs: the program executed serially.
//
//   lanes_bench train OPTIONS      as `sluice train`; --steps counts, --data and --out are not touched
//
// Prints one JSON object: by step, the seconds in which each lane executed an instruction. gpt2_small.py
// holds the overlapped step against the busiest of them.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/run/loader.h"
#include "engine/run/setup.h"
#include "engine/run/training_setup.h"
#include "tools/command_line.h"
#include "tools/run_source.h"

namespace sluice {
namespace {

// Tokens of the step that is issued next: any will do, spread over the vocabulary.
void fill(Session& session, BufferId buffer, uint64_t position) {
  const Plan& plan = session.plan();
  auto* tokens = reinterpret_cast<int32_t*>(session.runner().ring_slot(buffer, position));
  const uint64_t count = plan.program.buffers[buffer].bytes() / sizeof(int32_t);
  for (uint64_t i = 0; i < count; ++i)
    tokens[i] = static_cast<int32_t>((i * 2654435761u + position * 40503u) %
                                     static_cast<uint64_t>(plan.model.vocabulary));
}

// Runs one step to its end; returns the busy seconds by lane.
nlohmann::ordered_json run_step(Session& session, bool first, double learning_rate) {
  const Lowering& lowering = session.plan().lowering;
  const uint64_t position = session.next_position(kTrainRing);
  session.executor().make_room();
  fill(session, lowering.tokens, position);
  fill(session, lowering.labels, position);
  const Model& model = session.plan().model;
  session.scalars(position).input = {
      learning_rate, static_cast<double>(lowering.slices * model.micro_batch * model.sequence)};
  const uint64_t ticket = session.issue(first ? *lowering.bodies().first : *lowering.bodies().step);
  session.executor().wait(ticket);
  session.check();
  nlohmann::ordered_json busy;
  const std::vector<Lane>& lanes = session.plan().program.machine.lanes;
  for (LaneId l = 0; l < lanes.size(); ++l)
    busy[lanes[l].name] = session.executor().trace().busy_seconds(l, ticket);
  return {{"lane_busy", busy}};
}

void time_lanes(Options options) {
  const ModelSource source = resolve_model(options.model);
  options.batch.sequence = options.batch.sequence.value_or(source.config.context);
  const Budgets budgets = resolve_budgets(options.memory, memory_limits(), true);
  const std::unique_ptr<Device> device = make_device(options.memory, budgets.threads);
  const Plan plan =
      plan_or_throw(plan_request(options, source.config, budgets, workspaces_of(*device), false), budgets);
  SessionOptions serial = session_options(options, budgets.threads);
  serial.executor = ExecutorKind::serial;
  Session session(plan, *device, serial);
  Workers workers(budgets.threads);
  load(session, load_from(plan.model, source_of(options.numbers.seed), workers));
  StepScalars& start = session.scalars(session.position(kTrainRing));
  start = {};
  start.update.loss_scale = first_state(options, source.config).loss_scale;
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  for (int64_t step = 0; step < options.batch.steps; ++step)
    steps.push_back(run_step(session, step == 0, options.optimizer.learning_rate));
  fmt::print("{}\n", nlohmann::ordered_json{{"steps", steps}}.dump());
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  try {
    const sluice::ParsedCommand command = sluice::parse_command_line(argc, argv);
    if (!command.text.empty() || command.verb != sluice::Verb::train)
      throw sluice::Error(sluice::ExitCode::usage, "lanes_bench takes the verb train.",
                          "Usage: lanes_bench train OPTIONS");
    sluice::time_lanes(command.options);
    return 0;
  } catch (const sluice::Error& e) {
    fmt::print(stderr, "lanes_bench: {}\n{}\n", e.what(), e.remedy());
    return static_cast<int>(e.code());
  }
}
