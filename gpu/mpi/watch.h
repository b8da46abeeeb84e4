// Who has given up, and who is still alive: one for a process, with a thread of its own.
//
// 1. A rank that ends tells every other why, on a communicator for that alone.
// 2. Each rank gives a sign of life to the next, and misses those of the one before. After a SIGTERM a short
//    silence is enough: mpirun, which sends one when a rank has died, gives the others one second more.
//    Without one, silence is told only when it outlasts the patience: all may have been stopped by hand.
// 3. A process that does not end by itself once a rank is lost is ended from here, with its status written.
#pragma once

#include <mpi.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "gpu/mpi_module.h"

namespace sluice {

// Throws Error(rank_lost) for another code than MPI_SUCCESS.
void check_mpi(int code, const char* what);

class Watch {
 public:
  Watch(MPI_Comm world, MpiHooks hooks);
  ~Watch() { stop(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // `doing` says what this rank waits for: "rank 0 waits at step 12 for ...".
  void start(std::function<std::string()> doing, std::function<double()> patience);
  void stop();

  // Any thread.
  bool lost() const { return lost_; }
  [[noreturn]] void throw_lost();
  void tell(const std::string& reason) noexcept;  // this rank ends, for a reason of its own
  void lose(const std::string& reason) noexcept;  // this rank has found that another is lost

 private:
  void run();
  void give_sign();
  bool hear_signs();
  void hear_reason();
  void send_reason(const std::string& reason) noexcept;

  const MpiHooks hooks_;
  std::function<std::string()> doing_;
  std::function<double()> patience_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::thread thread_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::string reason_;
  std::atomic<bool> ends_by_itself_{false};  // the reason is this rank's own
  std::atomic<bool> lost_{false};            // there is a reason, which stays as it is
  std::string message_;                      // being sent
};

}  // namespace sluice
