// Streams of the cuda device: the compute lane's, which its kernels go to, and one for each direction of
// copies. gpu/accelerator.h has the contract.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "gpu/accelerator.h"
#include "gpu/cuda_error.h"
#include "gpu/machine.h"

namespace sluice::cuda {

class Stream {
 public:
  Stream();  // of the calling thread's current GPU; without implicit order to others
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

constexpr std::array<LaneId, 3> kStreamLanes = {kComputeLane, kH2dLane, kD2hLane};
using LaneStreams = std::array<Stream, kStreamLanes.size()>;  // by kStreamLanes

// `streams` outlive what is returned.
std::unique_ptr<Streams> make_streams(int ordinal, const LaneStreams& streams,
                                      std::span<const uint32_t> instructions_max);

}  // namespace sluice::cuda
