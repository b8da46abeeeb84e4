// Why a lane was idle and what a step took its time for, from the times of a program's instructions.
//
// An instruction that is ready waited, last, for what completed last: the one before on its lane, another
// lane (a wait), or all lanes (no lane starts a body before every lane has completed the last but one). That
// is its cause. An idle interval is walked backwards along causes; each gets the part of it in which it was
// executed, until the interval is used up: the critical-path analysis of Yang and Miller ("Critical path
// analysis for the execution of parallel and distributed programs", ICDCS 1988), asked of one interval, for
// what Böhme et al. call the root causes of wait states (ICPP 2010).
// On an overlapping lane an instruction is executed from when the one before has completed: until then its
// bytes do not flow. One that a shared pool slows down is charged the whole time that it takes.
// Time in which the next of the chain has no cause left and still does not begin (its issue, a thread that
// wakes up) is charged to that one as not executed. Simulated times have none.
//
// Measured times may contradict the program by what clocks differ. A walk never leaves its interval and never
// goes forward in time, so its charges add up all the same. Called for reports, by any thread; plain
// functions, O(n log n). Requires a program whose structure is sound (verify.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/program/program.h"
#include "engine/simulate/simulate.h"

namespace sluice {

constexpr uint32_t kNoInstruction = UINT32_MAX;

// What ran: times[position][instruction], as SimulationResult has them, for the first positions of the
// sequence at least. An instruction that did not run has times that are not finite.
struct History {
  const Program& program;
  std::span<const BodyId> sequence;
  const std::vector<std::vector<InstructionTime>>& times;
};

struct Charge {
  double begin = 0, end = 0;  // seconds, on the clock of the history
  size_t position = 0;        // in the sequence
  uint32_t instruction = 0;
  LaneId lane = 0;
  bool executed = true;  // false: it should have been, and is not known to wait for anything
  double seconds() const { return end - begin; }
};

// A lane executes nothing. Its charges are in order of time, each begins where the one before ends, the first
// at `begin`, the last ends at `end`: in exact numbers they add up; their rounded lengths to some 1e-16 of
// the clock's reading each.
struct Idle {
  double begin = 0, end = 0;
  size_t position = 0;       // of the instruction that the lane then starts
  uint32_t instruction = 0;  // kNoInstruction: none; the run ends
  std::vector<Charge> charges;
};

// Where segments run: of the first unit for forwards.
LaneId compute_lane(const Machine& machine);

// All idle intervals of a lane from the first beginning of any instruction to the last end, in order.
std::vector<Idle> idle_intervals(const History& history, LaneId lane);

// The chain of causes that ends with the last completion, in order of time and without gaps, from the first
// beginning of any instruction. Empty where nothing ran.
std::vector<Charge> critical_path(const History& history);

// The parts of charges that lie in [begin, end].
std::vector<Charge> within(std::span<const Charge> charges, double begin, double end);

// What an instruction is, for sums over many.
struct Work {
  LaneId lane = 0;
  bool executed = true;                      // as Charge has it
  std::optional<TaskKind> task;              // none: a transfer
  BufferClass moved = BufferClass::weights;  // transfers: what, and between which tiers
  TierId from = 0, to = 0;
  uint32_t subject = 0;  // tasks: theirs; transfers: the buffer; 0 where subjects are not told apart
  auto operator<=>(const Work&) const = default;
};

Work work_of(const Program& program, const Body& body, const Instruction& instruction);

// "forward", "weights from nvme to host"; "start on h2d" if not executed; without the subject.
std::string work_name(const Program& program, const Work& work);

struct WorkSeconds {
  Work work;
  double seconds = 0;
};

// Seconds by work, most first.
std::vector<WorkSeconds> sum_by_work(const History& history, std::span<const Charge> charges,
                                     bool by_subject);

}  // namespace sluice
