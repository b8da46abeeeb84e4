// Thread-pool back end: one thread for each request that can be in flight, which calls pread or pwrite. One
// mutex guards a ring of requests and a ring of completions. Requests are up to 1 MiB, so the mutex is taken
// a few thousand times a second, which costs nothing.
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "offload/io/backends.h"

namespace sluice {
namespace {

int64_t transfer(const IoRequest& r) {
  const auto offset = static_cast<off_t>(r.offset);
  const ssize_t n = r.direction == IoDirection::read ? pread(r.fd, r.memory, r.bytes, offset)
                                                     : pwrite(r.fd, r.memory, r.bytes, offset);
  return n < 0 ? -errno : n;
}

// First in, first out, in a ring of fixed size.
template <typename T>
class Ring {
 public:
  explicit Ring(size_t capacity) : entries_(capacity) {}
  bool empty() const { return head_ == tail_; }
  void push(const T& value) { entries_[tail_++ % entries_.size()] = value; }
  T pop() { return entries_[head_++ % entries_.size()]; }

 private:
  std::vector<T> entries_;
  uint64_t head_ = 0, tail_ = 0;
};

class ThreadQueue : public IoQueue {
 public:
  explicit ThreadQueue(uint32_t depth) : depth_(depth), requests_(depth), completions_(depth) {
    threads_.reserve(depth);
    try {
      for (uint32_t i = 0; i < depth; ++i) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error& e) {
      stop();
      throw Error(ExitCode::environment, std::string("Cannot start a thread for I/O: ") + e.what() + ".",
                  "Raise the limit on processes (ulimit -u, or the container's pids limit).");
    }
  }
  ~ThreadQueue() override { stop(); }

  uint32_t depth() const override { return depth_; }
  uint32_t in_flight() const override { return in_flight_; }

  void submit(const IoRequest& request) override {
    CHECK(in_flight_ < depth_, "an I/O queue is full");
    ++in_flight_;
    {
      const std::lock_guard lock(mutex_);
      requests_.push(request);
    }
    work_.notify_one();
  }

  uint32_t poll(std::span<IoCompletion> done, int64_t timeout_microseconds) override {
    if (in_flight_ == 0 || done.empty()) return 0;
    std::unique_lock lock(mutex_);
    if (completions_.empty() && timeout_microseconds > 0)
      done_.wait_for(lock, std::chrono::microseconds(timeout_microseconds));
    uint32_t count = 0;
    while (count < done.size() && !completions_.empty()) done[count++] = completions_.pop();
    in_flight_ -= count;
    return count;
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [this] { return stopping_ || !requests_.empty(); });
      if (requests_.empty()) return;  // stopping, and nothing left to do
      const IoRequest request = requests_.pop();
      lock.unlock();
      const int64_t result = transfer(request);
      lock.lock();
      completions_.push({request.tag, result});
      done_.notify_one();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  const uint32_t depth_;
  uint32_t in_flight_ = 0;  // used by the owner's thread only
  std::mutex mutex_;
  std::condition_variable work_, done_;
  Ring<IoRequest> requests_;
  Ring<IoCompletion> completions_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

const IoBackend kThreadBackend = {
    "threads", "A pool of threads", "a pool of threads, which works everywhere",
    [](uint32_t depth, std::span<std::byte>) {
      return MadeIoQueue{std::make_unique<ThreadQueue>(depth), std::to_string(depth) + " I/O threads", {}};
    }};

}  // namespace sluice
