// How fast a directory of the nvme tier is, through the lanes that training uses: checksums included.
//
// A file is made in the directory and unlinked at once; it is written before anything is timed, since a first
// write into fresh space is slower. One thread calls; reads and writes at once take a second.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offload/io/backends.h"

namespace sluice {

struct DriveSizes {
  uint64_t file_bytes, memory_bytes;  // of each of the lanes; multiples of kTransferBytes
};

// Whether its files can be made in the directory, before minutes are spent on anything else. Throws
// Error(environment) as NvmeFiles does.
void check_drive(const std::string& directory, const DriveSizes& sizes);

struct DriveMeasurement {
  double read = 0, write = 0, mixed = 0;  // bytes a second; mixed: both directions together
  double core_seconds_a_byte = 0;         // of checksums and system calls, reading and writing alike
  double latency_seconds = 0;             // of a transfer that nothing is before
  std::string queue;                      // the I/O back end, as make_io_queue describes it
};
// Throws Error(environment, io).
DriveMeasurement measure_drive(const std::string& directory, const DriveSizes& sizes, IoChoice io,
                               double seconds_each);

// Reads alone, without checksums, by the size of a request and how many are in flight.
struct RequestRate {
  uint32_t bytes = 0, depth = 0;
  double bytes_per_second = 0;
};
std::vector<RequestRate> measure_requests(const std::string& directory, const DriveSizes& sizes, IoChoice io,
                                          double seconds_each);

}  // namespace sluice
