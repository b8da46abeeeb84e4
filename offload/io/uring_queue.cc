// io_uring back end. It asks for no optional feature of a ring. A request has up to 1 MiB, so a system call
// for each costs nothing. Without these features, one thread can make a ring and another use it.
//
// The kernel may use a request's memory from when it takes the request until the completion. When the kernel
// refuses requests for good, those that it has not taken and all later ones complete with the errno of the
// refusal. Those that it has taken complete as usual.
#include "offload/io/uring_queue.h"

#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "engine/base/error.h"

namespace sluice {
namespace {

// The size of the kernel's bio_vec: one for each page, or one for a huge page where the kernel can do so.
constexpr uint64_t kBytesAPage = 16;
constexpr uint64_t kRegisteredBufferMax = uint64_t{1} << 30;  // the kernel's limit for one registered buffer

constexpr std::chrono::milliseconds kNap{1};  // between polls, where the system refuses to wait

// The setting kernel.io_uring_disabled; -1 where there is none.
int io_uring_disabled() {
  int value = -1;
  if (FILE* f = std::fopen("/proc/sys/kernel/io_uring_disabled", "re")) {
    if (std::fscanf(f, "%d", &value) != 1) value = -1;
    std::fclose(f);
  }
  return value;
}

bool transient(int error) { return error == EAGAIN || error == EBUSY || error == EINTR; }

class UringQueue : public IoQueue {
 public:
  explicit UringQueue(uint32_t depth) : depth_(depth), reaped_(depth) {
    waiting_.reserve(depth);
    refused_.reserve(depth);
  }
  ~UringQueue() override {
    if (!made_) return;
    std::vector<IoCompletion> rest(depth_);
    while (in_flight_ > 0) poll(rest, 100'000);
    io_uring_queue_exit(&ring_);
  }

  // Returns 0 or an errno.
  int make() {
    const int result = io_uring_queue_init(depth_, &ring_, 0);
    if (result < 0) return -result;
    made_ = true;
    // Needed to wait with a timeout (Linux 5.11); without it, liburing would spend a ring entry on the
    // timeout.
    return ring_.features & IORING_FEAT_EXT_ARG ? 0 : ENOSYS;
  }

  // Registers `memory` piece by piece until the system refuses one. Returns in words how much is registered.
  std::string register_memory(std::span<std::byte> memory) {
    if (memory.empty()) return "no buffers to register";
    const auto pieces =
        static_cast<unsigned>((memory.size() + kRegisteredBufferMax - 1) / kRegisteredBufferMax);
    int error = -io_uring_register_buffers_sparse(&ring_, pieces);
    base_ = memory.data();
    for (unsigned i = 0; error == 0 && i < pieces; ++i) {
      const uint64_t begin = i * kRegisteredBufferMax;
      const iovec piece{base_ + begin, std::min(kRegisteredBufferMax, memory.size() - begin)};
      const __u64 tag = 0;
      const int result = io_uring_register_buffers_update_tag(&ring_, i, &piece, &tag, 1);
      error = result == 1 ? 0 : -result;
      if (error == 0) registered_ = begin + piece.iov_len;
    }
    std::string text = std::to_string(registered_ >> 20) + " of " + std::to_string(memory.size() >> 20) +
                       " MiB of buffers registered";
    if (error != 0) text += std::string("; the rest cannot be registered: ") + std::strerror(error);
    if (error == ENOMEM) text += " (ulimit -l)";
    return text;
  }

  uint32_t depth() const override { return depth_; }
  uint32_t in_flight() const override { return in_flight_; }

  void submit(const IoRequest& r) override {
    CHECK(in_flight_ < depth_, "an I/O queue is full");
    ++in_flight_;
    if (broken_ != 0) return refused_.push_back(r.tag);
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    CHECK(sqe != nullptr, "the ring has as many entries as the queue is deep");
    const int buffer = registered_index(r.memory, r.bytes);
    const bool read = r.direction == IoDirection::read;
    if (read && buffer >= 0) io_uring_prep_read_fixed(sqe, r.fd, r.memory, r.bytes, r.offset, buffer);
    if (read && buffer < 0) io_uring_prep_read(sqe, r.fd, r.memory, r.bytes, r.offset);
    if (!read && buffer >= 0) io_uring_prep_write_fixed(sqe, r.fd, r.memory, r.bytes, r.offset, buffer);
    if (!read && buffer < 0) io_uring_prep_write(sqe, r.fd, r.memory, r.bytes, r.offset);
    io_uring_sqe_set_data64(sqe, r.tag);
    waiting_.push_back(r.tag);
    enter();
  }

  uint32_t poll(std::span<IoCompletion> done, int64_t timeout_microseconds) override {
    if (in_flight_ == 0 || done.empty()) return 0;
    if (!waiting_.empty()) enter();  // requests that were refused for the moment
    uint32_t count = reap(done);
    if (count > 0 || timeout_microseconds <= 0) return count;
    io_uring_cqe* first = nullptr;
    __kernel_timespec wait{timeout_microseconds / 1'000'000, timeout_microseconds % 1'000'000 * 1000};
    const int result = io_uring_wait_cqe_timeout(&ring_, &first, &wait);
    // Completions are delivered even where the call that waits for them fails.
    if (result < 0 && result != -ETIME && !transient(-result)) std::this_thread::sleep_for(kNap);
    return reap(done);
  }

 private:
  // The registered buffer that holds all of a request's memory, or -1.
  int registered_index(const std::byte* memory, uint32_t bytes) const {
    if (memory < base_ || memory + bytes > base_ + registered_) return -1;
    const uint64_t begin = static_cast<uint64_t>(memory - base_);
    const uint64_t index = begin / kRegisteredBufferMax;
    return (begin + bytes - 1) / kRegisteredBufferMax == index ? static_cast<int>(index) : -1;
  }

  // Requests that are refused for the moment stay in the ring; the next call hands them over.
  void enter() {
    const int result = io_uring_submit(&ring_);
    if (result >= 0) {
      waiting_.erase(waiting_.begin(), waiting_.begin() + result);
    } else if (!transient(-result)) {
      broken_ = -result;
      refused_ = waiting_;
      waiting_.clear();
    }
  }

  uint32_t reap(std::span<IoCompletion> done) {
    unsigned count = 0;
    for (; count < done.size() && !refused_.empty(); refused_.pop_back())
      done[count++] = {refused_.back(), -broken_};
    const auto room = static_cast<unsigned>(std::min<size_t>(done.size() - count, reaped_.size()));
    const unsigned taken = io_uring_peek_batch_cqe(&ring_, reaped_.data(), room);
    for (unsigned i = 0; i < taken; ++i)
      done[count++] = {io_uring_cqe_get_data64(reaped_[i]), reaped_[i]->res};
    io_uring_cq_advance(&ring_, taken);
    in_flight_ -= count;
    return count;
  }

  const uint32_t depth_;
  uint32_t in_flight_ = 0;
  io_uring ring_{};
  bool made_ = false;
  std::byte* base_ = nullptr;
  uint64_t registered_ = 0;  // bytes from base_ on
  std::vector<io_uring_cqe*> reaped_;
  std::vector<uint64_t> waiting_;  // tags of requests in the ring that the kernel has not taken, oldest first
  std::vector<uint64_t> refused_;  // tags of requests that the kernel will never take
  int broken_ = 0;                 // the errno with which the kernel refused for good; 0: it has not
};

}  // namespace

IoStatus explain_uring_error(int error, int disabled_setting) {
  switch (error) {
    case 0:
      return {};
    case ENOSYS:
      return {IoObstacle::kernel, "the kernel has none, or one that is too old (ENOSYS)",
              "sudo apt-get full-upgrade && sudo reboot  # Linux 5.11 or later"};
    case EPERM:
      if (disabled_setting > 0)
        return {IoObstacle::setting,
                "kernel.io_uring_disabled is " + std::to_string(disabled_setting) + " (EPERM)",
                "sudo sysctl -w kernel.io_uring_disabled=0"};
      return {IoObstacle::seccomp,
              "a seccomp profile blocks it (EPERM), as a container's default profile does", ""};
    case ENOMEM:
      return {IoObstacle::memory, "no memory may be locked for its ring (ENOMEM; see ulimit -l)", ""};
    default:
      return {IoObstacle::other, std::string("io_uring_setup says: ") + std::strerror(error), ""};
  }
}

namespace {

MadeIoQueue make_uring_queue(uint32_t depth, std::span<std::byte> registered) {
  auto queue = std::make_unique<UringQueue>(depth);
  if (const int error = queue->make(); error != 0)
    return {nullptr, "", explain_uring_error(error, io_uring_disabled())};
  const std::string text = "io_uring (" + queue->register_memory(registered) + ")";
  return {std::move(queue), text, {}};
}

}  // namespace

const IoBackend kUringBackend = {"uring", "io_uring", "io_uring, with the least processor time",
                                 make_uring_queue, kBytesAPage};

}  // namespace sluice
