// Collectives as pairs of messages. Every rank starts its receives and sends, then tests them with growing
// sleeps: MPI's own waits would spin and take the cores from others.
//
// A rank that waits also looks at the watch, which hears of lost ranks.
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "gpu/ranks/mpi/watch.h"
#include "gpu/ranks/mpi_module.h"

namespace sluice {

namespace {

constexpr uint64_t kMessageBytes = 64ull << 20;  // the most bytes of one message, since MPI counts in int
constexpr auto kSleepMin = std::chrono::microseconds(5), kSleepMax = std::chrono::microseconds(500);
constexpr int kDataTag = 1;
// Added to the patience. A rank that is gone or stopped should be named by the rank that watches it, since
// the watching rank knows for certain.
constexpr double kAfterWatch = 1;  // second

int int_of(uint64_t bytes) { return static_cast<int>(bytes); }

// A call that throws leaves transfers that MPI may still carry out. `keeps_memory`: the caller's memory stays
// until the process ends. Otherwise bytes go through memory of this object, and the object is not deleted
// after such a call.
class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm world, Watch& watch, bool keeps_memory)
      : watch_(watch), keeps_memory_(keeps_memory) {
    check_mpi(MPI_Comm_dup(world, &communicator_), "Making a communicator");
    check_mpi(MPI_Comm_rank(communicator_, &rank_), "Asking for the rank");
    check_mpi(MPI_Comm_size(communicator_, &size_), "Asking for the number of ranks");
    meeting_.resize(static_cast<size_t>(size_));
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string transport() const override { return "MPI, through host memory"; }

  void all_gather(const ProcessGroup& among, const void* part, uint64_t bytes, void* all) override {
    std::byte* const own = place(all, place_in(among), bytes);
    if (own != part) std::memcpy(own, part, bytes);
    for (int i = 0; i < static_cast<int>(among.count); ++i) {
      if (rank_at(among, i) == rank_) continue;
      start_receive(place(all, i, bytes), bytes, rank_at(among, i));
      start_send(own, bytes, rank_at(among, i));
    }
    finish();
  }

  void all_to_all(const ProcessGroup& among, const void* parts, uint64_t bytes, void* received) override {
    for (int i = 0; i < static_cast<int>(among.count); ++i) {
      if (rank_at(among, i) == rank_) continue;
      start_receive(place(received, i, bytes), bytes, rank_at(among, i));
      start_send(place(parts, i, bytes), bytes, rank_at(among, i));
    }
    const int own = place_in(among);
    std::memcpy(place(received, own, bytes), place(parts, own, bytes), bytes);
    finish();
  }

  void exchange(const ProcessGroup& among, std::span<const std::span<const std::byte>> parts,
                std::span<const std::span<std::byte>> received) override {
    for (int i = 0; i < static_cast<int>(among.count); ++i) {
      const std::span<const std::byte> part = parts[static_cast<size_t>(i)];
      const std::span<std::byte> to = received[static_cast<size_t>(i)];
      if (rank_at(among, i) == rank_) {
        std::ranges::copy(part, to.begin());
        continue;
      }
      start_receive(to.data(), to.size(), rank_at(among, i));
      start_send(part.data(), part.size(), rank_at(among, i));
    }
    finish();
  }

  void broadcast(void* data, uint64_t bytes, int root) override {
    if (rank_ != root) start_receive(data, bytes, root);
    for (int other = 0; rank_ == root && other < size_; ++other)
      if (other != root) start_send(data, bytes, other);
    finish();
  }

  void barrier() override {
    all_gather(everyone(), &meeting_[static_cast<size_t>(rank_)], 1, meeting_.data());
  }

  void send(const void* data, uint64_t bytes, int to) override {
    start_send(data, bytes, to);
    finish();
  }
  void receive(void* data, uint64_t bytes, int from) override {
    start_receive(data, bytes, from);
    finish();
  }

  void throw_if_lost() override {
    if (watch_.lost()) watch_.throw_lost();
  }
  void abort(const std::string& reason) noexcept override { watch_.tell(reason); }

  // For the watch.
  bool is_waiting() const { return waiting_; }
  std::string does() const { return doing(waiting_ ? "waits" : "last waited"); }
  double lets_wait() const { return patience(); }

 private:
  struct Peer {
    int rank;
    bool sends;  // whether `rank` sends to this rank, or receives
    void* to;    // in the caller's memory
    uint64_t bytes;
    std::unique_ptr<std::byte[]> instead;  // memory of this object, used in place of the caller's
  };

  static const std::byte* place(const void* all, int i, uint64_t bytes) {
    return static_cast<const std::byte*>(all) + static_cast<uint64_t>(i) * bytes;
  }
  static std::byte* place(void* all, int i, uint64_t bytes) {
    return static_cast<std::byte*>(all) + static_cast<uint64_t>(i) * bytes;
  }

  void start_send(const void* data, uint64_t bytes, int to) {
    for (uint64_t at = 0; at < bytes; at += kMessageBytes) {
      const uint64_t size = std::min(kMessageBytes, bytes - at);
      const void* from = static_cast<const std::byte*>(data) + at;
      if (std::byte* const copy = add({to, false, nullptr, size, nullptr}))
        from = std::memcpy(copy, from, size);
      check_mpi(MPI_Isend(from, int_of(size), MPI_BYTE, to, kDataTag, communicator_, &requests_.back()),
                "Sending");
    }
  }
  void start_receive(void* data, uint64_t bytes, int from) {
    for (uint64_t at = 0; at < bytes; at += kMessageBytes) {
      const uint64_t size = std::min(kMessageBytes, bytes - at);
      void* to = static_cast<std::byte*>(data) + at;
      if (std::byte* const instead = add({from, true, to, size, nullptr})) to = instead;
      check_mpi(MPI_Irecv(to, int_of(size), MPI_BYTE, from, kDataTag, communicator_, &requests_.back()),
                "Receiving");
    }
  }

  // Returns the memory to use instead of the caller's, or nullptr to use the caller's.
  std::byte* add(Peer peer) {
    if (!keeps_memory_) peer.instead = std::make_unique<std::byte[]>(peer.bytes);
    requests_.push_back(MPI_REQUEST_NULL);
    peers_.push_back(std::move(peer));
    done_.push_back(0);
    return peers_.back().instead.get();
  }

  // Waits until all that was started is done.
  void finish() {
    auto sleep = kSleepMin;
    WatchedTime waited(steady_seconds());
    waiting_ = true;
    for (int left = static_cast<int>(requests_.size()); left > 0;) {
      const bool lost = watch_.lost();  // if so, the test below finds all that a lost rank sent before
      int done = 0;
      check_mpi(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &done, done_.data(),
                             MPI_STATUSES_IGNORE),
                "A transfer between ranks");
      waited.look(steady_seconds());
      if (done > 0) waited.restart(), left -= done;
      if (left == 0) break;
      if (lost) watch_.throw_lost();
      if (waited.seconds() > patience() + kAfterWatch)
        watch_.lose(missing(), not_answered(missing(), patience(), doing()));
      std::this_thread::sleep_for(sleep);
      sleep = std::min(2 * sleep, kSleepMax);
    }
    waiting_ = false;
    for (const Peer& p : peers_)
      if (p.sends && p.instead) std::memcpy(p.to, p.instead.get(), p.bytes);
    requests_.clear(), peers_.clear(), done_.clear();
  }

  // A rank that this rank waits for. One that owes bytes is preferred, since other ranks wait for it, too.
  int missing() const {
    int rank = rank_;
    for (size_t i = requests_.size(); i-- > 0;)
      if (requests_[i] != MPI_REQUEST_NULL && (peers_[i].sends || rank == rank_)) rank = peers_[i].rank;
    return rank;
  }

  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  Watch& watch_;
  const bool keeps_memory_;
  std::vector<std::byte> meeting_;     // a byte a rank
  std::vector<MPI_Request> requests_;  // all that were started; null when done
  std::vector<Peer> peers_;            // by request
  std::vector<int> done_;              // room for MPI's answer: which requests are done
  std::atomic<bool> waiting_{false};
};

struct OpenRanks : MpiRanks {
  OpenRanks(MPI_Comm machine, const MpiHooks& hooks) : watch(MPI_COMM_WORLD, machine, hooks) {}
  Watch watch;
};

MpiRanks* open_mpi(const MpiHooks& hooks) {
  int threads = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &threads), "Starting");
  if (threads < MPI_THREAD_MULTIPLE)
    throw Error(ExitCode::environment, "This MPI does not let several threads call it at once.",
                "Use an Open MPI that was built with MPI_THREAD_MULTIPLE, as Debian's is.");
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "Setting up");
  MPI_Comm machine = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine),
            "Setting up");
  auto* const ranks = new OpenRanks(machine, hooks);
  Watch& watch = ranks->watch;
  check_mpi(MPI_Comm_rank(machine, &ranks->local_rank), "Setting up");
  check_mpi(MPI_Comm_size(machine, &ranks->local_size), "Setting up");
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &ranks->local_first), "Setting up");
  check_mpi(MPI_Bcast(&ranks->local_first, 1, MPI_INT, 0, machine), "Setting up");
  auto lane = std::make_unique<MpiCommunicator>(MPI_COMM_WORLD, watch, true);
  auto trainer = std::make_unique<MpiCommunicator>(MPI_COMM_WORLD, watch, false);
  watch.start(
      [lane = lane.get(), trainer = trainer.get()] {
        return (trainer->is_waiting() && !lane->is_waiting() ? trainer : lane)->does();
      },
      [lane = lane.get()] { return lane->lets_wait(); });
  ranks->finish = [&watch] {
    watch.stop();
    MPI_Finalize();
  };
  ranks->lane = std::move(lane);
  ranks->trainer = std::move(trainer);
  return ranks;
}

}  // namespace

}  // namespace sluice

extern "C" __attribute__((visibility("default"))) sluice::MpiRanks* sluice_open_mpi(
    const sluice::MpiHooks& hooks) {
  return sluice::open_mpi(hooks);
}
