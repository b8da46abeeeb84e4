// What a device with memory and lanes of its own offers beside its ops: an arena, pinning, and streams.
//
// A stream is a lane whose instructions the host only enqueues: its work goes on by itself, in order. A mark
// stands for one instruction of such a lane in one issued body. Marks of three consecutive tickets are kept,
// since two bodies are in flight and the older may wait for the one before it; a mark of an older ticket is
// overwritten. Set-up calls come from one thread. Afterwards every thread calls enter_thread() first; work of
// a lane is enqueued by one thread, and any thread may wait for a mark that was ended. Throws
// Error(environment) if the device was lost, Error(bug) if no device would accept the request.
//
// Collectives between the memories of accelerators are enqueued, too. What waits for them on the accelerator
// does not hold up the host, but ranks can be lost, so a thread watches each of them (StreamCommunicator).
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
  uint32_t number = 0;  // of the instruction in its lane's list, from 0
};

class Streams {
 public:
  virtual ~Streams() = default;  // waits until everything that was enqueued is done
  virtual bool has(LaneId lane) const = 0;
  virtual void enter_thread() = 0;

  // The two ends of an instruction's work; what is enqueued in between is the instruction.
  virtual void begin(const Mark& mark) = 0;
  virtual void end(const Mark& mark) = 0;
  // What is enqueued on `lane` from now on starts when the marked instruction is done. Requires that end()
  // was called for this mark: otherwise there is nothing, or an older ticket's instruction, to wait for.
  virtual void wait_for(LaneId lane, const Mark& mark) = 0;
  // Blocks the calling thread until the marked instruction is done. Requires the same.
  virtual void synchronize(const Mark& mark) = 0;
  // Whether it is done by now. Requires the same.
  virtual bool is_done(const Mark& mark) = 0;

  struct Interval {
    double begin, end;  // seconds of steady_seconds()
  };
  // When a completed instruction ran, by the device's clock. One thread a lane asks, for each of the lane's
  // instructions in order.
  virtual Interval interval(const Mark& mark) = 0;

  // Around what the calling thread does for an instruction, for profilers; `name` outlives the range.
  virtual void enter_range(const char* name) = 0;
  virtual void leave_range() = 0;

  // Enqueues a copy between the device's arena and pinned memory.
  virtual void copy(LaneId lane, void* to, const void* from, uint64_t bytes) = 0;
  // The same inside the arena, between ranges that do not overlap, and zeros.
  virtual void copy_inside(LaneId lane, void* to, const void* from, uint64_t bytes) = 0;
  virtual void zero(LaneId lane, void* to, uint64_t bytes) = 0;
};

struct AcceleratorMemory {
  uint64_t free = 0;  // bytes that a process could still get now
  uint64_t held = 0;  // by this process, or by all where it is not known; without page_table_bytes()
};

// An arena takes whole granules of the device's memory.
constexpr uint64_t kAcceleratorGranule = uint64_t{2} << 20;

// The most device memory that page tables of pinned host memory take: 8 bytes a page of 4 KiB, which is
// 1/512, then 1/512 of that for the next level, and so on: 1/511. Drivers do not count it among what a
// process holds.
constexpr uint64_t page_table_bytes(uint64_t pinned_bytes) {
  return round_up(pinned_bytes / 511, kAcceleratorGranule);
}

// Exchanges bytes of the ranks' accelerators. Its calls, all but barrier(), return when their work is
// enqueued on the stream of lane `collective`; finish() waits for it. One thread makes calls. Meanwhile any
// thread may wait for what was enqueued. The first failure ends everything: work that waits for other ranks
// ends without a result, and that call and all later ones throw the same error.
class StreamCommunicator : public Communicator {
 public:
  // Blocks until is_done(), and watches the ranks: throws Error(rank_lost) once one was lost, or when that
  // takes longer than the patience. `purpose` is what it is for, as of note().
  virtual void watch(std::string_view purpose, const std::function<bool()>& is_done) = 0;
  // Ends everything in the same way: nobody will watch what is enqueued.
  virtual void give_up() noexcept = 0;
};

// How ranks exchange bytes of their accelerators' memory.
struct AcceleratorRanks {
  std::unique_ptr<StreamCommunicator> communicator;  // its pointers are memory of the accelerator
  std::string reason;                                // a clause: why there is none
};

class Accelerator {
 public:
  virtual ~Accelerator() = default;
  // Where it is plugged in, as in /sys/bus/pci/devices. Host memory near it is copied from faster.
  virtual const std::string& pci_bus_id() const = 0;
  virtual AcceleratorMemory memory() = 0;
  // The device tier's arena, freed with the last copy of the pointer; aligned to 256. Throws
  // Error(environment).
  virtual std::shared_ptr<std::byte> allocate(uint64_t bytes) = 0;
  // Pins host memory, whole pages, until the last copy of the pointer is gone. Throws Error(environment).
  virtual std::shared_ptr<void> pin(std::span<std::byte> memory) = 0;
  // `instructions_max`: by lane, the most instructions of a body; so many marks are kept for each ticket. A
  // lane with 0 is no stream.
  virtual std::unique_ptr<Streams> make_streams(std::span<const uint32_t> instructions_max) = 0;
  // Connects the accelerators of the ranks that `host` reaches, which all call it: either all get a
  // communicator, or none does. A communicator takes memory of the accelerator now and none later;
  // accelerator and `host` outlive it. Throws Error(rank_lost) as calls of `host` do.
  virtual AcceleratorRanks connect(Communicator& host) = 0;
  // Blocks until all that was enqueued is done. For set-up; a step waits for marks.
  virtual void finish() = 0;
};

}  // namespace sluice
