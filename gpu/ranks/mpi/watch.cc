#include "gpu/ranks/mpi/watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/base/clock.h"
#include "engine/base/error.h"

namespace sluice {

namespace {

constexpr auto kLook = std::chrono::milliseconds(10);
// Seconds. One second after a rank has died, mpirun sends SIGTERM to the others, and SIGKILL one second
// later. SIGKILL may come sooner, since a process that ends meanwhile may wake mpirun. Even if SIGTERM comes
// at once, the death of a rank that is not seen is noticed, told and written down before SIGKILL: in 0.6 +
// 0.25 s. Twelve signs fit into 0.6 s, so that a process that is short of cores is not taken for dead.
constexpr double kSign = 0.05, kSilence = 0.6, kUnwinding = 0.25;
constexpr double kKilling = 2;        // after a SIGTERM; a process that lives longer was not meant by mpirun
constexpr double kUnharmed = 0.9;     // after a SIGTERM; by then, an earlier death has been noticed
constexpr double kOwnUnwinding = 10;  // for a rank that ends by its own failure and so has time
// Rounds of exchange() after a rank has ended. In them, a reason that the rank has sent before is heard.
constexpr uint64_t kLastRounds = 10;
constexpr size_t kReasonBytes = 512;
constexpr int kReasonTag = 1, kSignTag = 2, kTerminatedTag = 3;

}  // namespace

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  throw Error(ExitCode::rank_lost,
              std::string(what) + " failed in MPI: " + std::string(text, static_cast<size_t>(length)) + ".",
              "See what the other ranks say, and go on with --resume auto.");
}

Watch::Watch(MPI_Comm world, MPI_Comm machine, MpiHooks hooks)
    : hooks_(std::move(hooks)), neighbours_(world, machine) {
  check_mpi(MPI_Comm_dup(world, &communicator_), "Making a communicator");
  check_mpi(MPI_Comm_rank(world, &rank_), "Asking for the rank");
  check_mpi(MPI_Comm_size(world, &size_), "Asking for the number of ranks");
  before_ = (rank_ + size_ - 1) % size_;
}

void Watch::start(std::function<std::string()> doing, std::function<double()> patience) {
  doing_ = std::move(doing);
  patience_ = std::move(patience);
  exchanging_ = std::thread([this] { exchange(); });
  judging_ = std::thread([this] { judge(); });
}

void Watch::stop() {
  stopping_ = true;
  for (std::thread* thread : {&exchanging_, &judging_})
    if (thread->joinable()) thread->join();
}

void Watch::throw_lost() {
  const std::lock_guard lock(mutex_);
  throw lost_error(reason_);
}

void Watch::tell(const std::string& reason) noexcept { set_reason(reason, Cause::own, kNobody); }

// The missing rank is told last, since MPI might not return from telling it. It is told because it may be
// alive but stopped: mpirun wakes a stopped rank to end it. A rank that wakes untold would name the other
// ranks, which are gone by then.
void Watch::lose(int missing, const std::string& reason) noexcept {
  set_reason(reason, Cause::hang, missing);
}

void Watch::lose_dead(int missing, const std::string& reason) noexcept {
  set_reason(reason, Cause::death, missing);
}

void Watch::set_reason(const std::string& reason, Cause cause, int last) noexcept {
  const std::lock_guard lock(mutex_);
  if (lost_) return;
  reason_ = reason.substr(0, kReasonBytes);
  last_ = last;
  tells_ = true;
  ends_by_itself_ = cause == Cause::own;
  has_found_ = cause == Cause::hang;
  lost_ = true;
}

void Watch::exchange() {
  double sign_at = steady_seconds();
  bool told_termination = false;
  for (; !stopping_; ++rounds_) {
    try {
      if (steady_seconds() >= sign_at)
        send({}, kSignTag, (rank_ + 1) % size_), sign_at = steady_seconds() + kSign;
      if (hear(before_, kSignTag)) ++signs_;
      if (hear(MPI_ANY_SOURCE, kTerminatedTag)) terminated_ = true;
      hear_reason();
      if (!told_termination && hooks_.terminated()) {
        told_termination = true;
        send_to_all({}, kTerminatedTag, kNobody);
      }
      if (lost_) {
        bool tells = false;
        {
          const std::lock_guard lock(mutex_);
          tells = std::exchange(tells_, false);
        }
        if (tells) send_to_all(reason_, kReasonTag, last_);  // the first reason, which stays as it is
      }
    } catch (const Error& error) {
      lose(kNobody, error.what());
    }
    std::this_thread::sleep_for(kLook);
  }
}

// Sends in order from the next rank on. If a whole machine is gone, the rank after the machine's last rank
// notices. In that rank's order the lost ranks come last.
void Watch::send_to_all(const std::string& text, int tag, int last) {
  for (int step = 1; step < size_; ++step)
    if (const int rank = (rank_ + step) % size_; rank != last) send(text, tag, rank);
  if (last != kNobody) send(text, tag, last);
}

// Does not wait for the send to end, so `text` must stay until the process ends.
void Watch::send(const std::string& text, int tag, int to) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Isend(text.data(), static_cast<int>(text.size()), MPI_BYTE, to, tag, communicator_, &request),
            "Telling another rank");
  check_mpi(MPI_Request_free(&request), "Telling another rank");
}

// Receives all messages of a tag, which have no content, from one rank or any. Returns whether there was one.
bool Watch::hear(int from, int tag) {
  for (bool heard = false;; heard = true) {
    int there = 0;
    MPI_Status status;
    check_mpi(MPI_Iprobe(from, tag, communicator_, &there, &status), "Looking for messages");
    if (!there) return heard;
    check_mpi(MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, tag, communicator_, MPI_STATUS_IGNORE),
              "Receiving");
  }
}

void Watch::hear_reason() {
  int there = 0;
  MPI_Status status;
  check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, kReasonTag, communicator_, &there, &status), "Looking for messages");
  if (!there) return;
  int bytes = 0;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "Receiving");
  std::string text(static_cast<size_t>(bytes), '\0');
  check_mpi(
      MPI_Recv(text.data(), bytes, MPI_BYTE, status.MPI_SOURCE, kReasonTag, communicator_, MPI_STATUS_IGNORE),
      "Receiving");
  const std::lock_guard lock(mutex_);
  if (lost_) return;
  reason_ = text;
  lost_ = true;
}

void Watch::judge() {
  const double begin = steady_seconds();
  WatchedTime silent(begin), stuck(begin), terminating(begin), ending(begin);
  uint64_t signs = 0, rounds = 0, last_round = 0;
  while (!stopping_) {
    const double now = steady_seconds();
    for (WatchedTime* time : {&silent, &stuck, &terminating, &ending}) time->look(now);
    if (std::exchange(signs, signs_.load()) != signs) silent.restart();
    if (std::exchange(rounds, rounds_.load()) != rounds) stuck.restart();
    const bool terminated_here = hooks_.terminated();
    if (terminated_here) terminated_ = true;
    if (!terminated_) terminating.restart();
    if (!lost_) {
      ending.restart();
      const std::optional<int> ended = neighbours_.ended();
      if (!ended) {
        last_round = rounds + kLastRounds;
        look_for_losses(silent.seconds(), stuck.seconds(), terminating.seconds());
      } else if (rounds >= last_round || stuck.seconds() > kSilence) {
        lose_dead(*ended, "Rank " + std::to_string(*ended) + " has died: " + doing_());
      }
      if (terminated_here && !lost_ && terminating.seconds() > kUnharmed) hooks_.unharmed();
    } else if (has_found_.exchange(false)) {
      hooks_.found(rank_, last_, reason_);  // last_ and reason_ stay as they are
    } else if (ending.seconds() > (ends_by_itself_ ? kOwnUnwinding : kUnwinding)) {
      hooks_.abandon(rank_, reason_);
    }
    std::this_thread::sleep_for(kLook);
  }
}

// `silent`: seconds without a sign of life from the previous rank. `stuck`: seconds since MPI last returned.
// `terminating`: seconds since a SIGTERM, 0 before one.
void Watch::look_for_losses(double silent, double stuck, double terminating) {
  const double patience = patience_();
  const bool killing = terminating > 0 && terminating < kKilling;
  if (killing && !neighbours_.sees_all() && stuck > kSilence)
    lose_dead(kNobody, "MPI does not return after SIGTERM, as when a rank has died: " + doing_());
  else if (stuck > patience)
    lose(kNobody, "MPI does not return: " + doing_());
  else if (stuck > kSilence)
    return;  // while MPI does not return, nobody can be heard
  else if (killing && !neighbours_.sees(before_) && silent > kSilence)
    lose_dead(before_,
              "Rank " + std::to_string(before_) + " gives no sign of life after SIGTERM: " + doing_());
  else if (silent > patience)
    lose(before_, not_answered(before_, patience, doing_()));
}

}  // namespace sluice
