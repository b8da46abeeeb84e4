// The cuda device's ops, without ownership of a GPU. The tests' emulation runs them without one.
#pragma once

#include <memory>

#include "gpu/cuda/kernels.h"

namespace sluice::cuda {

// A device that enqueues on `queue`; `multiplier` outlives it. Calls return before the work is done. Loads
// the kernels onto the current GPU. Throws Error (environment).
std::unique_ptr<Device> make_ops_device(const Queue& queue, Multiplier& multiplier);

}  // namespace sluice::cuda
