// The MPI module: communicators over Open MPI, in a shared library of its own, so that a run without a
// launcher needs no MPI.
//
// libsluice_mpi.so lies beside the program and exports one function, kMpiEntry of type OpenMpi. Set-up code,
// main thread, once; what it returns lives until the process ends.
#pragma once

#include "gpu/communicator.h"

namespace sluice {

// For the collective lane and for the trainer. The entry throws Error(environment) where MPI cannot be
// started or lacks MPI_THREAD_MULTIPLE.
struct MpiRanks {
  std::unique_ptr<Communicator> lane, trainer;
  int local_rank = 0, local_size = 1;  // among the ranks of this machine
  void (*finish)() = nullptr;          // when all ranks have ended well: no calls after it
};

using OpenMpi = MpiRanks*();
constexpr const char* kMpiEntry = "sluice_open_mpi";
constexpr const char* kMpiModule = "libsluice_mpi.so";

}  // namespace sluice
