// A profile: what a few steps of a run took and waited for, beside what was predicted for the same bodies.
//
// Measured and predicted times have one form (simulate.h), so everything here is computed once and asked of
// both. Steps end when their norm is known, as in the metrics. The first steps warm up; figures "a step" are
// means over the others. Plain data; caller: the verb profile, after the run.
#pragma once

#include <optional>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/profile/attribute.h"
#include "engine/profile/occupancy.h"
#include "engine/run/execute/recorder.h"

namespace sluice {

constexpr size_t kWarmUpSteps = 2;  // the first has no update in it, the second the first one

// times[position][instruction], in seconds from the first beginning; what did not run begins at infinity.
struct Timeline {
  std::vector<BodyId> sequence;
  std::vector<std::vector<InstructionTime>> times;

  History history(const Program& program) const { return {program, sequence, times}; }
};

// Records that were not skipped. Also without steady steps, or without any.
Timeline measured_timeline(const Program& program, const Recorder& recorder);
Timeline predicted_timeline(const Program& program, const MachineRates& rates,
                            const std::vector<BodyId>& sequence);

struct Compared {
  double measured = 0, predicted = 0;
  // Of the measured: by how much more was predicted, negative: less.
  double error() const { return measured > 0 ? predicted / measured - 1 : 0; }
};

struct ProfiledStep {
  int64_t step = 0;     // training step, from 1
  size_t position = 0;  // in the timelines
  bool warms_up = false;
  Compared end, seconds;  // on the clock of the timeline; from the end of the step before
};

// The instructions of one kind, a step.
struct WorkRow {
  Work work;                      // subject 0
  uint64_t count = 0, bytes = 0;  // transfers: moved; collectives: sent; other tasks: of memory, at least
  double flops = 0;
  Compared seconds;  // in which one is executed
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
  double seconds = 0;  // in which some are under way
  double bytes_per_second = 0, described = 0;
};

struct Stall {
  Work work;           // that compute waited for; subject 0; not executed: the lane alone is told
  double seconds = 0;  // a step
  double predicted = 0;
  uint32_t subject = 0;  // the one that counts most, and its seconds
  double subject_seconds = 0;
};

struct Profile {
  Timeline measured, predicted;
  std::vector<ProfiledStep> steps;  // that ended
  size_t counted = 0;               // of them, the last so many are steady
  Compared begin, end;              // of the counted steps, on the clocks of the timelines
  Compared step_seconds;            // a counted step
  std::vector<LaneRow> lanes;
  std::vector<WorkRow> work;  // most seconds first
  std::vector<LinkRow> links;
  LaneId compute = 0;
  Compared idle;                                       // seconds a step in which compute executes nothing
  std::vector<Stall> stalls;                           // why: most first; they add up to idle.measured
  std::vector<std::vector<OccupancyPoint>> occupancy;  // by tier, measured
};

Profile make_profile(const Plan& plan, const Recorder& recorder);

// What an instruction waited for last, where it is another lane's and was done when its own lane was idle.
struct Obstacle {
  size_t position = 0;
  uint32_t instruction = 0;
  double seconds = 0;  // from when the lane was idle until the instruction began
};
// By position and instruction.
std::vector<std::vector<std::optional<Obstacle>>> obstacles_of(const History& history);

// When the body's norm was known, which ends a step; infinite: never.
double norm_end(const Body& body, const std::vector<InstructionTime>& times);

// What `lane` waits for in [begin, end], by kind: seconds, most first.
std::vector<WorkSeconds> waits_of(const History& history, LaneId lane, double begin, double end,
                                  bool by_subject);

}  // namespace sluice
