#include "gpu/mpi/watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/clock.h"
#include "engine/error.h"

namespace sluice {

namespace {

constexpr auto kLook = std::chrono::milliseconds(10);
// Seconds. When a rank has died, mpirun sends SIGTERM to the others one second later, and SIGKILL after one
// more. Should SIGTERM come at once, then until SIGKILL the death is seen, told and written down: 0.6 + 0.25.
// Twelve signs fit into the first, so that a process that is short of cores is not taken for a dead one.
constexpr double kSign = 0.05, kSilence = 0.6, kUnwinding = 0.25;
constexpr double kUnharmed = 0.9;     // after a SIGTERM: whoever died before it is missed by then
constexpr double kOwnUnwinding = 10;  // of a rank that failed itself: nobody hurries it
constexpr size_t kReasonBytes = 512;
constexpr int kReasonTag = 1, kSignTag = 2;

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

Watch::Watch(MPI_Comm world, MpiHooks hooks) : hooks_(std::move(hooks)) {
  check_mpi(MPI_Comm_dup(world, &communicator_), "Making a communicator");
  check_mpi(MPI_Comm_rank(world, &rank_), "Asking for the rank");
  check_mpi(MPI_Comm_size(world, &size_), "Asking for the number of ranks");
}

void Watch::start(std::function<std::string()> doing, std::function<double()> patience) {
  doing_ = std::move(doing);
  patience_ = std::move(patience);
  thread_ = std::thread([this] { run(); });
}

void Watch::stop() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
}

void Watch::throw_lost() {
  const std::lock_guard lock(mutex_);
  throw lost_error(reason_);
}

void Watch::tell(const std::string& reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (lost_) return;
  ends_by_itself_ = true;
  send_reason(reason);
}

void Watch::lose(const std::string& reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (!lost_) send_reason(reason);
}

// Small messages are on their way when MPI_Isend returns; nobody waits for them. With the mutex held.
void Watch::send_reason(const std::string& reason) noexcept {
  reason_ = reason.substr(0, kReasonBytes);
  lost_ = true;
  message_ = reason_;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Isend(message_.data(), static_cast<int>(message_.size()), MPI_BYTE, rank, kReasonTag,
                  communicator_, &request) == MPI_SUCCESS)
      MPI_Request_free(&request);
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

void Watch::give_sign() {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Isend(nullptr, 0, MPI_BYTE, (rank_ + 1) % size_, kSignTag, communicator_, &request),
            "Giving a sign of life");
  check_mpi(MPI_Request_free(&request), "Giving a sign of life");
}

bool Watch::hear_signs() {
  const int before = (rank_ + size_ - 1) % size_;
  for (bool heard = false;; heard = true) {
    int there = 0;
    check_mpi(MPI_Iprobe(before, kSignTag, communicator_, &there, MPI_STATUS_IGNORE), "Looking for messages");
    if (!there) return heard;
    check_mpi(MPI_Recv(nullptr, 0, MPI_BYTE, before, kSignTag, communicator_, MPI_STATUS_IGNORE),
              "Receiving");
  }
}

void Watch::run() {
  const double begin = steady_seconds();
  WatchedTime silent(begin), terminating(begin), ending(begin);
  const int before = (rank_ + size_ - 1) % size_;
  double sign_at = begin;
  while (!stopping_) {
    const double now = steady_seconds();
    for (WatchedTime* time : {&silent, &terminating, &ending}) time->look(now);
    try {
      if (now >= sign_at) give_sign(), sign_at = now + kSign;
      if (hear_signs()) silent.restart();
      hear_reason();
    } catch (const Error& error) {
      lose(error.what());
    }
    const bool terminated = hooks_.terminated();
    if (!terminated) terminating.restart();
    if (lost_) {
      if (ending.seconds() > (ends_by_itself_ ? kOwnUnwinding : kUnwinding)) hooks_.abandon(rank_, reason_);
    } else {
      ending.restart();
      if (silent.seconds() > patience_())
        lose(not_answered(before, patience_(), doing_()));
      else if (terminated && silent.seconds() > kSilence)
        lose("Rank " + std::to_string(before) +
             " was lost: SIGTERM came, and no more sign of life from it; " + doing_());
      else if (terminating.seconds() > kUnharmed)
        hooks_.unharmed();
    }
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace sluice
