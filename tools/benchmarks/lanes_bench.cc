// How long every lane of a training step is busy when nothing else runs: the program is executed serially.
//
//   lanes_bench train OPTIONS      as `sluice train`; --data and --out are not touched
//
// Prints one JSON object: by step, the seconds in which each lane executed an instruction. gpt2_small.py
// compares the overlapped step with the busiest lane.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "tools/benchmarks/stepped_session.h"
#include "tools/command/command_line.h"

namespace sluice {
namespace {

// Runs one step to its end; returns the busy seconds by lane.
nlohmann::ordered_json run_step(SteppedSession& session) {
  const uint64_t ticket = session.issue_step();
  session.wait(ticket);
  nlohmann::ordered_json busy;
  const std::vector<Lane>& lanes = session.plan().program.machine.lanes;
  for (LaneId l = 0; l < lanes.size(); ++l)
    busy[lanes[l].name] = session.executor().trace().busy_seconds(l, ticket);
  return {{"lane_busy", busy}};
}

void time_lanes(const Options& options) {
  SteppedSession session(options, ExecutorKind::serial);
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  for (int64_t step = 0; step < options.batch.steps; ++step) steps.push_back(run_step(session));
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
