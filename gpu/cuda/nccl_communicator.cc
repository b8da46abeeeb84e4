#include "gpu/cuda/nccl_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "gpu/cuda/gpu.h"
#include "gpu/cuda/owned.h"

namespace sluice::cuda {
namespace {

constexpr auto kSleepMin = std::chrono::microseconds(5), kSleepMax = std::chrono::microseconds(100);
constexpr double kConnectSeconds = 60;  // the patience to connect, and to disconnect
constexpr double kRoundSeconds = 0.1;   // while ranks connect, they ask each other at least this often
// The protocols and algorithms that NCCL chooses by size take their memory when they are first used.
constexpr uint64_t kWarmUpParts[] = {64, 64 << 10, 1 << 20};
constexpr uint64_t kWarmUpBytesMax = 32 << 20;

struct Failure {
  std::string clause;
};

// What one rank says to all.
struct Answer {
  int version = 0;
  bool done = true;       // with what all ranks are doing now
  char reason[251] = {};  // a clause why it cannot go on, or empty
};

Answer answer(int version, const std::string& reason, bool done = true) {
  Answer a{version, done, {}};
  std::strncpy(a.reason, reason.c_str(), sizeof a.reason - 1);
  return a;
}

// What the answers of all ranks come to. It is the same on every rank.
struct Consent {
  std::string objection;  // a clause why the ranks cannot go on, or empty
  bool done = true;       // all ranks are
};

Consent consent(Communicator& host, const Answer& mine) {
  std::vector<Answer> all(static_cast<size_t>(host.size()));
  host.all_gather(host.everyone(), &mine, sizeof mine, all.data());
  Consent found;
  for (size_t rank = 0; rank < all.size() && found.objection.empty(); ++rank) {
    const std::string who = "on rank " + std::to_string(rank) + " ";
    found.done = found.done && all[rank].done;
    if (all[rank].reason[0] != '\0')
      found.objection = who + all[rank].reason;
    else if (all[rank].version != all.front().version)
      found.objection = who + "NCCL is " + nccl_version_text(all[rank].version) + ", on rank 0 " +
                        nccl_version_text(all.front().version);
  }
  return found;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const NcclApi& api, int version, int ordinal, Communicator& host)
      : api_(api),
        version_(version),
        ordinal_(ordinal),
        host_(host),
        exceptions_(std::uncaught_exceptions()) {}

  // After an exception, it is not certain that other ranks disconnect, so this one does not wait for them.
  ~NcclCommunicator() override {
    if (rank_ && std::uncaught_exceptions() == exceptions_) disconnect();
    give_up();
  }

  // Begins to connect. Returns a clause why NCCL refuses at once, or an empty string.
  std::string begin_to_connect(const NcclApi::UniqueId& id) {
    return reason_against([&] {
      NcclApi::Config config;
      const int result = api_.ncclCommInitRankConfig(&rank_, size(), id, rank(), &config);
      if (result != NcclApi::kInProgress) require(result, kInit);
    });
  }
  // Connects with the other ranks, which have begun too. Afterwards no call takes memory of the GPU. Every
  // wait here ends on all ranks at once. Returns the same on all: an empty string, or a clause why not.
  std::string connect() {
    connecting_ = true;
    const std::string reason = reason_against([&] {
      settle(NcclApi::kInProgress, kInit);
      warm_up();
    });
    if (!reason.empty() && objection_.empty())
      objection_ = consent(host_, answer(version_, reason)).objection;
    connecting_ = false;
    connected_ = objection_.empty();
    return objection_;
  }

  // Ends what the GPU waits for; only the thread that makes calls may do so.
  void give_up() {
    if (rank_) (void)api_.ncclCommAbort(std::exchange(rank_, nullptr));  // there is no remedy if it fails
  }

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  std::string transport() const override { return "NCCL " + nccl_version_text(version_); }

  void all_gather(const RankSet& among, const void* part, uint64_t bytes, void* all) override {
    if (among.count < size())
      return call([&] { swap(among, {static_cast<const std::byte*>(part), 0}, bytes, all); });
    call([&] {
      settle(api_.ncclAllGather(part, all, bytes, NcclApi::kBytes, rank_, stream_.get()), "ncclAllGather");
    });
  }

  void all_to_all(const RankSet& among, const void* parts, uint64_t bytes, void* received) override {
    call([&] { swap(among, {static_cast<const std::byte*>(parts), bytes}, bytes, received); });
  }

  void broadcast(void* data, uint64_t bytes, int root) override {
    call([&] {
      settle(api_.ncclBroadcast(data, data, bytes, NcclApi::kBytes, root, rank_, stream_.get()),
             "ncclBroadcast");
    });
  }

  void barrier() override { host_.barrier(); }

  void send(const void* data, uint64_t bytes, int to) override {
    call([&] { settle(api_.ncclSend(data, bytes, NcclApi::kBytes, to, rank_, stream_.get()), "ncclSend"); });
  }
  void receive(void* data, uint64_t bytes, int from) override {
    call(
        [&] { settle(api_.ncclRecv(data, bytes, NcclApi::kBytes, from, rank_, stream_.get()), "ncclRecv"); });
  }

  void throw_if_lost() override { host_.throw_if_lost(); }
  void abort(const std::string& reason) noexcept override { host_.abort(reason); }

 private:
  static constexpr const char* kInit = "ncclCommInitRankConfig";

  // Returns a clause why `work` failed, or an empty string.
  template <typename Work>
  std::string reason_against(const Work& work) {
    try {
      use_gpu();
      work();
    } catch (const Failure& failure) {
      return failure.clause;
    } catch (const Error& error) {
      host_.throw_if_lost();
      const std::string reason = error.what();
      return reason.ends_with('.') ? reason.substr(0, reason.size() - 1) : reason;
    }
    return "";
  }

  void use_gpu() const { check_step(cudaSetDevice(ordinal_)); }

  // Calls enqueue() and returns when the enqueued work is done.
  template <typename Enqueue>
  void call(const Enqueue& enqueue) {
    host_.throw_if_lost();
    if (!rank_)
      throw Error(ExitCode::rank_lost, "A rank has given up its NCCL communicator.",
                  "See what the ranks said before, and go on with --resume auto.");
    try {
      use_gpu();
      enqueue();
      finish();
    } catch (const Failure& failure) {
      give_up();
      throw Error(ExitCode::rank_lost, failure.clause + ".",
                  "See what the other ranks say, and go on with --resume auto.");
    } catch (...) {
      give_up();
      throw;
    }
  }

  struct Outgoing {
    const std::byte* first;
    uint64_t stride;  // from one rank's bytes to the next's
  };

  // Exchanges among some ranks, as pairs of messages. An NCCL group is ended whatever happened in it;
  // otherwise the thread's later calls would belong to it.
  void swap(const RankSet& among, const Outgoing& out, uint64_t bytes, void* received) {
    const auto from = [&](int i) { return out.first + static_cast<uint64_t>(i) * out.stride; };
    const auto to = [&](int i) {
      return static_cast<std::byte*>(received) + static_cast<uint64_t>(i) * bytes;
    };
    const int own = among.place_of(rank());
    if (to(own) != from(own))
      check_step(cudaMemcpyAsync(to(own), from(own), bytes, cudaMemcpyDeviceToDevice, stream_.get()));
    int failed = NcclApi::kSuccess;
    const auto note = [&](int result) {
      if (failed == NcclApi::kSuccess && result != NcclApi::kInProgress) failed = result;
    };
    require(api_.ncclGroupStart(), "ncclGroupStart");
    for (int i = 0; i < among.count; ++i) {
      if (i == own) continue;
      note(api_.ncclSend(from(i), bytes, NcclApi::kBytes, among[i], rank_, stream_.get()));
      note(api_.ncclRecv(to(i), bytes, NcclApi::kBytes, among[i], rank_, stream_.get()));
    }
    const int ended = api_.ncclGroupEnd();
    require(failed, "ncclSend or ncclRecv");
    settle(ended, "ncclGroupEnd");
  }

  void warm_up() {
    const auto ranks = static_cast<uint64_t>(size());
    const uint64_t most = kWarmUpBytesMax / ranks;
    const GpuBytes from(ranks * std::min(most, *std::rbegin(kWarmUpParts)));
    const GpuBytes to(ranks * std::min(most, *std::rbegin(kWarmUpParts)));
    try {
      try_calls(from.data, to.data, most);
    } catch (...) {
      give_up();  // otherwise freeing memory would wait for the GPU, and the GPU for the other ranks
      throw;
    }
  }

  void try_calls(void* from, void* to, uint64_t most) {
    for (const uint64_t part : kWarmUpParts) {
      const uint64_t bytes = std::min(part, most);
      settle(api_.ncclAllGather(from, to, bytes, NcclApi::kBytes, rank_, stream_.get()), "ncclAllGather");
      finish();
      swap(everyone(), {static_cast<const std::byte*>(from), bytes}, bytes, to);
      finish();
    }
    settle(api_.ncclBroadcast(to, to, kWarmUpParts[0], NcclApi::kBytes, 0, rank_, stream_.get()),
           "ncclBroadcast");
    finish();
  }

  // Where this fails, give_up() has to follow.
  void disconnect() noexcept {
    try {
      connected_ = false;
      use_gpu();
      host_.throw_if_lost();
      settle(api_.ncclCommFinalize(rank_), "ncclCommFinalize");
      require(api_.ncclCommDestroy(rank_), "ncclCommDestroy");
      rank_ = nullptr;
    } catch (...) {
      // A lost rank is reported by whoever lost it.
    }
  }

  void require(int result, const char* function) const {
    if (result == NcclApi::kSuccess) return;
    const char* const more = rank_ ? api_.ncclGetLastError(rank_) : nullptr;
    throw Failure{std::string("NCCL's ") + function + " says: " + api_.ncclGetErrorString(result) +
                  (more && *more ? std::string(" (") + more + ")" : "")};
  }

  // Waits until what `function` began has been enqueued.
  void settle(int result, const char* function) {
    if (result != NcclApi::kInProgress) require(result, function);
    if (result != NcclApi::kInProgress && !connecting_) return;  // while connecting, ranks wait together
    wait_until(function, [&] { return asynchronous_result(function) != NcclApi::kInProgress; });
  }
  int asynchronous_result(const char* function) const {
    int result = NcclApi::kSuccess;
    require(api_.ncclCommGetAsyncError(rank_, &result), "ncclCommGetAsyncError");
    if (result != NcclApi::kInProgress) require(result, function);
    return result;
  }

  void finish() {
    check_step(cudaEventRecord(done_.get(), stream_.get()));
    wait_until("exchange", [&] {
      const cudaError_t result = cudaEventQuery(done_.get());
      if (result == cudaSuccess) return true;
      if (result != cudaErrorNotReady) check_step(result);
      (void)cudaGetLastError();  // clears that result, which is handled here
      asynchronous_result("exchange");
      return false;
    });
  }

  template <typename Done>
  void wait_until(const char* what, const Done& done) {
    if (connecting_) return wait_together(what, done);
    WatchedTime waited(steady_seconds());
    for (auto sleep = kSleepMin; !done(); sleep = std::min(2 * sleep, kSleepMax)) {
      host_.throw_if_lost();
      waited.look(steady_seconds());
      if (!connected_ && waited.seconds() > kConnectSeconds) throw not_ended(what);
      if (connected_ && waited.seconds() > patience()) {
        host_.abort(fmt::format("Ranks have not answered by NCCL for {:.3g} s: {}", patience(), doing()));
        host_.throw_if_lost();
      }
      std::this_thread::sleep_for(sleep);
    }
  }

  // Waits until all ranks are done. NCCL does not tell them that one has failed, so they ask each other. A
  // rank that fails between two waits answers in connect().
  template <typename Done>
  void wait_together(const char* what, const Done& done) {
    WatchedTime waited(steady_seconds());
    for (bool all_done = false; !all_done;) {
      bool mine = false;
      const std::string reason = reason_against([&] {
        const double begin = steady_seconds();
        for (auto sleep = kSleepMin; !(mine = done()); sleep = std::min(2 * sleep, kSleepMax)) {
          host_.throw_if_lost();
          waited.look(steady_seconds());
          if (waited.seconds() > kConnectSeconds) throw not_ended(what);
          if (steady_seconds() - begin > kRoundSeconds) break;
          std::this_thread::sleep_for(sleep);
        }
      });
      const Consent found = consent(host_, answer(version_, reason, mine));
      objection_ = found.objection;
      if (!objection_.empty()) throw Failure{objection_};
      all_done = found.done;
    }
  }

  static Failure not_ended(const char* what) {
    return {std::string("NCCL's ") + what + " has not ended within a minute"};
  }

  const NcclApi api_;
  const int version_, ordinal_;
  Communicator& host_;
  const int exceptions_;  // that were under way when this was made
  const Stream stream_;
  const Event done_;
  bool connecting_ = false, connected_ = false;
  std::string objection_;  // of any rank, while they connect
  NcclApi::Rank rank_ = nullptr;
};

}  // namespace

AcceleratorRanks connect_by_nccl(const Known<NcclApi>& api, int ordinal, Communicator& host) {
  const Known<int> version = nccl_version(api);
  std::string reason = consent(host, answer(version.value.value_or(0), version.reason)).objection;
  if (!reason.empty()) return {nullptr, reason};
  struct {
    int result = NcclApi::kSuccess;
    NcclApi::UniqueId id{};
  } made;
  if (host.rank() == 0) made.result = api.value->ncclGetUniqueId(&made.id);
  host.broadcast(&made, sizeof made, 0);
  if (made.result != NcclApi::kSuccess)
    return {nullptr,
            std::string("NCCL's ncclGetUniqueId says: ") + api.value->ncclGetErrorString(made.result)};
  choose_gpu(ordinal);
  auto communicator = std::make_unique<NcclCommunicator>(*api.value, *version.value, ordinal, host);
  reason = consent(host, answer(*version.value, communicator->begin_to_connect(made.id))).objection;
  if (reason.empty()) reason = communicator->connect();
  if (reason.empty()) return {std::move(communicator), ""};
  communicator->give_up();
  return {nullptr, reason};
}

}  // namespace sluice::cuda
