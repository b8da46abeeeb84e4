// Runs that a launcher has started as several processes: mpirun, or what speaks MPI as it does.
//
// The launcher's variables say so; then the MPI module is opened. A launcher hides the exit codes of its
// processes, so each writes its own, with the sentence, to OUT/rank-N.status, if there is an OUT. The first
// rank, which hears of all, prints for all. Where another run holds the directory its statuses are left
// alone. Main thread; a rank that does not end by itself after another was lost is ended by the module's.
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

  // From here on a process that ends without a word has said in its status that it was lost, if --out is
  // there.
  void note_start() const;

  // Takes the lock of --out, calls work and writes the status; what either throws ends the process, as end()
  // does. work gets the directory on the first rank, which speaks for all; elsewhere nullptr.
  ExitCode run(const std::function<ExitCode(RunDirectory*)>& work) const;

  // The first rank has the lock, and so statuses in --out are this run's to write. For a directory that was
  // not there before.
  void hold() const;

  // Ends the process, with its status, and the other ranks. The first one prints why. Nothing is unwound: MPI
  // may still write into this process's memory.
  [[noreturn]] void end(const std::exception& why) const;

 private:
  friend std::unique_ptr<Launch> open_launch(const std::string&, std::optional<double>);
  struct Ending;  // how the process ends, on one thread or the other
  Launch(MpiRanks& mpi, std::shared_ptr<Ending> ending);

  MpiRanks& mpi_;
  const std::shared_ptr<Ending> ending_;
};

// Removes what ranks from `first` on have left of an earlier run.
void remove_statuses(const std::string& out_directory, int first);

// For a verb that runs on ranks, with a command line that cannot be read: as Launch::end(), where a launcher
// has started several ranks. Some of them may have a better one.
void end_if_launched(int argc, const char* const* argv, const Error& why);

// For a verb that ranks would only repeat, each in the others' way. Throws Error(usage) where a launcher has
// started several processes; on one rank a machine with the sentence.
void check_alone(Verb verb);

// nullptr: nobody has started more than this process. Throws Error(environment) where the module or MPI
// itself is missing, Error(usage) under a launcher that starts no MPI; on one rank a machine with the
// sentence. Ends the process when not all ranks have started within `timeout`, seconds, which is the
// ranks' patience from then on; by default kPatienceAtStart.
std::unique_ptr<Launch> open_launch(const std::string& out_directory, std::optional<double> timeout);

}  // namespace sluice
