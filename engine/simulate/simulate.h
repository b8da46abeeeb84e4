// Predicts how long a sequence of bodies takes on a machine, from the program and a machine description.
//
// Lanes and waits are exact, and so is the rule that no lane starts the n-th body before every lane has
// completed the (n - 2)-th. Work is a fluid that flows through shared pools. simulate.cc states the model in
// numbered steps. Called in the planner's search and for predictions in reports; no state. Requires a program
// whose structure is sound (verify.h). Throws Error(usage) if the description lacks a lane or link of the
// program, std::invalid_argument if the sequence is not legal or never ends.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/program/program.h"
#include "engine/rates/machine_rates.h"

namespace sluice {

struct InstructionTime {
  double begin = 0, end = 0;  // seconds; begin: its lane and its waits allow it to start
};

struct SimulationResult {
  double seconds = 0;             // until the last instruction has completed
  std::vector<double> lane_busy;  // seconds in which the lane executes at least one instruction, by lane
  // Seconds of lane_busy that a full pool cost. By lane, then by pool: those of
  // MachineRates::pools, and behind them the drives.
  std::vector<std::vector<double>> lane_slowed;
  // By position in the sequence and instruction; only if asked for.
  std::vector<std::vector<InstructionTime>> times;
};

// rates.network must be that of the program's ranks (levels_for()).
SimulationResult simulate(const Program& program, const MachineRates& rates, std::span<const BodyId> sequence,
                          bool with_times = false);

// Seconds that a task takes alone on the unit's lane, if no pool slows it down; kUnlimited if the rates lack
// that lane.
double unit_seconds(const Program& program, const MachineRates& rates, const Task& task, const Unit& unit);

// Seconds that the task takes alone on the first unit of its kind whose lane has rates; 0 if there is none.
double task_seconds(const Program& program, const MachineRates& rates, const Task& task);

// Seconds that the work of bodies takes on each resource at its full rate. On a lane whose instructions do
// not overlap, overheads and latencies count too. No order of the same work is faster than the largest of
// these loads.
struct Loads {
  std::vector<double> lanes;  // by Machine::lanes
  std::vector<double> pools;  // by MachineRates::pools
  // By MachineRates::drives: reads plus writes, at the mixed rate where that is faster.
  std::vector<double> drives;
};
// Whether an instruction's work counts. An empty function: the work of all instructions counts.
using Counts = std::function<bool(const Body& body, const Instruction& instruction)>;
Loads loads_of(const Program& program, const MachineRates& rates, std::span<const BodyId> bodies,
               const Counts& counts = {});

// Bytes that one run of the bodies writes to file tiers, which wears drives.
uint64_t bytes_to_files(const Program& program, std::span<const BodyId> bodies);

// The bodies of `times` runs of a step, one run after the other. `step`: the bodies of its waves.
std::vector<BodyId> repeated(std::span<const BodyId> step, size_t times);

// Seconds of one more `step`, the bodies of its waves: T(warm + more) - T(warm), divided by `more`, where
// T(n) is the time of n steps. The end of a run is in both times, so it cancels once steps repeat. The step
// must be able to follow itself; warm and more are at least 1.
double steady_step_seconds(const Program& program, const MachineRates& rates, std::span<const BodyId> step,
                           uint32_t warm = 1, uint32_t more = 1);

}  // namespace sluice
