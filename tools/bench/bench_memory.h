// Memory in which a device computes, and a clock for the work there. Measurements of `sluice bench` use it in
// the same way for a device that computes in host memory and for one with memory of its own.
//
// One thread uses it. The device outlives it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "gpu/device.h"
#include "offload/arena.h"
#include "tools/bench/median.h"

namespace sluice {

class BenchMemory {
 public:
  // Throws Error(environment) if it cannot be allocated.
  BenchMemory(Device& device, uint64_t bytes);

  std::span<std::byte> span() const { return {data_, bytes_}; }

  // Fills `bytes` bytes at `to` with the bytes of `from`, repeated. Complete on return.
  void fill(std::byte* to, uint64_t bytes, std::span<const std::byte> from);
  void write(std::byte* to, std::span<const std::byte> from) { fill(to, from.size(), from); }

  // Seconds of one call of `work` when many calls follow each other. `work` calls the device.
  Rounds rounds_of_call(const std::function<void()>& work, const Repeats& repeats);

 private:
  static constexpr uint64_t kStaging = 8ull << 20;

  Accelerator* const accelerator_;
  uint64_t bytes_;
  Arena host_;  // the memory itself, or a pinned staging buffer for an accelerator
  std::shared_ptr<std::byte> there_;
  std::shared_ptr<void> pinned_;
  std::unique_ptr<Streams> streams_;
  uint64_t tickets_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace sluice
