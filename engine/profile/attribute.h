// Why a lane was idle and what a step took its time for, from the times of a program's instructions.
//
// An instruction has to follow others: the one before it on its lane, those on other lanes that its waits
// name, and, if it is the first instruction of the n-th body on its lane, all instructions of body n - 2. Of
// these, its cause is the one that completed last. An idle interval is walked backwards along causes. Each
// cause is charged the part of the interval in which it was executed, until the interval is used up. This is
// the critical-path analysis of Yang and Miller ("Critical path analysis for the execution of parallel and
// distributed programs", ICDCS 1988), applied to one interval; it finds what Böhme et al. call the root
// causes of wait states (ICPP 2010). On an overlapping lane, an instruction is executed from when the one
// before has completed: until then its bytes do not flow. An instruction that a shared pool slows down is
// charged the whole time that it takes. An instruction may begin some time after its cause has completed (it
// was not issued yet, a thread had to wake up). That time is charged to the instruction as not executed.
// Simulated instructions lose no such time.
//
// Measured times may contradict the program by as much as clocks differ. A walk never leaves its interval and
// never goes forward in time, so its charges add up all the same. Called for reports, by any thread; plain
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

// What ran: times[position][instruction], as in SimulationResult, for the sequence or its first positions.
// The times of an instruction that did not run are not finite.
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
  bool executed = true;  // false: it had not begun, although all that it waited for had completed
  double seconds() const { return end - begin; }
};

// An interval in which a lane executes nothing. Its charges are in order of time and leave no gap between
// `begin` and `end`. Their seconds add up to end - begin, except for rounding: for each charge, some 1e-16 of
// the clock's reading.
struct Idle {
  double begin = 0, end = 0;
  size_t position = 0;       // of the instruction that the lane then starts
  uint32_t instruction = 0;  // kNoInstruction: none; the run ends
  std::vector<Charge> charges;
};

// The lane on which segments run: the lane of the machine's first unit of kind forward.
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
  BufferClass moved = BufferClass::weights;  // transfers: the class of what moves, and the tiers
  TierId from = 0, to = 0;
  uint32_t subject = 0;  // tasks: Task::subject; transfers: the buffer; 0 where subjects are not told apart
  auto operator<=>(const Work&) const = default;
};

Work work_of(const Program& program, const Body& body, const Instruction& instruction);

// "forward", "weights from nvme to host", or "start on h2d" if not executed. The name leaves out the subject.
std::string work_name(const Program& program, const Work& work);

struct WorkSeconds {
  Work work;
  double seconds = 0;
};

// Seconds by work, most first.
std::vector<WorkSeconds> sum_by_work(const History& history, std::span<const Charge> charges,
                                     bool by_subject);

}  // namespace sluice
