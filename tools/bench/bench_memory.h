// Memory that a device computes in, and the clock of what runs there, as benchmarks need them: the same for a
// device that computes in host memory and for one with memory of its own.
//
// One thread. The device outlives it.
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
  // Throws Error(environment) where it cannot be had.
  BenchMemory(Device& device, uint64_t bytes);

  std::span<std::byte> span() const { return {data_, bytes_}; }

  // `bytes` at `to` become those of `from`, repeated. They are there on return.
  void fill(std::byte* to, uint64_t bytes, std::span<const std::byte> from);
  void write(std::byte* to, std::span<const std::byte> from) { fill(to, from.size(), from); }

  // Median seconds of `work`, which calls the device: as it takes when one follows the other.
  double seconds_of(const std::function<void()>& work, const Repeats& repeats);

 private:
  static constexpr uint64_t kStaging = 8ull << 20;

  Accelerator* const accelerator_;
  uint64_t bytes_;
  Arena host_;  // all, or pinned and on the way to an accelerator
  std::shared_ptr<std::byte> there_;
  std::shared_ptr<void> pinned_;
  std::unique_ptr<Streams> streams_;
  uint64_t tickets_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace sluice
