// The cuda device's ops, apart from the GPU that it owns. The tests' emulation runs them without a GPU.
#pragma once

#include <memory>

#include "gpu/cuda/kernels.h"

namespace sluice::cuda {

// A device that enqueues on `queue`; `multiplier` outlives it. Calls return before the work is done. Loads
// the kernels onto the current GPU. Throws Error (environment).
std::unique_ptr<Device> make_ops_device(const Queue& queue, Multiplier& multiplier);

}  // namespace sluice::cuda
