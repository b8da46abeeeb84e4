#include "tools/bench/drive_rates.h"

#include <fmt/format.h>

#include <ctime>
#include <exception>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/units.h"
#include "offload/io/backends.h"
#include "tools/bench/median.h"
#include "tools/bench/nvme_lane.h"

namespace sluice {

namespace {

constexpr uint64_t kLanes = 2;  // timed at once

// Processor time of the whole process: some I/O back ends work in threads of their own.
double cpu_seconds() {
  timespec now{};
  CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) == 0, "a process has no clock of its processor time");
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Both directions at once, each on a lane and a thread of its own as in training.
double measure_mixed(NvmeLane& reads, NvmeLane& writes, double seconds) {
  double written = 0;
  std::exception_ptr failed;
  std::thread writer([&] {
    try {
      written = writes.run_for(IoDirection::write, seconds);
    } catch (...) {
      failed = std::current_exception();
    }
  });
  double read = 0;
  try {
    read = reads.run_for(IoDirection::read, seconds);
  } catch (...) {
    failed = std::current_exception();
  }
  writer.join();
  if (failed) std::rethrow_exception(failed);
  return read + written;
}

// Bytes a second of reads of one size at one depth, in passes over the file. Makes at least one read.
double measure_request(const NvmeLane& lane, IoChoice io, uint32_t bytes, uint32_t depth, double seconds) {
  const std::unique_ptr<IoQueue> queue = make_io_queue(io, depth, lane.memory(), nullptr);
  const NvmeFiles::File& file = lane.files().files().front();
  std::vector<IoCompletion> done(depth);
  uint64_t next = 0, completed = 0;
  const auto take = [&] {
    constexpr int64_t kMicroseconds = 10'000;
    const uint32_t count = queue->poll(done, kMicroseconds);
    for (uint32_t i = 0; i < count; ++i) {
      if (done[i].result < 0)
        throw to_error({IoFault::failed, IoDirection::read, file.name.c_str(), done[i].tag, bytes,
                        static_cast<int>(-done[i].result)});
      completed += static_cast<uint64_t>(done[i].result);
    }
  };
  const double begin = steady_seconds();
  while (steady_seconds() < begin + seconds || completed == 0) {
    for (; queue->in_flight() < depth; next = (next + bytes) % file.bytes)
      queue->submit({IoDirection::read, file.fd, next, lane.memory().data() + next % lane.memory().size(),
                     bytes, next});
    take();
  }
  const double rate = static_cast<double>(completed) / (steady_seconds() - begin);
  while (queue->in_flight() > 0) take();
  return rate;
}

}  // namespace

void check_drive(const std::string& directory, const DriveSizes& sizes) {
  const uint64_t needed = kLanes * sizes.file_bytes, free = free_bytes(directory);
  if (needed > free)
    throw Error(ExitCode::environment,
                fmt::format("The NVMe directory {} is too small: bench writes {} there, and {} are free.",
                            printable(directory), in_mib(needed), in_mib(free)),
                "Free space there, or give another --nvme-dir.");
  const NvmeFiles files({{directory}}, needed);
}

DriveMeasurement measure_drive(const std::string& directory, const DriveSizes& sizes, IoChoice io,
                               double seconds_each) {
  NvmeLane lane(directory, sizes.file_bytes, io, sizes.memory_bytes),
      other(directory, sizes.file_bytes, io, sizes.memory_bytes);
  DriveMeasurement drive;
  drive.queue = lane.description();
  lane.pass(IoDirection::write);
  other.pass(IoDirection::write);
  const double cpu_before = cpu_seconds();
  const uint64_t bytes_before = lane.moved_bytes();
  drive.write = lane.run_for(IoDirection::write, seconds_each);
  drive.read = lane.run_for(IoDirection::read, seconds_each);
  drive.core_seconds_a_byte =
      (cpu_seconds() - cpu_before) / static_cast<double>(lane.moved_bytes() - bytes_before);
  drive.mixed = measure_mixed(lane, other, seconds_each);
  drive.latency_seconds =
      median_seconds([&] { lane.transfer(IoDirection::read, kRequestBytes); }, {.seconds_at_least = 0.05}) -
      kRequestBytes / drive.read;
  drive.latency_seconds = std::max(drive.latency_seconds, 0.0);
  return drive;
}

std::vector<RequestRate> measure_requests(const std::string& directory, const DriveSizes& sizes, IoChoice io,
                                          double seconds_each) {
  NvmeLane lane(directory, sizes.file_bytes, io, sizes.memory_bytes);
  lane.pass(IoDirection::write);
  std::vector<RequestRate> rates;
  for (const uint32_t size : {128u << 10, 1u << 20})
    for (const uint32_t depth : {1u, 4u, 16u})
      rates.push_back({size, depth, measure_request(lane, io, size, depth, seconds_each)});
  return rates;
}

}  // namespace sluice
