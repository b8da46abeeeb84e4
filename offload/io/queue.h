// A queue of file reads and writes: the one door through which the run's bytes reach a drive.
//
// Owner: one lane. submit() and poll() are called by one thread, from the first call on always the same (the
// kernel cancels what a finished thread had in flight). Memory and file stay valid until the request's
// completion was polled. A completion says what happened, nothing more: retries, short transfers and
// checksums are the caller's (transfer_lane.h). After construction a queue allocates nothing. Tests wrap
// this interface to inject faults.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

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

  // Fills `done` with completions, in any order, and returns their number. If there is none yet, waits for
  // one at most `timeout_microseconds`; 0 does not wait. May return 0 early (on a signal). Never waits when
  // nothing is in flight.
  virtual uint32_t poll(std::span<IoCompletion> done, int64_t timeout_microseconds) = 0;
};

enum class IoChoice : uint8_t { automatic, uring, threads };

// Makes a queue of `depth` requests (1 to 1024). `automatic` probes io_uring and falls back to a pool of
// `depth` threads. `registered` (may be empty) is memory that io_uring may pin in advance, as far as the
// system lets it; requests on other memory are as good, only slower. `description` (may be null) receives
// one line: the back end, why it was chosen, how much was registered. Throws Error(environment) when
// `choice` is uring and there is none, or threads cannot be made.
std::unique_ptr<IoQueue> make_io_queue(IoChoice choice, uint32_t depth, std::span<std::byte> registered,
                                       std::string* description);

// What keeps this process from io_uring.
enum class UringObstacle : uint8_t {
  none,
  seccomp,  // EPERM: a profile blocks the system call, as a container's default profile does
  setting,  // EPERM: kernel.io_uring_disabled
  kernel,   // ENOSYS: there is none, or one before Linux 5.11
  memory,   // ENOMEM: no memory may be locked for its ring
  other,
};
struct UringStatus {
  UringObstacle obstacle = UringObstacle::none;
  std::string reason;  // in words; empty if there is none
};
UringStatus uring_status();  // makes a ring and gives it back

// What `error` of io_uring_setup means where kernel.io_uring_disabled has this value (0: for all, 1: a group,
// 2: nobody may; -1: there is no such setting). No error is no obstacle.
UringStatus explain_uring_error(int error, int disabled_setting);

}  // namespace sluice
