// A profile: what a few steps of a run took and waited for, beside what was predicted for the same bodies.
//
// Measured and predicted times have one form (simulate.h), so the same functions serve both. Steps end when
// their norm is known, as in the metrics. The first steps warm up; figures "a step" are means over the
// others. Plain data; caller: the verb profile, after the run.
#pragma once

#include <optional>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/profile/attribute.h"
#include "engine/profile/occupancy.h"
#include "engine/run/execute/recorder.h"

namespace sluice {

// If updates wait for the norm, the first step contains no update, the second contains the first update.
constexpr size_t kWarmUpSteps = 2;

// times[position][instruction], in seconds from the first start; an instruction that did not run begins at
// infinity.
struct Timeline {
  std::vector<BodyId> sequence;
  std::vector<std::vector<InstructionTime>> times;

  History history(const Program& program) const { return {program, sequence, times}; }
};

// The times of all records that were not skipped. The recorder may have too few steps for a profile, or none.
Timeline measured_timeline(const Program& program, const Recorder& recorder);
Timeline predicted_timeline(const Program& program, const MachineRates& rates,
                            const std::vector<BodyId>& sequence);

struct Compared {
  double measured = 0, predicted = 0;
  // Relative to the measured value; positive if more was predicted.
  double error() const { return measured > 0 ? predicted / measured - 1 : 0; }
};

struct ProfiledStep {
  int64_t step = 0;     // training step, from 1
  size_t position = 0;  // in the timelines: of its last wave
  bool warms_up = false;
  Compared end, seconds;  // the end on the clocks of the timelines; seconds from the end of the step before
};

// All instructions of one kind in a step.
struct WorkRow {
  Work work;  // subject 0
  uint64_t count = 0;
  uint64_t bytes = 0;  // moved by transfers, sent by collectives; of other tasks, Task::bytes
  double flops = 0;
  Compared seconds;  // in which any of them is executed
};

struct LaneRow {
  LaneId lane = 0;
  uint64_t moved_bytes = 0;
  Compared busy;  // seconds a step
};

struct LinkRow {
  TierId from = 0, to = 0;
  LaneId lane = 0;
  uint64_t bytes = 0;  // a step
  double seconds = 0;  // in which bytes are under way
  double bytes_per_second = 0, described = 0;
};

struct Stall {
  Work work;           // that compute waited for; subject 0; if not executed, only the lane is set
  double seconds = 0;  // a step
  double predicted = 0;
  uint32_t subject = 0;  // the one with the most seconds
  double subject_seconds = 0;
};

struct Profile {
  Timeline measured, predicted;
  std::vector<ProfiledStep> steps;  // those that ended
  size_t counted = 0;               // the number of steps after the warm-up
  Compared begin, end;              // of the counted steps, on the clocks of the timelines
  Compared step_seconds;            // mean of the counted steps
  std::vector<LaneRow> lanes;
  std::vector<WorkRow> work;  // most seconds first
  std::vector<LinkRow> links;
  LaneId compute = 0;
  Compared idle;                                       // seconds a step in which compute executes nothing
  std::vector<Stall> stalls;                           // most first; they add up to idle.measured
  std::vector<std::vector<OccupancyPoint>> occupancy;  // by tier, measured
};

Profile make_profile(const Plan& plan, const Recorder& recorder);

// What delayed an instruction: the instruction of another lane for which it waited last, if its own lane was
// already idle when that instruction completed.
struct Obstacle {
  size_t position = 0;
  uint32_t instruction = 0;
  double seconds = 0;  // for which the lane had been idle when the instruction began
};
// By position and instruction.
std::vector<std::vector<std::optional<Obstacle>>> obstacles_of(const History& history);

// The time at which the body's norm was known, which ends a step; infinite: it never was.
double norm_end(const Body& body, const std::vector<InstructionTime>& times);

// Seconds in [begin, end] that `lane` waits, by what it waits for, most first.
std::vector<WorkSeconds> waits_of(const History& history, LaneId lane, double begin, double end,
                                  bool by_subject);

}  // namespace sluice
