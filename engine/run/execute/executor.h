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

// Makes the queue of a lane that moves bytes to or from files. `has_transfers`: whether the lane has
// transfers to or from a file tier, as in steps. If not, it only writes checkpoints.
using MakeQueue = std::function<std::unique_ptr<IoQueue>(bool has_transfers)>;

struct ExecutorOptions {
  ExecutorKind kind = ExecutorKind::threaded;
  uint64_t seed = 0;  // shuffled
  MakeQueue make_queue;
  uint32_t file_alignment = 4096;
  Streams* streams = nullptr;      // of an accelerator; outlives the executor
  std::function<void()> on_error;  // called on the lane's thread that failed, once error() is set
};

// Says which instructions of the bodies in flight a run that ends may drop. These are instructions that
// change nothing that a checkpoint stores. The vectors are by body.
struct Droppable {
  std::vector<std::vector<bool>> changes;  // by instruction: whether it changes what a checkpoint stores
  // Once an instruction with `changes` has begun, this many instructions from the list's start must be done.
  std::vector<uint32_t> needed;
};

// The part of the issued bodies that a drop keeps. It keeps all bodies before `ticket`. Of the ticket's body
// it keeps all instructions (`whole`), or only those that Droppable::needed counts.
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
  // Blocks until all lanes have completed the ticket's body. With `until`, which is a wait on that body,
  // blocks only until that wait is met.
  virtual void wait(uint64_t ticket) = 0;
  virtual void wait(uint64_t ticket, const Wait& until) = 0;
  virtual std::exception_ptr error() const = 0;  // null: none

  // Allows drop(). It is called before the first body is issued. Returns false if this executor drops
  // nothing.
  virtual bool allow_drop(Droppable) { return false; }
  // While the caller waits in one of the calls above, `work` is called every now and then. It may call
  // drop(). An empty `work` ends these calls.
  virtual void set_meanwhile(std::function<void()>) {}
  // Drops the instructions of issued bodies that may be dropped (Droppable). The bodies count as done as soon
  // as their remaining instructions are done. Instructions that have begun are completed.
  virtual Kept drop() { return {}; }
  // To be called after drop(). The next body is then issued without carrying out any of its instructions: it
  // only leads from one state of the program to another.
  virtual void drop_next() {}
  // Whether bodies issued from now on are traced; by default they are. Only for measuring the cost of traces:
  // bodies without traces have no busy seconds and no time of their norm. Must not be called on a threaded
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
