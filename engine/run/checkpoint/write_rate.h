// How fast the drive of a run takes what a checkpoint would write. Caller: train, before the first step.
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

// Bytes a second. Writes up to 64 MiB, as checkpoints are written, to a file in `directory` that is unlinked
// at once. Writing ends after half a second at most; then the drive may take any time to say that all is
// written. 0: writing failed, which is no error here, or a checkpoint is smaller than 64 MiB and takes no
// time worth knowing.
double write_rate(const std::string& directory, uint64_t checkpoint_bytes);

}  // namespace sluice
