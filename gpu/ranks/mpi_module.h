// The MPI module: communicators over Open MPI, in a shared library of its own, so that a run without a
// launcher needs no MPI.
//
// libsluice_mpi.so lies beside the command or, if the command is installed, in ../lib/sluice. It exports one
// function, kMpiEntry of type OpenMpi. The main thread calls it, once; what it returns lives until the
// process ends.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "gpu/ranks/communicator.h"

namespace sluice {

constexpr int kNobody = -1;

// The module calls these on two threads of its own, which look many times a second. Both threads call
// `terminated`; only one of them makes the other calls.
struct MpiHooks {
  std::function<bool()> terminated;  // whether a SIGTERM has come
  std::function<void()> unharmed;    // called repeatedly after a SIGTERM, as long as no rank is missing
  // Called once, on the rank that first finds that another rank hangs. `rank`: the rank that found it.
  // `missing`: the rank that hangs, or kNobody if that cannot be told.
  std::function<void(int rank, int missing, const std::string& reason)> found;
  // Called when a rank was lost some time ago and this process still lives.
  std::function<void(int rank, const std::string& reason)> abandon;
};

// One communicator is for the collective lane, one for the trainer. After a call of the lane has
// thrown, MPI may still write into the memory that the call was given. This memory must stay until the
// process ends. The entry throws Error(environment) where MPI cannot be started or lacks MPI_THREAD_MULTIPLE.
struct MpiRanks {
  std::unique_ptr<Communicator> lane, trainer;
  int local_rank = 0, local_size = 1;  // among the ranks of this machine
  int local_first = 0;                 // the number, among all ranks, of this machine's first rank
  std::function<void()> finish;        // called when all ranks have ended well; no calls may follow
};

using OpenMpi = MpiRanks*(const MpiHooks& hooks);
constexpr const char* kMpiEntry = "sluice_open_mpi";
constexpr const char* kMpiModule = "libsluice_mpi.so";

}  // namespace sluice
