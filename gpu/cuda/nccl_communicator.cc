#include "gpu/cuda/nccl_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "gpu/cuda/gpu.h"

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
  bool done = true;       // whether the rank is done with what all ranks are doing
  char reason[251] = {};  // a clause why it cannot go on, or empty
};

Answer answer(int version, const std::string& reason, bool done = true) {
  Answer a{version, done, {}};
  std::strncpy(a.reason, reason.c_str(), sizeof a.reason - 1);
  return a;
}

// The result of all ranks' answers, which is the same on every rank.
struct Consent {
  std::string objection;  // a clause why the ranks cannot go on, or empty
  bool done = true;       // whether all ranks are done
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

class NcclCommunicator final : public StreamCommunicator {
 public:
  NcclCommunicator(const NcclApi& api, int version, int ordinal, const Stream& stream, Communicator& host)
      : api_(api),
        version_(version),
        ordinal_(ordinal),
        stream_(stream.get()),
        host_(host),
        exceptions_(std::uncaught_exceptions()) {}

  // After an exception, other ranks may never disconnect, so this rank does not wait for them.
  ~NcclCommunicator() override {
    if (rank_ && std::uncaught_exceptions() == exceptions_) disconnect();
    abort_part();
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
  // wait here ends on all ranks at once. Returns the same on all ranks: an empty string, or a clause why they
  // are not connected.
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

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  std::string transport() const override { return "NCCL " + nccl_version_text(version_); }

  void all_gather(const ProcessGroup& among, const void* part, uint64_t bytes, void* all) override {
    if (among.count < everyone().count)
      return call([&] { swap(among, {static_cast<const std::byte*>(part), 0}, bytes, all); });
    call([&] {
      settle(api_.ncclAllGather(part, all, bytes, NcclApi::kBytes, rank_, stream_), "ncclAllGather");
    });
  }

  void all_to_all(const ProcessGroup& among, const void* parts, uint64_t bytes, void* received) override {
    call([&] { swap(among, {static_cast<const std::byte*>(parts), bytes}, bytes, received); });
  }

  void exchange(const ProcessGroup& among, std::span<const std::span<const std::byte>> parts,
                std::span<const std::span<std::byte>> received) override {
    call([&] {
      swap(
          among, [&](int i) { return parts[static_cast<size_t>(i)]; },
          [&](int i) { return received[static_cast<size_t>(i)]; });
    });
  }

  void broadcast(void* data, uint64_t bytes, int root) override {
    call([&] {
      settle(api_.ncclBroadcast(data, data, bytes, NcclApi::kBytes, root, rank_, stream_), "ncclBroadcast");
    });
  }

  void barrier() override { host_.barrier(); }

  void send(const void* data, uint64_t bytes, int to) override {
    call([&] { settle(api_.ncclSend(data, bytes, NcclApi::kBytes, to, rank_, stream_), "ncclSend"); });
  }
  void receive(void* data, uint64_t bytes, int from) override {
    call([&] { settle(api_.ncclRecv(data, bytes, NcclApi::kBytes, from, rank_, stream_), "ncclRecv"); });
  }

  void finish() override {
    ending_all([&] {
      use_gpu();
      await_stream();
    });
  }

  void watch(std::string_view purpose, const std::function<bool()>& is_done) override {
    ending_all([&] {
      use_gpu();
      await_exchange(purpose, is_done);
    });
  }

  void give_up() noexcept override { (void)end(std::make_exception_ptr(given_up())); }

  void throw_if_lost() override { host_.throw_if_lost(); }
  void abort(const std::string& reason) noexcept override { host_.abort(reason); }

 private:
  static constexpr const char *kInit = "ncclCommInitRankConfig", *kExchange = "exchange";

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

  static Error given_up() {
    return {ExitCode::rank_lost, "A rank has given up its NCCL communicator.",
            "See what the ranks said before, and go on with --resume auto."};
  }

  // After end(), work in the stream ends too, but without a result.
  void throw_if_ended() const {
    if (has_ended_) throw given_up();
  }

  // Returns when enqueue() has enqueued its work.
  template <typename Enqueue>
  void call(const Enqueue& enqueue) {
    ending_all([&] {
      const std::lock_guard lock(calling_);
      throw_if_ended();
      host_.throw_if_lost();
      use_gpu();
      enqueue();
    });
  }

  // Runs `work`. An error that it throws ends all calls.
  template <typename Work>
  void ending_all(const Work& work) {
    std::exception_ptr error;
    try {
      return work();
    } catch (const Failure& failure) {
      error = std::make_exception_ptr(Error(ExitCode::rank_lost, failure.clause + ".",
                                            "See what the other ranks say, and go on with --resume auto."));
    } catch (...) {
      error = std::current_exception();
    }
    std::rethrow_exception(end(error));
  }

  // Ends what the GPU waits for. Returns the first error with which this was called.
  std::exception_ptr end(const std::exception_ptr& error) {
    const std::lock_guard lock(calling_);
    if (!error_) error_ = error;
    has_ended_ = true;  // before work ends without a result
    abort_part();
    return error_;
  }
  void abort_part() {
    if (rank_) (void)api_.ncclCommAbort(std::exchange(rank_, nullptr));  // there is no remedy if it fails
  }

  struct Outgoing {
    const std::byte* first;
    uint64_t stride;  // from one rank's bytes to the next's
  };

  // Exchanges equal parts among some ranks.
  void swap(const ProcessGroup& among, const Outgoing& out, uint64_t bytes, void* received) {
    using Part = std::span<const std::byte>;
    using Place = std::span<std::byte>;
    swap(
        among, [&](int i) { return Part(out.first + static_cast<uint64_t>(i) * out.stride, bytes); },
        [&](int i) {
          return Place(static_cast<std::byte*>(received) + static_cast<uint64_t>(i) * bytes, bytes);
        });
  }

  // Exchanges among some ranks, as pairs of messages; an empty range has no message. `from` and `to` give the
  // range of each place in `among`. An NCCL group is ended whatever happened in it; otherwise the thread's
  // later calls would belong to the group.
  template <typename From, typename To>
  void swap(const ProcessGroup& among, const From& from, const To& to) {
    const int own = place_in(among);
    if (to(own).data() != from(own).data() && !from(own).empty())
      check_step(cudaMemcpyAsync(to(own).data(), from(own).data(), from(own).size(), cudaMemcpyDeviceToDevice,
                                 stream_));
    int failed = NcclApi::kSuccess;
    const auto note = [&](int result) {
      if (failed == NcclApi::kSuccess && result != NcclApi::kInProgress) failed = result;
    };
    require(api_.ncclGroupStart(), "ncclGroupStart");
    for (int i = 0; i < static_cast<int>(among.count); ++i) {
      if (i == own) continue;
      if (!from(i).empty())
        note(api_.ncclSend(from(i).data(), from(i).size(), NcclApi::kBytes, rank_at(among, i), rank_,
                           stream_));
      if (!to(i).empty())
        note(api_.ncclRecv(to(i).data(), to(i).size(), NcclApi::kBytes, rank_at(among, i), rank_, stream_));
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
      abort_part();  // otherwise freeing memory would wait for the GPU, and the GPU for the other ranks
      throw;
    }
  }

  void try_calls(void* from, void* to, uint64_t most) {
    for (const uint64_t part : kWarmUpParts) {
      const uint64_t bytes = std::min(part, most);
      settle(api_.ncclAllGather(from, to, bytes, NcclApi::kBytes, rank_, stream_), "ncclAllGather");
      await_stream();
      swap(everyone(), {static_cast<const std::byte*>(from), bytes}, bytes, to);
      await_stream();
    }
    settle(api_.ncclBroadcast(to, to, kWarmUpParts[0], NcclApi::kBytes, 0, rank_, stream_), "ncclBroadcast");
    await_stream();
  }

  // Where this fails, abort_part() has to follow.
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
    wait_until(function, "", [&] { return asynchronous_result(function) != NcclApi::kInProgress; });
  }
  int asynchronous_result(const char* function) const {
    int result = NcclApi::kSuccess;
    require(api_.ncclCommGetAsyncError(rank_, &result), "ncclCommGetAsyncError");
    if (result != NcclApi::kInProgress) require(result, function);
    return result;
  }

  void await_stream() {
    check_step(cudaEventRecord(done_.get(), stream_));
    await_exchange("", [&] { return done_.is_reached(); });
  }

  // Waits until what is in the stream is done. `purpose` as for watch(); empty: the last call's purpose.
  template <typename Done>
  void await_exchange(std::string_view purpose, const Done& done) {
    wait_until(kExchange, purpose, [&] {
      if (done()) return true;
      look_at_nccl();
      return false;
    });
    throw_if_ended();
  }

  // If another thread is making a call of NCCL, that thread looks.
  void look_at_nccl() {
    const std::unique_lock lock(calling_, std::try_to_lock);
    if (!lock) return;
    throw_if_ended();
    asynchronous_result(kExchange);
  }

  template <typename Done>
  void wait_until(const char* what, std::string_view purpose, const Done& done) {
    if (connecting_) return wait_together(what, done);
    WatchedTime waited(steady_seconds());
    for (auto sleep = kSleepMin; !done(); sleep = std::min(2 * sleep, kSleepMax)) {
      host_.throw_if_lost();
      waited.look(steady_seconds());
      if (!connected_ && waited.seconds() > kConnectSeconds) throw not_ended(what);
      if (connected_ && waited.seconds() > patience()) {
        const std::string waits = purpose.empty() ? doing() : doing(purpose, "waits");
        host_.abort(fmt::format("Ranks have not answered by NCCL for {:.3g} s: {}", patience(), waits));
        host_.throw_if_lost();
      }
      std::this_thread::sleep_for(sleep);
    }
  }

  // Waits until all ranks are done. NCCL does not tell a rank that another has failed, so ranks ask each
  // other. A rank that fails between two waits answers in connect().
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
  const cudaStream_t stream_;
  Communicator& host_;
  const int exceptions_;  // that were under way at construction
  const Event done_;      // for finish()
  bool connecting_ = false, connected_ = false;
  std::string objection_;  // of any rank, while ranks connect
  std::mutex calling_;     // held during calls of NCCL, once the ranks are connected
  NcclApi::Rank rank_ = nullptr;
  std::exception_ptr error_;  // the error that ended all calls
  std::atomic<bool> has_ended_{false};
};

}  // namespace

AcceleratorRanks connect_by_nccl(const Known<NcclApi>& api, int ordinal, const Stream& stream,
                                 Communicator& host) {
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
  auto communicator = std::make_unique<NcclCommunicator>(*api.value, *version.value, ordinal, stream, host);
  reason = consent(host, answer(*version.value, communicator->begin_to_connect(made.id))).objection;
  if (reason.empty()) reason = communicator->connect();
  if (reason.empty()) return {std::move(communicator), ""};
  communicator->give_up();
  return {nullptr, reason};
}

}  // namespace sluice::cuda
