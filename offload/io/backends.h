// The I/O back ends, which hand a queue's requests to the system.
//
// A back end is one source file with one IoBackend, and an entry of kIoBackends. Everything else that lists
// back ends follows from that table: the values of --io, their help and errors, what `auto` tries, doctor's
// lines, and the tests, which check each back end against the contract of IoQueue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "offload/io/queue.h"

namespace sluice {

// What keeps this process from using a back end.
enum class IoObstacle : uint8_t {
  none,
  seccomp,  // a profile blocks the system call, as a container's default profile does
  setting,  // a setting of the kernel forbids it
  kernel,   // the kernel lacks what the back end needs
  memory,   // too little memory may be locked (ulimit -l)
  other,
};
struct IoStatus {
  IoObstacle obstacle = IoObstacle::none;
  std::string reason;   // in words; empty if there is no obstacle
  std::string command;  // a shell command that removes the obstacle; empty: there is none
};

struct MadeIoQueue {
  std::unique_ptr<IoQueue> queue;  // null: `status` says why
  std::string text;                // what the queue is, in words
  IoStatus status;
};

struct IoBackend {
  const char* name;   // the value of --io
  const char* title;  // in sentences, also at their start, and in doctor's text and JSON: under 12 letters
  const char* help;   // a phrase for --help: "NAME (HELP)"
  // Makes a queue of `depth` requests; most of them will use the memory `registered`, which may be empty.
  // Throws Error(environment) where the system refuses what every queue needs, such as one more thread.
  MadeIoQueue (*make)(uint32_t depth, std::span<std::byte> registered);
  // The most kernel memory that a queue takes for each page of 4 KiB of `registered`.
  uint64_t registration_bytes_a_page = 0;
};

extern const IoBackend kUringBackend;   // uring_queue.cc
extern const IoBackend kThreadBackend;  // thread_queue.cc

// In the order in which `auto` tries them: the back end that takes the least processor time first (`sluice
// bench --io NAME` measures it). The last works everywhere.
constexpr const IoBackend* kIoBackends[] = {&kUringBackend, &kThreadBackend};

// The largest registration_bytes_a_page among the back ends that `choice` can lead to.
uint64_t registration_bytes_a_page(IoChoice choice);

// Makes a queue of `depth` requests (1 to 1024). A back end may pin the memory `registered` (may be empty) in
// advance, as far as the system lets it; requests on other memory work too, only slower.
// `description` (may be null) receives one line: the back end, and why it is not the first of the table.
// Throws Error(environment) when the back end that was asked for cannot be used.
std::unique_ptr<IoQueue> make_io_queue(IoChoice choice, uint32_t depth, std::span<std::byte> registered,
                                       std::string* description);

}  // namespace sluice
