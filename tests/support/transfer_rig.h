// Transfers for a transfer lane, with the memory and the real files that they use.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "offload/arena.h"
#include "offload/io/backends.h"
#include "offload/nvme_files.h"
#include "offload/transfer_lane.h"
#include "tests/support/offload_test_support.h"
#include "tests/support/units.h"

namespace sluice {

constexpr int64_t kWait = 100'000;  // microseconds

inline uint64_t blocks_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Transfers of odd sizes. Each begins at a whole MiB of one file or, with several `weights`, of a tier with a
// directory for each weight. Memory to write from and memory to read into are separate.
struct Rig {
  explicit Rig(std::vector<uint64_t> sizes_, const std::vector<double>& weights = {1})
      : sizes(std::move(sizes_)), drives(weights.size()) {
    for (const uint64_t bytes : sizes) {
      begins.push_back(total);
      total += blocks_up(bytes, kMiB);
    }
    written = Arena(total);
    read = Arena(total);
    slots.resize(total / kMiB);
    reset(0);
    std::vector<NvmeDirectory> directories;
    for (size_t i = 0; i < weights.size(); ++i) directories.push_back({drives[i].path(), weights[i]});
    files.emplace(directories, total);
  }
  // Starts over, with other bytes to write.
  void reset(uint64_t salt) {
    key = salt * 1000;
    std::fill(slots.begin(), slots.end(), 0);
    std::fill_n(read.data(), read.bytes(), std::byte{0});
    for (size_t i = 0; i < sizes.size(); ++i) fill_pattern({written.data() + begins[i], sizes[i]}, key + i);
  }
  Transfer transfer(size_t i, IoDirection direction) {
    std::byte* const memory = (direction == IoDirection::write ? written : read).data() + begins[i];
    if (drives.size() > 1) return {direction, -1, begins[i], memory, sizes[i], slots, "", &*files};
    return {direction, files->files()[0].fd, begins[i], memory, sizes[i], slots, "scratch"};
  }
  // Starts a transfer whenever the lane has room, until all have completed or one has failed. Checks counts
  // and what was read.
  void run(TransferLane& lane, IoDirection direction) {
    const uint64_t base = lane.completed();
    for (size_t next = 0; !lane.error() && lane.completed() < base + sizes.size();) {
      while (next < sizes.size() && lane.can_start()) lane.start(transfer(next++, direction));
      const uint64_t before = lane.completed();
      lane.progress(kWait);
      EXPECT_LE(before, lane.completed());
      EXPECT_LE(lane.completed(), lane.started());
      EXPECT_EQ(lane.started(), base + next);
      for (uint64_t n = before; direction == IoDirection::read && n < lane.completed(); ++n)
        expect_read(n - base);
    }
  }
  void expect_read(size_t i) {
    EXPECT_EQ(pattern_end({read.data() + begins[i], sizes[i]}, key + i), sizes[i]) << "transfer " << i;
  }

  std::vector<uint64_t> sizes, begins;
  uint64_t total = 0, key = 0;
  Arena written, read;
  std::vector<uint64_t> slots;
  std::vector<DriveDirectory> drives;
  std::optional<NvmeFiles> files;
};

inline std::unique_ptr<IoQueue> real_queue(IoChoice choice = nullptr, std::span<std::byte> memory = {}) {
  return make_io_queue(choice, requests_in_flight(1), memory, nullptr);
}

}  // namespace sluice
