// An NVMe lane over a file of its own, unlinked, as benchmarks time it. One thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/error.h"
#include "offload/arena.h"
#include "offload/io_queue.h"
#include "offload/nvme_files.h"
#include "offload/transfer_lane.h"

namespace sluice {

constexpr uint64_t kTransferBytes = 16ull << 20;  // about a shard's state

class NvmeLane {
 public:
  // `bytes` is a multiple of kTransferBytes. Throws Error(environment, io).
  NvmeLane(const std::string& directory, uint64_t bytes, IoChoice io)
      : files_({{directory, bytes}}),
        memory_(std::min(bytes, kMemoryBytes), {.prefault_threads = 1}),
        slots_(bytes / kRequestBytes),
        lane_(make_io_queue(io, kRequestsInFlight, memory_.span(), &description_), 64, files_.alignment()) {
    uint64_t word = 1;  // bytes that nothing on the way can compress (a linear congruential sequence)
    for (uint64_t i = 0; i + 8 <= memory_.bytes(); i += 8) {
      word = word * 6364136223846793005u + 1442695040888963407u;
      *reinterpret_cast<uint64_t*>(memory_.data() + i) = word;
    }
  }
  const std::string& description() const { return description_; }

  // Bytes a second of one pass over the file. Throws Error(io).
  double pass(IoDirection direction) {
    const auto begin = std::chrono::steady_clock::now();
    for (uint64_t next = 0; next < files_.bytes() || !lane_.idle();) {
      for (; next < files_.bytes() && lane_.can_start(); next += kTransferBytes)
        lane_.start({direction, files_.files()[0].fd, next, memory_.data() + next % memory_.bytes(),
                     kTransferBytes, slots_, files_.files()[0].name.c_str()});
      lane_.progress(10'000);
      if (lane_.error()) throw to_error(*lane_.error());
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    return static_cast<double>(files_.bytes()) / seconds.count();
  }

 private:
  static constexpr uint64_t kMemoryBytes = 256ull << 20;  // more than caches hold

  std::string description_;
  NvmeFiles files_;
  Arena memory_;
  std::vector<uint64_t> slots_;
  TransferLane lane_;
};

}  // namespace sluice
