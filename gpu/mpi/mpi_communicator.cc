// Collectives as pairs of messages: every rank starts its receives and sends, then tests them with growing
// sleeps, so that ranks that wait leave the cores to others (MPI's own waits spin).
//
// A rank that gives up tells every other on a communicator for that alone, which all look at while they wait.
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "engine/error.h"
#include "gpu/mpi_module.h"

namespace sluice {

namespace {

constexpr uint64_t kMessageBytes = 64ull << 20;  // the most of one message: MPI counts in int
constexpr auto kSleepMin = std::chrono::microseconds(5), kSleepMax = std::chrono::microseconds(500);
constexpr size_t kReasonBytes = 512;
constexpr int kDataTag = 1, kReasonTag = 2;

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  throw Error(ExitCode::rank_lost,
              std::string(what) + " failed in MPI: " + std::string(text, static_cast<size_t>(length)) + ".",
              "See what the other ranks say, and go on with --resume auto.");
}

int int_of(uint64_t bytes) { return static_cast<int>(bytes); }

// Who has given up, and why: of this process, whose threads all look at it.
class Reasons {
 public:
  explicit Reasons(MPI_Comm world) {
    check(MPI_Comm_dup(world, &communicator_), "Making a communicator");
    check(MPI_Comm_rank(world, &rank_), "Asking for the rank");
    check(MPI_Comm_size(world, &size_), "Asking for the number of ranks");
  }

  void throw_if_any() {
    const std::lock_guard lock(mutex_);
    int there = 0;
    MPI_Status status;
    check(MPI_Iprobe(MPI_ANY_SOURCE, kReasonTag, communicator_, &there, &status), "Looking for messages");
    if (there) {
      char text[kReasonBytes];
      check(MPI_Recv(text, kReasonBytes, MPI_BYTE, status.MPI_SOURCE, kReasonTag, communicator_,
                     MPI_STATUS_IGNORE),
            "Receiving");
      if (reason_.empty()) reason_ = text;
    }
    if (reason_.empty()) return;
    throw Error(ExitCode::rank_lost, reason_, "Mend what stopped that rank, and go on with --resume auto.");
  }

  // Small messages are on their way when MPI_Isend returns; nobody waits for them.
  void tell(const std::string& reason) noexcept {
    const std::lock_guard lock(mutex_);
    if (!reason_.empty()) return;
    reason_ = reason.empty() ? "without a reason" : reason;
    std::strncpy(message_, reason_.c_str(), kReasonBytes - 1);
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      MPI_Request request = MPI_REQUEST_NULL;
      if (MPI_Isend(message_, kReasonBytes, MPI_BYTE, rank, kReasonTag, communicator_, &request) ==
          MPI_SUCCESS)
        MPI_Request_free(&request);
    }
  }

 private:
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::mutex mutex_;
  std::string reason_;
  char message_[kReasonBytes] = {};
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm world, std::shared_ptr<Reasons> reasons) : reasons_(std::move(reasons)) {
    check(MPI_Comm_dup(world, &communicator_), "Making a communicator");
    check(MPI_Comm_rank(communicator_, &rank_), "Asking for the rank");
    check(MPI_Comm_size(communicator_, &size_), "Asking for the number of ranks");
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_gather(const void* part, uint64_t bytes, void* all) override {
    for (int other = 0; other < size_; ++other) {
      if (other == rank_) continue;
      start_receive(place(all, other, bytes), bytes, other);
      start_send(part, bytes, other);
    }
    std::byte* const own = place(all, rank_, bytes);
    if (own != part) std::memcpy(own, part, bytes);
    finish();
  }

  void all_to_all(const void* parts, uint64_t bytes, void* received) override {
    for (int other = 0; other < size_; ++other) {
      if (other == rank_) continue;
      start_receive(place(received, other, bytes), bytes, other);
      start_send(place(parts, other, bytes), bytes, other);
    }
    std::memcpy(place(received, rank_, bytes), place(parts, rank_, bytes), bytes);
    finish();
  }

  void broadcast(void* data, uint64_t bytes, int root) override {
    if (rank_ != root) start_receive(data, bytes, root);
    for (int other = 0; rank_ == root && other < size_; ++other)
      if (other != root) start_send(data, bytes, other);
    finish();
  }

  void barrier() override {
    requests_.emplace_back();
    check(MPI_Ibarrier(communicator_, &requests_.back()), "A barrier");
    finish();
  }

  void send(const void* data, uint64_t bytes, int to) override {
    start_send(data, bytes, to);
    finish();
  }
  void receive(void* data, uint64_t bytes, int from) override {
    start_receive(data, bytes, from);
    finish();
  }

  void abort(const std::string& reason) noexcept override { reasons_->tell(reason); }

 private:
  static const std::byte* place(const void* all, int rank, uint64_t bytes) {
    return static_cast<const std::byte*>(all) + static_cast<uint64_t>(rank) * bytes;
  }
  static std::byte* place(void* all, int rank, uint64_t bytes) {
    return static_cast<std::byte*>(all) + static_cast<uint64_t>(rank) * bytes;
  }

  void start_send(const void* data, uint64_t bytes, int to) {
    for (uint64_t at = 0; at < bytes; at += kMessageBytes) {
      requests_.emplace_back();
      check(MPI_Isend(static_cast<const std::byte*>(data) + at, int_of(std::min(kMessageBytes, bytes - at)),
                      MPI_BYTE, to, kDataTag, communicator_, &requests_.back()),
            "Sending");
    }
  }
  void start_receive(void* data, uint64_t bytes, int from) {
    for (uint64_t at = 0; at < bytes; at += kMessageBytes) {
      requests_.emplace_back();
      check(MPI_Irecv(static_cast<std::byte*>(data) + at, int_of(std::min(kMessageBytes, bytes - at)),
                      MPI_BYTE, from, kDataTag, communicator_, &requests_.back()),
            "Receiving");
    }
  }

  // Until all that was started is done.
  void finish() {
    auto sleep = kSleepMin;
    for (int done = 0; !done;) {
      check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
            "A transfer between ranks");
      if (done) break;
      reasons_->throw_if_any();
      std::this_thread::sleep_for(sleep);
      sleep = std::min(2 * sleep, kSleepMax);
    }
    requests_.clear();
  }

  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::shared_ptr<Reasons> reasons_;
  std::vector<MPI_Request> requests_;
};

MpiRanks* open_mpi() {
  int threads = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &threads), "Starting");
  if (threads < MPI_THREAD_MULTIPLE)
    throw Error(ExitCode::environment, "This MPI does not let several threads call it at once.",
                "Use an Open MPI that was built with MPI_THREAD_MULTIPLE, as Debian's is.");
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "Setting up");
  const auto reasons = std::make_shared<Reasons>(MPI_COMM_WORLD);
  auto* const ranks = new MpiRanks;
  ranks->lane = std::make_unique<MpiCommunicator>(MPI_COMM_WORLD, reasons);
  ranks->trainer = std::make_unique<MpiCommunicator>(MPI_COMM_WORLD, reasons);
  MPI_Comm machine = MPI_COMM_NULL;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine), "Setting up");
  check(MPI_Comm_rank(machine, &ranks->local_rank), "Setting up");
  check(MPI_Comm_size(machine, &ranks->local_size), "Setting up");
  ranks->finish = [] { MPI_Finalize(); };
  return ranks;
}

}  // namespace

}  // namespace sluice

extern "C" __attribute__((visibility("default"))) sluice::MpiRanks* sluice_open_mpi() {
  return sluice::open_mpi();
}
