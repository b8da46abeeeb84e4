// Finds out which ranks have given up or are lost. A process has one Watch, with two threads of its own.
//
// 1. A rank that ends tells every other why, on an MPI communicator of the watch's own.
// 2. When a rank of this machine has ended, the system says so (neighbours.h). For ranks of other machines,
//    and for ranks that hang, each rank sends signs of life to the next rank and listens for signs of the
//    previous rank. After a SIGTERM, a short silence of a rank that is not seen counts as its death: mpirun
//    sends SIGTERM when a rank has died, and leaves the others one second at most. On other machines SIGTERM
//    comes later, so a rank that gets it tells all. Otherwise silence counts only when it outlasts the
//    patience: all ranks may have been stopped by hand.
// 3. Only one of the threads calls MPI, which may never return where a connection has broken. The other
//    thread judges silences, including MPI's. When nobody else ends the process, this thread does, by
//    MpiHooks::abandon.
#pragma once

#include <mpi.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "gpu/ranks/mpi/neighbours.h"
#include "gpu/ranks/mpi_module.h"

namespace sluice {

// Throws Error(rank_lost) for another code than MPI_SUCCESS.
void check_mpi(int code, const char* what);

class Watch {
 public:
  Watch(MPI_Comm world, MPI_Comm machine, MpiHooks hooks);
  ~Watch() { stop(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // `doing` says what this rank waits for: "rank 0 waits at step 12 for ...".
  void start(std::function<std::string()> doing, std::function<double()> patience);
  void stop();

  // Any thread.
  bool lost() const { return lost_; }
  [[noreturn]] void throw_lost();
  void tell(const std::string& reason) noexcept;               // this rank ends, for a reason of its own
  void lose(int missing, const std::string& reason) noexcept;  // this rank has found that another one hangs

 private:
  enum class Cause { own, hang, death };
  void set_reason(const std::string& reason, Cause cause, int last) noexcept;

  void exchange();  // the thread that calls MPI
  bool hear(int from, int tag);
  void hear_reason();
  void send_to_all(const std::string& text, int tag, int last);
  void send(const std::string& text, int tag, int to);

  void judge();  // the other thread
  void lose_dead(int missing, const std::string& reason) noexcept;
  void look_for_losses(double silent, double stuck, double terminating);

  const MpiHooks hooks_;
  Neighbours neighbours_;  // asked by judge()
  std::function<std::string()> doing_;
  std::function<double()> patience_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1, before_ = 0;
  std::thread exchanging_, judging_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> rounds_{0}, signs_{0};  // rounds of exchange(); signs heard
  std::atomic<bool> terminated_{false};         // SIGTERM has come to some rank

  std::mutex mutex_;
  std::string reason_;
  bool tells_ = false;                       // the others do not know the reason yet
  int last_ = kNobody;                       // the rank to tell last
  std::atomic<bool> has_found_{false};       // that another rank hangs
  std::atomic<bool> ends_by_itself_{false};  // the reason is this rank's own
  std::atomic<bool> lost_{false};            // there is a reason, which stays as it is
};

}  // namespace sluice
