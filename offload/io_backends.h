// The two back ends behind make_io_queue (io_queue.h); nothing else includes this.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "offload/io_queue.h"

namespace sluice {

// Null, with the reason in `text`, when this system has no usable io_uring; else `text` describes the queue.
std::unique_ptr<IoQueue> make_uring_queue(uint32_t depth, std::span<std::byte> registered,
                                          std::string& text);

// One thread a request in flight, in pread or pwrite. Throws Error(environment) when one cannot be made.
std::unique_ptr<IoQueue> make_thread_queue(uint32_t depth);

}  // namespace sluice
