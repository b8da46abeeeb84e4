// How fast a directory of the nvme tier is, through the lanes that training uses, checksums included.
//
// A file is made in the directory and unlinked at once. It is written before anything is timed, since a first
// write into fresh space is slower. One thread calls; a second thread is used where reads and writes run at
// once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offload/io/queue.h"

namespace sluice {

struct DriveSizes {
  uint64_t file_bytes, memory_bytes;  // of each lane; multiples of kTransferBytes
};

// Checks that files of these sizes can be made in the directory, before time is spent on anything else.
// Throws Error(environment) as NvmeFiles does.
void check_drive(const std::string& directory, const DriveSizes& sizes);

struct DriveMeasurement {
  double read = 0, write = 0, mixed = 0;  // bytes a second; mixed: both directions together
  double core_seconds_a_byte = 0;         // for checksums and system calls, the same for reads and writes
  double latency_seconds = 0;             // of a transfer on an idle lane
  std::string queue;                      // the I/O back end, as make_io_queue describes it
};
// Throws Error(environment, io).
DriveMeasurement measure_drive(const std::string& directory, const DriveSizes& sizes, IoChoice io,
                               double seconds_each);

// Reads alone, without checksums, for several sizes of a request and numbers of requests in flight.
struct RequestRate {
  uint32_t bytes = 0, depth = 0;
  double bytes_per_second = 0;
};
std::vector<RequestRate> measure_requests(const std::string& directory, const DriveSizes& sizes, IoChoice io,
                                          double seconds_each);

}  // namespace sluice
