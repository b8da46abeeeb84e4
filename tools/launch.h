// Runs that a launcher has started as several processes: mpirun, or what speaks MPI as it does.
//
// The launcher's variables say so; then the MPI module is opened. A launcher hides the exit codes of its
// processes, so each writes its own, with the sentence, to OUT/rank-N.status. Main thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/error.h"
#include "engine/run/ranks.h"
#include "gpu/mpi_module.h"

namespace sluice {

class Launch {
 public:
  explicit Launch(MpiRanks& mpi)
      : mpi_(mpi), ranks_{mpi.lane.get(), mpi.trainer.get(), mpi.local_rank, mpi.local_size} {}

  const Ranks& ranks() const { return ranks_; }

  // Calls work and writes the status. What it throws ends the other ranks, and is thrown on by the first
  // rank, which hears of all.
  ExitCode run(const std::string& out_directory, const std::function<ExitCode()>& work) const;

 private:
  MpiRanks& mpi_;
  const Ranks ranks_;
};

// nullptr: nobody has started more than this process. Throws Error(environment) where the module or MPI
// itself is missing.
std::unique_ptr<Launch> open_launch();

}  // namespace sluice
