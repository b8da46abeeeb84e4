// The state of the emulated GPUs, for the files that emulate CUDA's calls on it (gpu_model.h). One lock
// guards all of it; the GPUs' thread gives it up while it works.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/base/pack.h"
#include "tests/emulation/gpu_model.h"
#include "tests/emulation/memory_model.h"

namespace sluice::emulation {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kGranule = 2 << 20;  // of allocations

// When a stream has reached the place where an event was recorded.
struct Moment {
  bool reached = false;
  Clock::time_point time;
};

struct Item {
  std::function<void()> work;  // or one of:
  std::shared_ptr<Moment> awaited, recorded;
  Work kind = Work::kernel;
};

struct Stream {
  int ordinal = 0;  // of its GPU
  std::deque<Item> items;
  uint64_t enqueued = 0, done = 0;
  bool destroyed = false;  // removed once it is empty
  bool copied = false;
};

struct Event {
  int ordinal = 0;
  std::shared_ptr<Moment> moment;  // of the last record, if there was one
  bool timed = true;
};

// `gpu` with what SLUICE_EMULATED_GPU names. Ends the process where that cannot be read.
EmulatedGpu with_environment(EmulatedGpu gpu);

constexpr uintptr_t kFirstHandle = 64;  // beyond ordinals

// The calling thread's GPU, as cudaSetDevice sets it.
extern thread_local int ordinal_of_thread;

class Gpu {
 public:
  Gpu() : thread_([this] { carry_out(); }) {}
  ~Gpu() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_one();
    thread_.join();
  }

  void carry_out();
  Stream* choose();
  void run(std::unique_lock<std::mutex>& lock, const Item& item, Card& card);
  void lose();
  void enqueue(Stream& stream, Item item);
  bool idle() const;             // all GPUs
  bool idle(int ordinal) const;  // one of them
  void note_copy(Stream& stream);
  uint64_t held(const Card& card) const;  // bytes, by this process, without page tables
  uint64_t page_tables(const Card& card) const {
    return card.context ? round_up(host_memory_.bytes() / 512, 4096) : 0;
  }
  void note_held(const Card& card) {
    counts_.held_most = std::max(counts_.held_most, held(card) + page_tables(card));
  }
  // Most calls need a context on the thread's GPU, and make it.
  Card& start_context() {
    Card& card = cards_[ordinal_of_thread];
    card.context = true;
    note_held(card);
    return card;
  }
  // Whether the range lies wholly inside one allocation of device memory.
  bool is_memory(const void* begin, uint64_t bytes) const {
    return std::any_of(cards_.begin(), cards_.end(),
                       [&](const auto& card) { return card.second.memory.contains(begin, bytes); });
  }
  // Waits on the host until the condition holds or the device is lost.
  template <typename Condition>
  cudaError_t wait(std::unique_lock<std::mutex>& lock, Condition condition) {
    done_.wait(lock, [&] { return lost_ != cudaSuccess || condition(); });
    return lost_;
  }
  // Returns the error for an unknown handle or a lost device.
  cudaError_t find(cudaStream_t handle, Stream*& stream);
  cudaError_t find(cudaEvent_t handle, Event*& event);

  std::mutex mutex_;
  std::condition_variable work_, done_;  // waited for by the GPU, by the host
  EmulatedGpu set_up_ = with_environment({});
  Counts counts_;
  cudaError_t lost_ = cudaSuccess;
  bool paused_ = false, stopping_ = false;
  std::optional<int> busy_;  // the GPU whose work is carried out
  std::mt19937 generator_;
  uint_fast32_t preferred_ = 0;
  // Handles are numbers that are never used again, so that the use of a destroyed one is noticed.
  uintptr_t last_handle_ = kFirstHandle;
  std::map<uintptr_t, Stream> streams_;  // by handle; a null stream's is its GPU's ordinal
  std::map<uintptr_t, Event> events_;
  std::map<int, Card> cards_;  // by ordinal
  Ranges host_memory_;
  std::vector<std::byte> libraries_;  // the host memory that libraries take
  struct Loaded {
    uint64_t shared_bytes = 0;  // that the kernel may have
    std::string_view source;    // path
  };
  std::map<const void*, Loaded> loaded_;  // kernels

 private:
  std::thread thread_;
};

// One object for all, since CUDA's calls name none. Its thread ends with the process.
Gpu& gpu();

// Holds the lock, and gives access to the GPUs' state.
class Locked {
 public:
  Gpu* operator->() const { return &gpu_; }
  std::unique_lock<std::mutex>& lock() { return lock_; }

 private:
  Gpu& gpu_ = gpu();
  std::unique_lock<std::mutex> lock_{gpu_.mutex_};
};

// Holds the lock during a call of the runtime that needs a context, and makes the context.
class Call : public Locked {
 public:
  Call() : card((*this)->start_context()) {}
  Card& card;  // of the calling thread
};

}  // namespace sluice::emulation
