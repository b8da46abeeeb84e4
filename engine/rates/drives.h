// Drives of a machine description: what each does of a tier's work, and which of them directories are on.
// Plain functions; the simulator and the set-up code call them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/rates/machine_rates.h"

namespace sluice {

// Bytes a second each way while a drive reads and writes: half of the mixed rate, and what one direction
// cannot use by its rate alone goes to the other.
struct DuplexRates {
  double read = 0, write = 0;
};
DuplexRates duplex_rates(const DriveRates& drive);

// A tier's bytes are spread over its drives in proportion to this: bytes a second that the drive moves when
// it reads and writes equal amounts, begun together, until both are done. Training carries nearly as much
// state to a tier as it fetches from there, both at the same time; with these weights all drives are done at
// the same moment. Where both directions can use half of the mixed rate, it is the mixed rate.
double drive_weight(const DriveRates& drive);

struct DrivePart {
  uint32_t drive = 0;  // index into `drives`
  double part = 0;     // of the tier's bytes
};
std::vector<DrivePart> drive_parts(const std::vector<DriveRates>& drives, const std::string& tier);

// For each directory the row, of those of the drives' tier, whose rates it is taken to have: the row of the
// same path (symbolic links followed) that no directory before it has; for the other directories, in order,
// the rows that are left, in order; and when no row is left, those of the tier from the first on again.
// Empty if the tier has no rows.
std::vector<DriveRates> match_drives(const std::vector<DriveRates>& drives, const std::string& tier,
                                     const std::vector<std::string>& directories);

}  // namespace sluice
