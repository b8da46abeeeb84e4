// An I/O queue that injects faults into another one, for tests.
//
// Requests are counted from 1 in order of submission; the fault hits `repeat` of them, beginning with number
// `at`. The seed fixes where a transfer is cut short and which bit flips, so that a failing test can be
// replayed.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "offload/arena.h"
#include "offload/io/queue.h"

namespace sluice {

enum class FaultKind : uint8_t { none, short_transfer, eagain, eintr, eio, enospc, bit_flip };

struct Fault {
  FaultKind kind = FaultKind::none;
  uint64_t at = 1;
  uint64_t repeat = 1;
  uint64_t seed = 0;
  bool reads = true, writes = true;  // which requests are counted
  std::string directory = {};        // only requests to files in this directory are counted; empty: all
};

class FaultQueue : public IoQueue {
 public:
  FaultQueue(std::unique_ptr<IoQueue> inner, const Fault& fault)
      : inner_(std::move(inner)), fault_(fault), random_(fault.seed), pending_(inner_->depth()) {}

  uint32_t depth() const override { return inner_->depth(); }
  uint32_t in_flight() const override { return inner_->in_flight() + static_cast<uint32_t>(made_up_.size()); }
  uint64_t faults() const { return faults_; }  // injected so far

  void submit(const IoRequest& request) override {
    const bool counted =
        (request.direction == IoDirection::read ? fault_.reads : fault_.writes) && is_there(request.fd);
    count_ += counted;
    const bool hit = counted && count_ >= fault_.at && count_ - fault_.at < fault_.repeat;
    if (hit) ++faults_;
    switch (hit ? fault_.kind : FaultKind::none) {
      case FaultKind::none:
        return pass(request, {});
      case FaultKind::short_transfer:
        return cut(request);
      case FaultKind::eagain:
        return made_up_.push_back({request.tag, -EAGAIN});
      case FaultKind::eintr:
        return made_up_.push_back({request.tag, -EINTR});
      case FaultKind::eio:
        return made_up_.push_back({request.tag, -EIO});
      case FaultKind::enospc:
        return made_up_.push_back({request.tag, -ENOSPC});
      case FaultKind::bit_flip:
        return flip(request);
    }
  }

  uint32_t poll(std::span<IoCompletion> done, int64_t timeout_microseconds) override {
    uint32_t count = 0;
    while (count < done.size() && !made_up_.empty()) {
      done[count++] = made_up_.back();
      made_up_.pop_back();
    }
    const uint32_t real = inner_->poll(done.subspan(count), count > 0 ? 0 : timeout_microseconds);
    for (IoCompletion& c : done.subspan(count, real)) c = finish(c);
    return count + real;
  }

 private:
  static constexpr uint32_t kBlock = 4096;  // drives move blocks, so a request of one block is not cut

  struct Pending {
    uint64_t tag = 0;
    bool used = false;
    int64_t claim = -1;               // reported instead of the real result
    std::byte* flip_after = nullptr;  // the byte to damage after the read
    Arena damaged;                    // what is written instead of the caller's memory
  };

  // Whether the file lies in the fault's directory. For a file without a name, this is the directory in which
  // it was made.
  bool is_there(int fd) const {
    if (fault_.directory.empty()) return true;
    std::error_code error;
    const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error);
    return path.string().starts_with(std::filesystem::canonical(fault_.directory).string() + "/");
  }

  void pass(IoRequest request, Pending pending) {
    const auto free =
        std::find_if(pending_.begin(), pending_.end(), [](const Pending& p) { return !p.used; });
    pending.tag = request.tag;
    pending.used = true;
    *free = std::move(pending);
    request.tag = static_cast<uint64_t>(free - pending_.begin());
    inner_->submit(request);
  }

  // Transfers whole blocks, and reports that some bytes of the next block were transferred too.
  void cut(IoRequest request) {
    if (request.bytes <= kBlock) return pass(request, {});
    const auto claim = static_cast<uint32_t>(1 + random_() % (request.bytes - kBlock));
    request.bytes = claim / kBlock * kBlock;
    if (request.bytes == 0) return made_up_.push_back({request.tag, claim});
    Pending pending;
    pending.claim = claim;
    pass(request, std::move(pending));
  }

  // Damages one bit in transit. In a request of several blocks, the last block stays intact, since the caller
  // might ignore it.
  void flip(IoRequest request) {
    const uint64_t position = request.bytes > kBlock ? random_() % (request.bytes - kBlock) : 0;
    Pending pending;
    if (request.direction == IoDirection::read) {
      pending.flip_after = request.memory + position;
    } else {
      pending.damaged = Arena(request.bytes);
      std::memcpy(pending.damaged.data(), request.memory, request.bytes);
      pending.damaged.data()[position] ^= std::byte{0x10};
      request.memory = pending.damaged.data();
    }
    pass(request, std::move(pending));
  }

  IoCompletion finish(const IoCompletion& completion) {
    Pending& p = pending_[completion.tag];
    if (p.flip_after) *p.flip_after ^= std::byte{0x10};
    p.used = false;
    p.damaged = Arena();
    return {p.tag, p.claim >= 0 && completion.result >= 0 ? p.claim : completion.result};
  }

  std::unique_ptr<IoQueue> inner_;
  const Fault fault_;
  std::mt19937_64 random_;
  std::vector<Pending> pending_;
  std::vector<IoCompletion> made_up_;
  uint64_t count_ = 0, faults_ = 0;
};

// A drive that stops answering: request number `at` is held until `released` is set.
class HangingQueue : public IoQueue {
 public:
  HangingQueue(std::unique_ptr<IoQueue> inner, uint64_t at, const std::atomic<bool>& released)
      : inner_(std::move(inner)), at_(at), released_(released) {}

  uint32_t depth() const override { return inner_->depth(); }
  uint32_t in_flight() const override { return inner_->in_flight(); }
  void submit(const IoRequest& request) override {
    if (++count_ == at_) released_.wait(false);
    inner_->submit(request);
  }
  uint32_t poll(std::span<IoCompletion> done, int64_t timeout_microseconds) override {
    return inner_->poll(done, timeout_microseconds);
  }

 private:
  std::unique_ptr<IoQueue> inner_;
  const uint64_t at_;
  const std::atomic<bool>& released_;
  uint64_t count_ = 0;
};

}  // namespace sluice
