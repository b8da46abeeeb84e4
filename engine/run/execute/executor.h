// Executors run bodies: serial (list order, the oracle), shuffled (seeded legal interleavings), threaded (one
// thread a lane).
//
// Owner: the trainer's thread. It calls make_room(), fills ring slots, and issues the next body; two bodies
// are in flight at most, so that no lane starts body n of a run before every lane has completed body n - 2.
// Whatever an instruction throws poisons the executor: the remaining instructions are skipped, waits return,
// and error() is what was thrown first.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "engine/run/execute/runner.h"
#include "engine/run/execute/trace.h"
#include "gpu/accelerator.h"
#include "offload/io/queue.h"

namespace sluice {

enum class ExecutorKind : uint8_t { serial, shuffled, threaded };

// One queue per lane that moves bytes to or from files. `has_transfers`: the lane has transfers to or from a
// file tier, as in steps; otherwise it only writes checkpoints.
using MakeQueue = std::function<std::unique_ptr<IoQueue>(bool has_transfers)>;

struct ExecutorOptions {
  ExecutorKind kind = ExecutorKind::threaded;
  uint64_t seed = 0;  // shuffled
  MakeQueue make_queue;
  uint32_t file_alignment = 4096;
  Streams* streams = nullptr;      // of an accelerator; outlives the executor
  std::function<void()> on_error;  // called on the lane's thread that failed, once error() is set
};

// What a run that ends may drop of the bodies in flight: instructions that change nothing which a checkpoint
// has. By body.
struct Droppable {
  std::vector<std::vector<bool>> changes;  // by instruction: whether it changes what a checkpoint has
  // Once such an instruction has begun, this many instructions from the list's start must be done.
  std::vector<uint32_t> needed;
};

// What a drop leaves of issued bodies: the bodies before `ticket`, and of the ticket's body all instructions
// (`whole`) or those that are needed (Droppable).
struct Kept {
  uint64_t ticket = 0;
  bool whole = true;
};

class Executor {
 public:
  virtual ~Executor() = default;

  // Returns when at most one body is in flight.
  virtual void make_room() = 0;
  // Returns when a lane has completed all its instructions of the bodies issued so far.
  virtual void await_idle_lane() = 0;
  // After make_room(). Returns a ticket, from 1.
  virtual uint64_t issue(BodyId body, const RingPositions& rings) = 0;
  // Blocks until all lanes have completed the ticket's body, or until `until`, a wait on that body, is met.
  virtual void wait(uint64_t ticket) = 0;
  virtual void wait(uint64_t ticket, const Wait& until) = 0;
  virtual std::exception_ptr error() const = 0;  // null: none

  // Called before the first body: allows drop(). False: this executor drops nothing.
  virtual bool allow_drop(Droppable) { return false; }
  // While the caller waits in one of the calls above, `work` is called every now and then. It may call
  // drop(). An empty `work` ends these calls.
  virtual void set_meanwhile(std::function<void()>) {}
  // Drops what may be dropped of issued bodies. The bodies count as done as soon as their other instructions
  // are. Instructions that have begun are completed.
  virtual Kept drop() { return {}; }
  // After drop(): no instruction of the next body is carried out. That body only leads from one state of the
  // program to another.
  virtual void drop_next() {}
  // Whether bodies issued from now on are traced; by default they are. Only for measuring the cost of traces:
  // bodies without them have no busy seconds and no time of their norm. Must not be called on a threaded
  // executor with streams, which needs the records.
  virtual void set_traced(bool traced) = 0;
  virtual const Trace& trace() const = 0;
};

// By body and lane: the lane's instructions, as indices of the body's list.
using LaneOrders = std::vector<std::vector<std::vector<uint32_t>>>;
LaneOrders lane_orders(const Program& program);

std::unique_ptr<Executor> make_executor(const Program& program, Runner& runner,
                                        const ExecutorOptions& options);
std::unique_ptr<Executor> make_threaded_executor(const Program& program, Runner& runner,
                                                 const ExecutorOptions& options);
std::unique_ptr<Executor> make_list_executor(const Program& program, Runner& runner,
                                             const ExecutorOptions& options);

}  // namespace sluice
