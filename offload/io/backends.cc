#include "offload/io/backends.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "engine/base/error.h"

namespace sluice {

uint64_t registration_bytes_a_page(IoChoice choice) {
  uint64_t most = 0;
  for (const IoBackend* backend : kIoBackends)
    if (!choice || backend == choice) most = std::max(most, backend->registration_bytes_a_page);
  return most;
}

std::unique_ptr<IoQueue> make_io_queue(IoChoice choice, uint32_t depth, std::span<std::byte> registered,
                                       std::string* description) {
  CHECK(depth >= 1 && depth <= 1024, "depth of an I/O queue");
  constexpr const IoBackend* last = *std::rbegin(kIoBackends);
  static_assert(last == &kThreadBackend, "the last back end works everywhere");
  std::string why = choice ? "as asked" : "";
  for (const IoBackend* backend : kIoBackends) {
    if (choice && backend != choice) continue;
    MadeIoQueue made = backend->make(depth, registered);
    const std::string& reason = made.status.reason;
    if (made.queue) {
      if (description) *description = made.text + (backend == kIoBackends[0] ? "" : " (" + why + ")");
      return std::move(made.queue);
    }
    if (choice)
      throw Error(ExitCode::environment,
                  fmt::format("{} was asked for and cannot be used: {}.", backend->title, reason),
                  fmt::format("Choose --io auto or --io {}, or allow {}.", last->name, backend->title));
    why += fmt::format("{}{} cannot be used: {}", why.empty() ? "" : "; ", backend->title, reason);
  }
  check_failed("queue", __FILE__, __LINE__, "the last I/O back end works everywhere");
}

}  // namespace sluice
