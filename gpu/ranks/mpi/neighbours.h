// The processes of this machine's ranks. The system tells whether one has ended, at once and for sure,
// however busy the machine is.
//
// A rank is seen if this process can open a pidfd of the rank's process, which takes Linux 5.3 and works in
// the same container only. All ranks of the machine construct their Neighbours together; afterwards any
// thread calls, one at a time.
#pragma once

#include <mpi.h>
#include <poll.h>

#include <optional>
#include <vector>

namespace sluice {

class Neighbours {
 public:
  // `machine`: this machine's ranks; `world`: all ranks. Rank numbers here are those of `world`.
  Neighbours(MPI_Comm world, MPI_Comm machine);
  ~Neighbours();
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

  bool sees(int rank) const;
  bool sees_all() const { return static_cast<int>(seen_.size()) == others_; }
  // The first seen rank whose process has ended, if any has.
  std::optional<int> ended();

 private:
  int others_ = 0;  // ranks beside this one, on all machines
  std::vector<int> seen_;
  std::vector<pollfd> processes_;  // pidfds of `seen_`
};

}  // namespace sluice
