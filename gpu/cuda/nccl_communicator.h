// Ranks exchange bytes of their GPUs' memory by NCCL, on a stream of their own. gpu/ranks/communicator.h has
// the contract.
//
// NCCL's calls are the non-blocking ones: each is waited for by looking, with growing sleeps, at its event,
// at NCCL's asynchronous error, and at the ranks' communicator through host memory, by which whoever gives up
// tells the others. Then every rank aborts its own part of the communicator, which ends what the GPUs wait
// for. The calling thread's GPU becomes the rank's.
#pragma once

#include "gpu/accelerator.h"
#include "gpu/cuda/nccl.h"

namespace sluice::cuda {

// Accelerator::connect, for GPU `ordinal`. None where a rank has no NCCL or another version, or NCCL refuses,
// as it does where ranks share a GPU, or has not connected the ranks within a minute.
AcceleratorRanks connect_by_nccl(const Known<NcclApi>& api, int ordinal, Communicator& host);

}  // namespace sluice::cuda
