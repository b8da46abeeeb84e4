#include "engine/run/start/stopping.h"

#include <algorithm>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/units.h"
#include "engine/run/train/trainer.h"
#include "engine/simulate/simulate.h"

namespace sluice {

std::optional<StopTime> stop_time(const Plan& plan) {
  const BodyIds& bodies = plan.lowering.bodies();
  for (const Task& task : plan.program.bodies[*bodies.save].tasks)
    if (task_seconds(plan.program, plan.rates, task) == 0) return std::nullopt;
  std::vector<BodyId> sequence = bodies.usual();  // of its waves, the last two: others end long before
  sequence.erase(sequence.begin(), sequence.end() - std::min<std::ptrdiff_t>(2, std::ssize(sequence)));
  const double step = simulate(plan.program, plan.rates, sequence).seconds;
  if (bodies.drain) sequence.push_back(*bodies.drain);
  sequence.push_back(*bodies.save);
  const double checkpoint = simulate(plan.program, plan.rates, sequence).seconds - step;
  return StopTime{checkpoint, steps_before_stop(plan.step_seconds) * plan.step_seconds + checkpoint};
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
