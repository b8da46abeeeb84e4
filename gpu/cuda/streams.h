// Streams of the cuda device: one for the compute lane, which runs the kernels, one for each direction of
// copies, and one on which NCCL exchanges bytes with other ranks. gpu/accelerator.h has the contract.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "gpu/accelerator.h"
#include "gpu/cuda/owned.h"
#include "gpu/machine.h"

namespace sluice::cuda {

// Returns how many of the `bytes` bytes from `host` on lie in one pinned piece with the first byte
// (gpu/cuda/device.h).
inline uint64_t bytes_in_piece(const void* host, uint64_t bytes, uint64_t piece_bytes) {
  return std::min(bytes, piece_bytes - reinterpret_cast<uintptr_t>(host) % piece_bytes);
}

constexpr std::array<LaneId, 4> kStreamLanes = {kComputeLane, kH2dLane, kD2hLane, kCollectiveLane};
using LaneStreams = std::array<Stream, kStreamLanes.size()>;  // by kStreamLanes

// The lane's position in kStreamLanes; kStreamLanes.size() for a lane without a stream.
constexpr size_t stream_index(LaneId lane) {
  return static_cast<size_t>(std::find(kStreamLanes.begin(), kStreamLanes.end(), lane) -
                             kStreamLanes.begin());
}

// `streams` outlive what is returned. `instructions_max` as in gpu/accelerator.h. Host memory is pinned in
// pieces of `pinned_piece_bytes`.
std::unique_ptr<Streams> make_streams(int ordinal, const LaneStreams& streams, uint64_t pinned_piece_bytes,
                                      std::span<const uint32_t> instructions_max);

}  // namespace sluice::cuda
