// A queue of file reads and writes. Transfers to and from drives go through it, and so do the tensors that
// are written to a checkpoint.
//
// Owner: one lane. The same thread makes all calls of submit() and poll(): io_uring cancels the requests of a
// thread that has ended. Memory and file stay valid until the request's completion was polled.
// A completion only says what happened: the caller (transfer_lane.h) handles retries, short requests and
// checksums. submit() and poll() allocate nothing. Tests wrap this interface to inject faults.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice {

enum class IoDirection : uint8_t { read, write };

struct IoRequest {
  IoDirection direction = IoDirection::read;
  int fd = -1;
  uint64_t offset = 0;          // in the file
  std::byte* memory = nullptr;  // `bytes` of them
  uint32_t bytes = 0;
  uint64_t tag = 0;  // returned with the completion
};

struct IoCompletion {
  uint64_t tag = 0;
  int64_t result = 0;  // bytes transferred, possibly fewer than asked for, or -errno
};

class IoQueue {
 public:
  virtual ~IoQueue() = default;  // waits for what is in flight

  virtual uint32_t depth() const = 0;
  virtual uint32_t in_flight() const = 0;  // submitted, and completion not yet returned by poll

  // Hands one request to the system; requires in_flight() < depth().
  virtual void submit(const IoRequest& request) = 0;

  // Fills `done` with completions, in any order, and returns their number. If there is no completion yet,
  // waits for one at most `timeout_microseconds`; with 0, does not wait. May return 0 early (on a signal).
  // Never waits when nothing is in flight.
  virtual uint32_t poll(std::span<IoCompletion> done, int64_t timeout_microseconds) = 0;
};

// What --io asks for; nullptr: the first back end that works here (backends.h).
struct IoBackend;
using IoChoice = const IoBackend*;

}  // namespace sluice
