// Runs that a launcher has started as several processes: mpirun, or another launcher that starts MPI.
//
// Environment variables of the launcher show that it has started several ranks; then the MPI module is
// opened. A launcher hides the exit codes of its processes. So each rank writes its code, with the sentence
// of an error, to OUT/rank-N.status, if OUT exists. The first rank prints for all. If another run holds the
// directory, its statuses are left alone. The main thread calls; a thread of the MPI module ends a rank that
// does not end by itself after another was lost.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/base/error.h"
#include "engine/run/options/options.h"
#include "engine/run/ranks/ranks.h"
#include "gpu/ranks/mpi_module.h"

namespace sluice {

class RunDirectory;

class Launch {
 public:
  const Ranks& ranks() const;

  // Writes into this rank's status that it was lost, if --out exists. The status stays if the process is
  // killed before it can write another.
  void note_start() const;

  // Takes the lock of --out, calls work and writes the status. An exception ends the process, as end() does.
  // work gets the directory on the first rank, which prints for all; elsewhere nullptr.
  ExitCode run(const std::function<ExitCode(RunDirectory*)>& work) const;

  // To be called once the first rank has made and locked a directory that did not exist at the start. From
  // here on this rank writes its status there. Before this call, another run may hold the lock of --out.
  void hold() const;

  // Writes the status and ends this process and the other ranks. The first rank prints why. Nothing is
  // unwound: MPI may still write into this process's memory.
  [[noreturn]] void end(const std::exception& why) const;

 private:
  friend std::unique_ptr<Launch> open_launch(const std::string&, std::optional<double>);
  struct Ending;  // how the process ends: by the main thread or by the module's
  Launch(MpiRanks& mpi, std::shared_ptr<Ending> ending);

  MpiRanks& mpi_;
  const std::shared_ptr<Ending> ending_;
};

// For an error of the command line. If the verb runs on ranks and a launcher has started several, ends as
// Launch::end() does, because the command lines of other ranks may be right. Otherwise returns.
void end_if_launched(int argc, const char* const* argv, const Error& why);

// For a verb that runs in one process. Throws Error(usage) where a launcher has started several. On all ranks
// of a machine but one this error has no sentence, so that it is printed once.
void check_alone(Verb verb);

// nullptr: no launcher has started several processes. Throws Error(environment) where the module or MPI
// itself is missing, Error(usage) under a launcher that starts no MPI; on all ranks of a machine but one,
// these errors have no sentence. Ends the process when not all ranks have started within `timeout` seconds,
// by default kPatienceAtStart; a given `timeout` is also how long ranks wait for each other from then on.
std::unique_ptr<Launch> open_launch(const std::string& out_directory, std::optional<double> timeout);

}  // namespace sluice
