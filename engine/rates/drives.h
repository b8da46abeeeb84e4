// Drives of a machine description: which part of a tier's bytes each has, and which directory is on
// which drive. Plain functions; the simulator and the set-up code call them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/rates/machine_rates.h"

namespace sluice {

// Bytes a second each way while a drive reads and writes at once: half of the mixed rate each. If one
// direction alone is slower than its half, the other direction gets the rest.
struct DuplexRates {
  double read = 0, write = 0;
};
DuplexRates duplex_rates(const DriveRates& drive);

// Bytes a second that a drive moves while it reads and writes equal amounts, from the common start of both
// directions until both are done. If each direction alone reaches half of the mixed rate, the result is the
// mixed rate. The drive shares of a tier are in proportion to these rates. Training writes nearly as much
// state to a tier as it reads from there, and reads and writes at the same time. With these shares all drives
// are done at the same moment.
double drive_weight(const DriveRates& drive);

struct DrivePart {
  uint32_t drive = 0;  // index into `drives`
  double part = 0;     // its drive share, of the tier's bytes
};
std::vector<DrivePart> drive_parts(const std::vector<DriveRates>& drives, const std::string& tier);

// For each directory, the row whose rates it is taken to have. Only rows of `tier` count; if there are none,
// the result is empty.
// 1. A directory gets the row of the same path (symbolic links followed), unless an earlier directory has
//    that row.
// 2. The other directories, in order, get the rows that are left, one by one. When no row is left, they get
//    the rows of the tier again, from the first on.
std::vector<DriveRates> match_drives(const std::vector<DriveRates>& drives, const std::string& tier,
                                     const std::vector<std::string>& directories);

}  // namespace sluice
