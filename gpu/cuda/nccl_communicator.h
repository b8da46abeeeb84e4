// Ranks exchange bytes of their GPUs' memory by NCCL, on one stream. gpu/accelerator.h has the contract.
// There is one NCCL communicator, of all ranks. Process groups exchange by pairs of messages over it, so all
// exchanges of the ranks are in one order.
//
// NCCL's calls are non-blocking. A thread that waits, until a call is enqueued or until its work is done,
// does so in a loop with growing sleeps. It looks at NCCL's asynchronous error, and at the ranks'
// communicator through host memory. A rank that gives up tells the others by that communicator. Every rank
// then aborts its own part of NCCL's communicator, which ends what the GPUs wait for. NCCL takes one call at
// a time, so a lock is held during each. A call makes the rank's GPU the current one of the calling thread.
#pragma once

#include "gpu/accelerator.h"
#include "gpu/cuda/nccl.h"
#include "gpu/cuda/owned.h"

namespace sluice::cuda {

// Accelerator::connect, for GPU `ordinal`. There is no communicator if a rank has no NCCL or another version
// of it, if NCCL refuses, as it does where ranks share a GPU, or if connecting takes more than a minute.
// `stream`, of that GPU, and `host` outlive the communicator.
AcceleratorRanks connect_by_nccl(const Known<NcclApi>& api, int ordinal, const Stream& stream,
                                 Communicator& host);

}  // namespace sluice::cuda
