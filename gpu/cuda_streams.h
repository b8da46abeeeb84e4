// Streams of the cuda device: the compute lane's, which its kernels go to, and one for each direction of
// copies. gpu/accelerator.h has the contract.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "gpu/accelerator.h"
#include "gpu/cuda_owned.h"
#include "gpu/machine.h"

namespace sluice::cuda {

constexpr std::array<LaneId, 3> kStreamLanes = {kComputeLane, kH2dLane, kD2hLane};
using LaneStreams = std::array<Stream, kStreamLanes.size()>;  // by kStreamLanes

// `streams` outlive what is returned.
std::unique_ptr<Streams> make_streams(int ordinal, const LaneStreams& streams,
                                      std::span<const uint32_t> instructions_max);

}  // namespace sluice::cuda
