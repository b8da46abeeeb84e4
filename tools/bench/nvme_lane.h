// A file lane over an unlinked file of its own, for benchmarks. One thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "offload/arena.h"
#include "offload/io/backends.h"
#include "offload/nvme_files.h"
#include "offload/transfer_lane.h"

namespace sluice {

constexpr uint64_t kTransferBytes = 16ull << 20;  // about the optimizer state of a shard

class NvmeLane {
 public:
  // `bytes`, of the file, and `memory_bytes` are multiples of kTransferBytes. Throws Error(environment, io).
  NvmeLane(const std::string& directory, uint64_t bytes, IoChoice io, uint64_t memory_bytes = kMemoryBytes)
      : files_({{directory}}, bytes),
        memory_(std::min(bytes, memory_bytes), {.prefault_threads = 1}),
        slots_(bytes / kRequestBytes),
        lane_(make_io_queue(io, requests_in_flight(1), memory_.span(), &description_), 64,
              files_.alignment()) {
    uint64_t word = 1;  // bytes that nothing on the way can compress (a linear congruential sequence)
    for (uint64_t i = 0; i + 8 <= memory_.bytes(); i += 8) {
      word = word * 6364136223846793005u + 1442695040888963407u;
      *reinterpret_cast<uint64_t*>(memory_.data() + i) = word;
    }
  }
  const std::string& description() const { return description_; }
  const NvmeFiles& files() const { return files_; }
  std::span<std::byte> memory() const { return memory_.span(); }
  uint64_t moved_bytes() const { return lane_.completed() * kTransferBytes; }  // by pass() and run_for()

  // Bytes a second of one pass over the file. Throws Error(io).
  double pass(IoDirection direction) {
    const double begin = steady_seconds();
    for (uint64_t next = 0; next < files_.bytes() || !lane_.idle();) {
      for (; next < files_.bytes() && lane_.can_start(); next += kTransferBytes)
        start(direction, next, kTransferBytes);
      progress();
    }
    return static_cast<double>(files_.bytes()) / (steady_seconds() - begin);
  }

  // Bytes a second of repeated passes over the file, for `seconds` seconds. At least one transfer is made, so
  // that even a drive that stalls has a rate. Throws Error(io).
  double run_for(IoDirection direction, double seconds) {
    const double begin = steady_seconds();
    const uint64_t before = moved_bytes();
    const auto enough = [&] { return steady_seconds() >= begin + seconds && moved_bytes() > before; };
    for (uint64_t next = 0; !enough(); next %= files_.bytes()) {
      for (; next < files_.bytes() && lane_.can_start(); next += kTransferBytes)
        start(direction, next, kTransferBytes);
      progress();
    }
    const double rate = static_cast<double>(moved_bytes() - before) / (steady_seconds() - begin);
    while (!lane_.idle()) progress();
    return rate;
  }

  // Seconds of one transfer on the idle lane. Throws Error(io).
  double transfer(IoDirection direction, uint64_t bytes) {
    const double begin = steady_seconds();
    start(direction, 0, bytes);
    while (!lane_.idle()) progress();
    return steady_seconds() - begin;
  }

 private:
  static constexpr uint64_t kMemoryBytes = 256ull << 20;  // more than caches hold

  void start(IoDirection direction, uint64_t offset, uint64_t bytes) {
    lane_.start({direction, files_.files()[0].fd, offset, memory_.data() + offset % memory_.bytes(), bytes,
                 slots_, files_.files()[0].name.c_str()});
  }
  void progress() {
    constexpr int64_t kMicroseconds = 10'000;
    lane_.progress(kMicroseconds);
    if (lane_.error()) throw to_error(*lane_.error());
  }

  std::string description_;
  NvmeFiles files_;
  Arena memory_;
  std::vector<uint64_t> slots_;
  TransferLane lane_;
};

}  // namespace sluice
