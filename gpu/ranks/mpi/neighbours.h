// The processes of this machine's ranks, as the system knows them: whether one has ended, at once and for
// sure, however busy the machine is.
//
// A rank is seen where this process may name its process: Linux 5.3, and not from another container. Made by
// all ranks of the machine together; then any thread, one at a time.
#pragma once

#include <mpi.h>
#include <poll.h>

#include <optional>
#include <vector>

namespace sluice {

class Neighbours {
 public:
  // `machine`: its ranks; `world`: all of them, by which they are numbered here.
  Neighbours(MPI_Comm world, MPI_Comm machine);
  ~Neighbours();
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

  bool sees(int rank) const;
  bool sees_all() const { return static_cast<int>(seen_.size()) == others_; }
  // The first of them that has ended, if any has.
  std::optional<int> ended();

 private:
  int others_ = 0;  // ranks beside this one, on all machines
  std::vector<int> seen_;
  std::vector<pollfd> processes_;  // theirs
};

}  // namespace sluice
