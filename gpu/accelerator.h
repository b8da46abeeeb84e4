// What a device with memory and lanes of its own offers beside its ops: an arena, pinning, and streams.
//
// A stream is a lane whose instructions the host only enqueues: the lane's work goes on by itself, in order.
// A mark stands for one instruction of such a lane in one issued body. Marks of three consecutive tickets are
// kept, since two bodies are in flight and the older of them may wait for the body before it. Older marks are
// overwritten. Set-up calls come from one thread. Afterwards every thread calls enter_thread() first; work of
// a lane is enqueued by one thread, and any thread may wait for a mark that was ended. A call throws
// Error(environment) if the device was lost, Error(bug) if no device would accept the request.
//
// Collectives between the memories of accelerators are enqueued, too. Work on the accelerator that waits for
// a collective does not hold up the host. Since ranks can be lost, a thread watches each collective
// (StreamCommunicator).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/pack.h"
#include "engine/program/program.h"
#include "gpu/ranks/communicator.h"

namespace sluice {

constexpr uint64_t kMarkedTickets = 3;

struct Mark {
  LaneId lane = 0;
  uint64_t ticket = 0;  // counts issued bodies
  uint32_t number = 0;  // position of the instruction in its lane's list, from 0
};

class Streams {
 public:
  virtual ~Streams() = default;  // waits until everything that was enqueued is done
  virtual bool has(LaneId lane) const = 0;
  virtual void enter_thread() = 0;

  // Start and end of an instruction's work. Whatever is enqueued between them is the instruction.
  virtual void begin(const Mark& mark) = 0;
  virtual void end(const Mark& mark) = 0;
  // What is enqueued on `lane` from now on starts when the marked instruction is done. Requires that end()
  // was called for this mark. Otherwise `lane` would wait for nothing, or for an older ticket's instruction.
  virtual void wait_for(LaneId lane, const Mark& mark) = 0;
  // Blocks the calling thread until the marked instruction is done. Requires that end() was called.
  virtual void synchronize(const Mark& mark) = 0;
  // Whether the marked instruction is done. Requires that end() was called.
  virtual bool is_done(const Mark& mark) = 0;

  struct Interval {
    double begin, end;  // seconds of steady_seconds()
  };
  // Returns when a completed instruction ran, by the device's clock. For each lane, one thread calls this for
  // all instructions of the lane, in order.
  virtual Interval interval(const Mark& mark) = 0;

  // For profilers: start and end of the calling thread's work for an instruction. `name` outlives the range.
  virtual void enter_range(const char* name) = 0;
  virtual void leave_range() = 0;

  // Enqueues a copy between the device's arena and pinned memory.
  virtual void copy(LaneId lane, void* to, const void* from, uint64_t bytes) = 0;
  // copy_inside enqueues a copy between ranges of the arena that do not overlap. zero fills a range of the
  // arena.
  virtual void copy_inside(LaneId lane, void* to, const void* from, uint64_t bytes) = 0;
  virtual void zero(LaneId lane, void* to, uint64_t bytes) = 0;
};

struct AcceleratorMemory {
  uint64_t free = 0;  // bytes that a process could still get now
  uint64_t held = 0;  // bytes that this process holds, or all do if its share is unknown; no page tables
};

// An arena takes whole granules of the device's memory.
constexpr uint64_t kAcceleratorGranule = uint64_t{2} << 20;

// The most device memory that page tables of pinned host memory take. The lowest level has 8 bytes for each
// page of 4 KiB, which is 1/512 of the memory. Each further level has 1/512 of the level before, which makes
// 1/511 in all. Drivers do not count page tables among what a process holds.
constexpr uint64_t page_table_bytes(uint64_t pinned_bytes) {
  return round_up(pinned_bytes / 511, kAcceleratorGranule);
}

// Exchanges bytes of the ranks' accelerators. All calls but barrier() return when their work is enqueued on
// the stream of lane `collective`; finish() waits for it. One thread makes calls. Meanwhile any thread may
// wait for what was enqueued. The first failure ends everything: work that waits for other ranks ends without
// a result, and the call that failed and all later ones throw the same error.
class StreamCommunicator : public Communicator {
 public:
  // Blocks until is_done(), and watches the ranks: throws Error(rank_lost) once a rank was lost, or when the
  // wait takes longer than the patience. `purpose` says what the wait is for, as in note().
  virtual void watch(std::string_view purpose, const std::function<bool()>& is_done) = 0;
  // Ends everything as a failure does. For a caller that will not watch what is enqueued.
  virtual void give_up() noexcept = 0;
};

// How ranks exchange bytes of their accelerators' memory.
struct AcceleratorRanks {
  std::unique_ptr<StreamCommunicator> communicator;  // is given pointers into the accelerator's memory
  std::string reason;                                // a clause: why there is no communicator
};

class Accelerator {
 public:
  virtual ~Accelerator() = default;
  // Where the device is plugged in, as in /sys/bus/pci/devices. Copies from host memory near that place are
  // faster.
  virtual const std::string& pci_bus_id() const = 0;
  virtual AcceleratorMemory memory() = 0;
  // Allocates the device tier's arena, aligned to 256 bytes. The last copy of the pointer frees it. Throws
  // Error(environment).
  virtual std::shared_ptr<std::byte> allocate(uint64_t bytes) = 0;
  // Pins host memory, whole pages, until the last copy of the pointer is gone. Throws Error(environment).
  virtual std::shared_ptr<void> pin(std::span<std::byte> memory) = 0;
  // `instructions_max`: for each lane, the most instructions that a body has in that lane. This many marks
  // are kept for each ticket. A lane with 0 gets no stream.
  virtual std::unique_ptr<Streams> make_streams(std::span<const uint32_t> instructions_max) = 0;
  // Connects the accelerators of all ranks that `host` reaches. All these ranks call it, and either all get a
  // communicator or none does. A communicator takes memory of the accelerator now and none later;
  // accelerator and `host` outlive it. Throws Error(rank_lost) as calls of `host` do.
  virtual AcceleratorRanks connect(Communicator& host) = 0;
  // Blocks until all that was enqueued is done. For set-up; a step waits for marks.
  virtual void finish() = 0;
};

}  // namespace sluice
