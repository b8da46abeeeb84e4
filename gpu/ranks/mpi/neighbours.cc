#include "gpu/ranks/mpi/neighbours.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "gpu/ranks/mpi/watch.h"

namespace sluice {

namespace {

// The name of a process. All ranks of the machine exchange their names.
struct Name {
  int64_t rank = 0, process = 0;
  uint64_t numbering = 0;  // the process's PID namespace: containers have their own. 0: unknown
};

uint64_t own_numbering() {
  struct stat info {};
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

}  // namespace

Neighbours::Neighbours(MPI_Comm world, MPI_Comm machine) {
  int rank = 0, size = 1, here = 1;
  check_mpi(MPI_Comm_rank(world, &rank), "Asking for the rank");
  check_mpi(MPI_Comm_size(world, &size), "Asking for the number of ranks");
  check_mpi(MPI_Comm_size(machine, &here), "Asking for the number of ranks");
  others_ = size - 1;
  const Name mine{rank, getpid(), own_numbering()};
  std::vector<Name> names(static_cast<size_t>(here));
  check_mpi(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, names.data(), sizeof mine, MPI_BYTE, machine),
            "Setting up");
  for (const Name& name : names) {
    if (name.rank == rank || name.numbering != mine.numbering || mine.numbering == 0) continue;
    const long process = syscall(SYS_pidfd_open, name.process, 0);
    if (process < 0) continue;  // only signs of life tell whether it has ended
    seen_.push_back(static_cast<int>(name.rank));
    processes_.push_back({static_cast<int>(process), POLLIN, 0});
  }
}

Neighbours::~Neighbours() {
  for (const pollfd& p : processes_) close(p.fd);
}

bool Neighbours::sees(int rank) const { return std::find(seen_.begin(), seen_.end(), rank) != seen_.end(); }

std::optional<int> Neighbours::ended() {
  if (poll(processes_.data(), processes_.size(), 0) <= 0) return std::nullopt;
  for (size_t i = 0; i < processes_.size(); ++i)
    if (processes_[i].revents & POLLIN) return seen_[i];
  return std::nullopt;
}

}  // namespace sluice
