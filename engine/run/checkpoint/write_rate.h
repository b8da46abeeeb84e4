// How fast the drive of a run takes what a checkpoint would write. Caller: train, before the first step.
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

// Bytes a second: writes a file of 64 MiB to `directory`, as checkpoints are written, which is never seen
// there. Takes half a second, and as long as the drive needs to say that all is written. 0: that failed,
// which is no error here, or a checkpoint is smaller than that and takes no time worth knowing.
double write_rate(const std::string& directory, uint64_t checkpoint_bytes);

}  // namespace sluice
