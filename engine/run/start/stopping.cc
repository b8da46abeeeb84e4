#include "engine/run/start/stopping.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/units.h"
#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/start/plan_request.h"
#include "engine/run/train/trainer.h"
#include "engine/simulate/simulate.h"

namespace sluice {

std::optional<StopTime> stop_time(const Plan& plan) {
  const BodyIds& bodies = plan.lowering.bodies();
  for (const Task& task : plan.program.bodies[*bodies.save].tasks)
    if (task_seconds(plan.program, plan.rates, task) == 0) return std::nullopt;
  std::vector<BodyId> sequence = bodies.usual();  // only the last two waves: others end early enough
  sequence.erase(sequence.begin(), sequence.end() - std::min<std::ptrdiff_t>(2, std::ssize(sequence)));
  const double step = simulate(plan.program, plan.rates, sequence).seconds;
  double drain = 0;
  if (bodies.drain) {
    sequence.push_back(*bodies.drain);
    drain = simulate(plan.program, plan.rates, sequence).seconds - step;
  }
  sequence.push_back(*bodies.save);
  const double checkpoint = simulate(plan.program, plan.rates, sequence).seconds - step;
  return StopTime{checkpoint, steps_before_stop(plan.step_seconds) * plan.step_seconds + checkpoint, drain};
}

StopParts stop_parts(const Options& options, const Plan& plan, double rate) {
  const std::optional<StopTime> time = stop_time(plan);
  if (!time && rate == 0) return {plan.step_seconds, 0, std::numeric_limits<double>::infinity()};
  StopParts parts{plan.step_seconds, 0, 0};
  if (time) parts.drain = time->drain, parts.save = time->checkpoint - time->drain;
  const double part = static_cast<double>(plan.lowering.mesh.node_ranks()) / plan.lowering.mesh.ranks(),
               bytes = static_cast<double>(checkpoint_bytes(plan, options.optimizer.kind));
  if (rate > 0) parts.save = std::max(parts.save, std::min(part, 1.0) * bytes / rate);
  return parts;
}

Saving predicted_saving(const Options& options, const Plan& plan) {
  const std::optional<StopTime> time = stop_time(plan);
  return saving_of(options.run.checkpoint_every, plan.step_seconds, time ? time->checkpoint : 0);
}

void check_stop_time(const Options& options, const Plan& plan) {
  const double most = options.run.stop_within.seconds;
  if (most == 0) return;
  const std::optional<StopTime> time = stop_time(plan);
  if (!time)
    throw Error(ExitCode::infeasible,
                "How long a stop takes is not known: machine description " + printable(plan.rates.name) +
                    " has no rate at which checkpoints are written.",
                "Measure one with sluice bench --nvme-dir DIR, or leave out --stop-within.");
  if (time->longest <= most) return;
  throw Error(ExitCode::infeasible,
              "A stop may take " + readable_seconds(time->longest) + ", longer than --stop-within " +
                  readable_seconds(most) + ": up to " + std::to_string(steps_before_stop(plan.step_seconds)) +
                  " steps of " + readable_seconds(plan.step_seconds) + " end, then a checkpoint takes " +
                  readable_seconds(time->checkpoint) + ".",
              "Allow more time" + (time->checkpoint >= most
                                       ? ": the checkpoint alone takes " +
                                             readable_seconds(time->checkpoint) + ", whatever the step."
                                   : options.batch.batch > options.ranks.count
                                       ? std::string(", or shorten the step with a smaller --batch.")
                                       : std::string(".")));
}

}  // namespace sluice
