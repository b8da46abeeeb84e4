// Ranks that are threads: each posts where its bytes are, then copies what it needs out of the memory of
// other ranks.
//
// A collective has two meetings. At the first, a rank waits until every rank has posted or one aborts. Then
// all copy. At the second, each waits until all have copied, even after an abort, because until then other
// ranks read its memory.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "gpu/ranks/communicator.h"

namespace sluice {

namespace {

constexpr auto kLook = std::chrono::milliseconds(50);  // the time between looks at the clock

enum class Call : uint8_t { all_gather, all_to_all, broadcast, barrier };

struct Post {
  Call call = Call::barrier;
  uint64_t bytes = 0;
  int root = 0, count = 0, stride = 0;
  const std::byte* data = nullptr;
};

struct Mail {  // from one rank to another
  enum class State : uint8_t { none, sent, being_read, read } state = State::none;
  const void* data = nullptr;
  uint64_t bytes = 0;
};

struct Caller {
  int rank;
  double patience;
  std::function<std::string()> doing;
};

class Room {
 public:
  explicit Room(int ranks)
      : posts_(static_cast<size_t>(ranks)),
        here_(static_cast<size_t>(ranks)),
        mail_(static_cast<size_t>(ranks) * static_cast<size_t>(ranks)) {}

  size_t ranks() const { return posts_.size(); }

  // copy(post of every rank) runs when all have posted; all posts stay as they are until all have copied.
  template <typename Copy>
  void meet(const Caller& caller, const Post& mine, const Copy& copy) {
    {
      std::unique_lock lock(mutex_);
      if (!reason_.empty()) throw lost_error(reason_);
      const auto rank = static_cast<size_t>(caller.rank);
      posts_[rank] = mine;
      here_[rank] = true;
      const uint64_t meeting = meetings_;
      if (std::find(here_.begin(), here_.end(), false) == here_.end()) {
        here_.assign(ranks(), false);
        copying_ = ranks();
        ++meetings_;
        changed_.notify_all();
      }
      wait(
          lock, caller, [&] { return meetings_ != meeting || !reason_.empty(); },
          [&] { return std::find(here_.begin(), here_.end(), false) - here_.begin(); });
      if (meetings_ == meeting) throw lost_error(reason_);
    }
    for (const Post& p : posts_)
      CHECK(p.call == mine.call && p.bytes == mine.bytes && p.root == mine.root && p.count == mine.count &&
                p.stride == mine.stride,
            "ranks make different collective calls");
    copy(posts_);
    std::unique_lock lock(mutex_);
    if (--copying_ == 0) changed_.notify_all();
    changed_.wait(lock, [&] { return copying_ == 0; });
  }

  void send(const Caller& from, int to, const void* data, uint64_t bytes) {
    Mail& mail = mail_between(from.rank, to);
    std::unique_lock lock(mutex_);
    if (!reason_.empty()) throw lost_error(reason_);
    mail = {Mail::State::sent, data, bytes};
    changed_.notify_all();
    const auto ended = [&] {
      return mail.state == Mail::State::read || (mail.state == Mail::State::sent && !reason_.empty());
    };
    wait(lock, from, ended, [&] { return to; });
    const bool received = mail.state == Mail::State::read;
    mail.state = Mail::State::none;
    if (!received) throw lost_error(reason_);
  }

  void receive(const Caller& to, int from, void* data, uint64_t bytes) {
    Mail& mail = mail_between(from, to.rank);
    std::unique_lock lock(mutex_);
    wait(
        lock, to, [&] { return mail.state == Mail::State::sent || !reason_.empty(); }, [&] { return from; });
    if (mail.state != Mail::State::sent) throw lost_error(reason_);
    CHECK(mail.bytes == bytes, "what is received has another length than what is sent");
    mail.state = Mail::State::being_read;
    lock.unlock();
    std::memcpy(data, mail.data, bytes);
    lock.lock();
    mail.state = Mail::State::read;
    changed_.notify_all();
  }

  void throw_if_lost() {
    const std::lock_guard lock(mutex_);
    if (!reason_.empty()) throw lost_error(reason_);
  }

  void abort(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    end(reason.empty() ? "A rank has given up without a reason." : reason);
  }

 private:
  // Waits until ended(), which an abort makes true sooner or later. missing() is the rank that is waited for.
  template <typename Ended, typename Missing>
  void wait(std::unique_lock<std::mutex>& lock, const Caller& caller, const Ended& ended,
            const Missing& missing) {
    WatchedTime waited(steady_seconds());
    while (!changed_.wait_for(lock, kLook, ended)) {
      waited.look(steady_seconds());
      if (waited.seconds() > caller.patience)
        end(not_answered(static_cast<int>(missing()), caller.patience, caller.doing()));
    }
  }
  void end(const std::string& reason) {
    if (reason_.empty()) reason_ = reason;
    changed_.notify_all();
  }
  Mail& mail_between(int from, int to) {
    return mail_[static_cast<size_t>(from) * ranks() + static_cast<size_t>(to)];
  }

  std::mutex mutex_;
  std::condition_variable changed_;  // notified when anything below changes
  std::vector<Post> posts_;          // by rank; written with the mutex, read between the two meetings
  std::vector<bool> here_;           // by rank: whether it has posted for the next meeting
  std::vector<Mail> mail_;           // by sender, receiver
  uint64_t meetings_ = 0;
  size_t copying_ = 0;
  std::string reason_;  // empty: not aborted
};

class InProcessCommunicator final : public Communicator {
 public:
  InProcessCommunicator(std::shared_ptr<Room> room, int rank) : room_(std::move(room)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(room_->ranks()); }
  std::string transport() const override { return "threads of one process, through host memory"; }

  void all_gather(const ProcessGroup& among, const void* part, uint64_t bytes, void* all) override {
    copy_from_each(among, Call::all_gather, part, bytes, 0, all);
  }
  void all_to_all(const ProcessGroup& among, const void* parts, uint64_t bytes, void* received) override {
    copy_from_each(among, Call::all_to_all, parts, bytes, static_cast<uint64_t>(place_in(among)) * bytes,
                   received);
  }

  void broadcast(void* data, uint64_t bytes, int root) override {
    room_->meet(caller(), {Call::broadcast, bytes, root, 0, 0, static_cast<const std::byte*>(data)},
                [&](const std::vector<Post>& posts) {
                  if (rank_ != root) std::memcpy(data, posts[static_cast<size_t>(root)].data, bytes);
                });
  }

  void barrier() override {
    room_->meet(caller(), {}, [](const std::vector<Post>&) {});
  }

  void send(const void* data, uint64_t bytes, int to) override { room_->send(caller(), to, data, bytes); }
  void receive(void* data, uint64_t bytes, int from) override { room_->receive(caller(), from, data, bytes); }

  void throw_if_lost() override { room_->throw_if_lost(); }
  void abort(const std::string& reason) noexcept override { room_->abort(reason); }

 private:
  // All ranks meet, also those of other process groups. `offset`: where each rank's data has the bytes for
  // this rank.
  void copy_from_each(const ProcessGroup& among, Call call, const void* data, uint64_t bytes, uint64_t offset,
                      void* to) {
    const Post mine{call,
                    bytes,
                    0,
                    static_cast<int>(among.count),
                    static_cast<int>(among.stride),
                    static_cast<const std::byte*>(data)};
    room_->meet(caller(), mine, [&](const std::vector<Post>& posts) {
      auto* place = static_cast<std::byte*>(to);
      for (int i = 0; i < static_cast<int>(among.count); ++i, place += bytes) {
        const std::byte* const from = posts[static_cast<size_t>(rank_at(among, i))].data + offset;
        if (from != place) std::memcpy(place, from, bytes);
      }
    });
  }
  Caller caller() const {
    return {rank_, patience(), [this] { return doing(); }};
  }

  std::shared_ptr<Room> room_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_in_process_communicators(int ranks) {
  const auto room = std::make_shared<Room>(ranks);
  std::vector<std::unique_ptr<Communicator>> out;
  for (int rank = 0; rank < ranks; ++rank) out.push_back(std::make_unique<InProcessCommunicator>(room, rank));
  return out;
}

}  // namespace sluice
