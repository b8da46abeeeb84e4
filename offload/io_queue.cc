#include "offload/io_queue.h"

#include "engine/error.h"
#include "offload/io_backends.h"

namespace sluice {

std::unique_ptr<IoQueue> make_io_queue(IoChoice choice, uint32_t depth, std::span<std::byte> registered,
                                       std::string* description) {
  CHECK(depth >= 1 && depth <= 1024, "depth of an I/O queue");
  std::string text;
  std::unique_ptr<IoQueue> queue;
  if (choice != IoChoice::threads) queue = make_uring_queue(depth, registered, text);
  if (!queue && choice == IoChoice::uring)
    throw Error(ExitCode::environment, "io_uring was asked for and cannot be used: " + text + ".",
                "Choose --io auto or --io threads, or allow io_uring.");
  if (!queue) {
    queue = make_thread_queue(depth);
    const std::string reason = choice == IoChoice::threads ? "as asked" : "io_uring cannot be used: " + text;
    text = std::to_string(depth) + " I/O threads (" + reason + ")";
  }
  if (description) *description = text;
  return queue;
}

}  // namespace sluice
