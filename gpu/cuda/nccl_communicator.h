// Ranks exchange bytes of their GPUs' memory by NCCL, on a stream of their own. gpu/ranks/communicator.h has
// the contract.
//
// NCCL's calls are non-blocking. A rank waits for a call in a loop with growing sleeps. It looks at the
// call's event, at NCCL's asynchronous error, and at the ranks' communicator through host memory. A rank that
// gives up tells the others by that communicator. Every rank then aborts its own part of NCCL's communicator,
// which ends what the GPUs wait for. A call makes the rank's GPU the current one of the calling thread.
#pragma once

#include "gpu/accelerator.h"
#include "gpu/cuda/nccl.h"

namespace sluice::cuda {

// Accelerator::connect, for GPU `ordinal`. There is no communicator if a rank has no NCCL or another version,
// if NCCL refuses, as it does where ranks share a GPU, or if it does not connect the ranks within a minute.
AcceleratorRanks connect_by_nccl(const Known<NcclApi>& api, int ordinal, Communicator& host);

}  // namespace sluice::cuda
