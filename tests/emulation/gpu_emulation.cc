// One lock guards all state of the GPUs. Their thread gives it up while it works.
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "engine/error.h"
#include "engine/pack.h"
#include "tests/emulation/gpu_model.h"
#include "tests/emulation/memory_model.h"

namespace sluice::emulation {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kGranule = 2 << 20;  // of allocations

// When a stream has come to where an event was recorded.
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
  bool destroyed = false;  // it goes when it is empty
  bool copied = false;
};

struct Event {
  int ordinal = 0;
  std::shared_ptr<Moment> moment;  // of the last record, if there was one
  bool timed = true;
};

constexpr uintptr_t kFirstHandle = 64;  // beyond ordinals

// As cudaSetDevice sets it for the calling thread.
thread_local int ordinal_of_thread = 0;

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
  bool idle() const;
  void note_copy(Stream& stream);
  uint64_t held(const Card& card) const;  // bytes, by this process, beside page tables
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
  // The memory that holds the range wholly, if one does.
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
  // The error of a handle, or of the device, that is not there.
  cudaError_t find(cudaStream_t handle, Stream*& stream);
  cudaError_t find(cudaEvent_t handle, Event*& event);

  std::mutex mutex_;
  std::condition_variable work_, done_;  // waited for by the GPU, by the host
  EmulatedGpu set_up_;
  Counts counts_;
  cudaError_t lost_ = cudaSuccess;
  bool paused_ = false, busy_ = false, stopping_ = false;
  std::mt19937 generator_;
  uint_fast32_t preferred_ = 0;
  // Handles are numbers that are never used again, so that one that was destroyed is known.
  uintptr_t last_handle_ = kFirstHandle;
  std::map<uintptr_t, Stream> streams_;  // with null streams, by ordinal
  std::map<uintptr_t, Event> events_;
  std::map<int, Card> cards_;  // by ordinal
  Ranges host_memory_;
  std::vector<std::byte> libraries_;  // what they take of host memory
  std::map<const void*, uint64_t> loaded_;  // kernels, with the shared memory that they may have

 private:
  std::thread thread_;
};

// CUDA's calls name no object, so there has to be one for all; the thread ends with the process.
Gpu& gpu() {
  static Gpu instance;
  return instance;
}

// The GPUs' state while the lock is held.
class Locked {
 public:
  Gpu* operator->() const { return &gpu_; }
  std::unique_lock<std::mutex>& lock() { return lock_; }

 private:
  Gpu& gpu_ = gpu();
  std::unique_lock<std::mutex> lock_{gpu_.mutex_};
};

// Within a call of the runtime that needs a context.
class Call : public Locked {
 public:
  Call() : card((*this)->start_context()) {}
  Card& card;  // of the calling thread
};

template <typename Handle>
uintptr_t number(Handle handle) {
  return reinterpret_cast<uintptr_t>(handle);
}

void Gpu::carry_out() {
  std::unique_lock lock(mutex_);
  for (;;) {
    Stream* stream = nullptr;
    work_.wait(lock, [&] { return stopping_ || (!paused_ && (stream = choose()) != nullptr); });
    if (stopping_) return;
    const Item item = std::move(stream->items.front());
    stream->items.pop_front();
    busy_ = true;
    if (item.kind == Work::copy) note_copy(*stream);
    run(lock, item, cards_[stream->ordinal]);
    busy_ = false;
    if (lost_ == cudaSuccess) ++stream->done;
    std::erase_if(streams_, [](const auto& s) { return s.second.destroyed && s.second.items.empty(); });
    done_.notify_all();
  }
}

Stream* Gpu::choose() {
  std::vector<Stream*> ready;
  for (auto& [handle, stream] : streams_) {
    if (stream.items.empty()) continue;
    const Item& head = stream.items.front();
    if (head.awaited == nullptr || head.awaited->reached) ready.push_back(&stream);
  }
  if (ready.empty()) return nullptr;
  if (set_up_.seed == 0) return ready[0];
  if (set_up_.seed % 2 == 0) {
    constexpr unsigned kPreferred = 16;  // choices, on average
    if (generator_() % kPreferred == 0) preferred_ = generator_();
    return ready[preferred_ % ready.size()];
  }
  return ready[generator_() % ready.size()];
}

void Gpu::run(std::unique_lock<std::mutex>& lock, const Item& item, Card& card) {
  if (item.recorded != nullptr) {
    item.recorded->reached = true;
    item.recorded->time = Clock::now();
  }
  if (item.work == nullptr) return;
  if (counts_.works == set_up_.work_that_is_lost) return lose();
  const auto delay_max = static_cast<unsigned>(set_up_.delay_microseconds_max);
  const std::chrono::microseconds delay(delay_max == 0 ? 0 : generator_() % (delay_max + 1));
  const Ranges memory = card.memory;
  lock.unlock();
  if (delay_max != 0) std::this_thread::sleep_for(delay);
  {
    const OpenMemory open(memory);
    item.work();
  }
  lock.lock();
  ++counts_.works;
  if (!std::exchange(card.libraries, true)) libraries_.assign(set_up_.library_host_bytes, std::byte{1});
  note_held(card);
}

// What the first copy of a stream takes stays taken.
void Gpu::note_copy(Stream& stream) {
  if (std::exchange(stream.copied, true)) return;
  Card& card = cards_[stream.ordinal];
  ++card.streams_that_copied;
  note_held(card);
}

void Gpu::lose() {
  lost_ = set_up_.lost_with;
  for (auto& [handle, stream] : streams_) {
    stream.items.clear();
    stream.done = stream.enqueued;
  }
}

void Gpu::enqueue(Stream& stream, Item item) {
  stream.items.push_back(std::move(item));
  ++stream.enqueued;
  work_.notify_one();
}

bool Gpu::idle() const {
  for (const auto& [handle, stream] : streams_)
    if (!stream.items.empty()) return false;
  return !busy_;
}

uint64_t Gpu::held(const Card& card) const {
  uint64_t allocated = 0;
  for (const auto& [begin, bytes] : card.memory.all()) allocated += round_up(bytes, kGranule);
  return (card.context ? set_up_.context_bytes : 0) + (card.libraries ? set_up_.library_bytes : 0) +
         card.streams_that_copied * set_up_.copy_bytes + card.products.size() * set_up_.product_bytes +
         allocated;
}

cudaError_t Gpu::find(cudaStream_t handle, Stream*& stream) {
  if (handle == nullptr) streams_[static_cast<uintptr_t>(ordinal_of_thread)].ordinal = ordinal_of_thread;
  const auto it = streams_.find(handle ? number(handle) : static_cast<uintptr_t>(ordinal_of_thread));
  if (it == streams_.end() || it->second.destroyed) return cudaErrorInvalidResourceHandle;
  stream = &it->second;
  return lost_;
}

cudaError_t Gpu::find(cudaEvent_t handle, Event*& event) {
  const auto it = events_.find(number(handle));
  if (it == events_.end()) return cudaErrorInvalidResourceHandle;
  event = &it->second;
  return lost_;
}

}  // namespace

// ---- For tests.

void set_up(const EmulatedGpu& settings) {
  Locked g;
  CHECK(g->idle(), "the GPU is set up while it works");
  g->set_up_ = settings;
  g->counts_ = {};
  g->lost_ = cudaSuccess;
  g->paused_ = false;
  for (auto& [ordinal, card] : g->cards_) {
    card.context = card.libraries = false;
    card.streams_that_copied = 0;
    card.products.clear();
  }
  g->libraries_ = {};
  ordinal_of_thread = 0;
  g->generator_.seed(settings.seed);
  g->preferred_ = g->generator_();
}

EmulatedGpu current() {
  Locked g;
  return g->set_up_;
}

void pause() {
  Locked g;
  g->paused_ = true;
}

void resume() {
  Locked g;
  g->paused_ = false;
  g->work_.notify_one();
}

Counts counts() {
  Locked g;
  Counts counts = g->counts_;
  for (const auto& [ordinal, card] : g->cards_) {
    counts.allocated_bytes += card.memory.bytes();
    counts.held += g->held(card) + g->page_tables(card);
    if (card.context) counts.contexts.push_back(ordinal);
  }
  counts.registered_bytes = g->host_memory_.bytes();
  for (const auto& [handle, stream] : g->streams_) counts.streams_there += handle >= kFirstHandle;
  counts.events_there = g->events_.size();
  return counts;
}

cudaError_t lost() {
  Locked g;
  return g->lost_;
}

// ---- Streams.

cudaError_t enqueue(cudaStream_t handle, std::function<void()> work, Work kind) {
  Call g;
  Stream* stream = nullptr;
  if (const cudaError_t error = g->find(handle, stream)) return error;
  if (stream->ordinal != ordinal_of_thread) return cudaErrorInvalidResourceHandle;
  g->enqueue(*stream, {std::move(work), nullptr, nullptr, kind});
  return cudaSuccess;
}

cudaError_t synchronize() {
  Call g;
  return g->wait(g.lock(), [&] { return g->idle(); });
}

cudaError_t synchronize(cudaStream_t handle) {
  Call g;
  Stream* stream = nullptr;
  if (const cudaError_t error = g->find(handle, stream)) return error;
  const uint64_t wanted = stream->enqueued;
  return g->wait(g.lock(), [&] { return g->find(handle, stream) != cudaSuccess || stream->done >= wanted; });
}

cudaError_t create_stream(cudaStream_t* handle) {
  Call g;
  if (g->lost_ != cudaSuccess) return g->lost_;
  if (g->counts_.streams == g->set_up_.stream_that_fails) return cudaErrorMemoryAllocation;
  ++g->counts_.streams;
  g->streams_[++g->last_handle_].ordinal = ordinal_of_thread;
  *handle = reinterpret_cast<cudaStream_t>(g->last_handle_);
  return cudaSuccess;
}

cudaError_t destroy_stream(cudaStream_t handle) {
  Call g;
  Stream* stream = nullptr;
  const cudaError_t error = g->find(handle, stream);
  if (stream == nullptr || handle == nullptr) return cudaErrorInvalidResourceHandle;
  stream->destroyed = true;
  if (stream->done == stream->enqueued || g->lost_ != cudaSuccess) g->streams_.erase(number(handle));
  return error;
}

// ---- Events.

cudaError_t create_event(cudaEvent_t* handle, bool timed) {
  Call g;
  if (g->lost_ != cudaSuccess) return g->lost_;
  if (g->counts_.events == g->set_up_.event_that_fails) return cudaErrorMemoryAllocation;
  ++g->counts_.events;
  g->events_.emplace(++g->last_handle_, Event{ordinal_of_thread, nullptr, timed});
  *handle = reinterpret_cast<cudaEvent_t>(g->last_handle_);
  return cudaSuccess;
}

cudaError_t destroy_event(cudaEvent_t handle) {
  Call g;
  Event* event = nullptr;
  const cudaError_t error = g->find(handle, event);
  g->events_.erase(number(handle));
  return error;
}

cudaError_t record(cudaEvent_t event_handle, cudaStream_t stream_handle) {
  Call g;
  Event* event = nullptr;
  Stream* stream = nullptr;
  if (const cudaError_t error = g->find(event_handle, event)) return error;
  if (const cudaError_t error = g->find(stream_handle, stream)) return error;
  if (event->ordinal != stream->ordinal) return cudaErrorInvalidResourceHandle;
  event->moment = std::make_shared<Moment>();
  g->enqueue(*stream, {nullptr, nullptr, event->moment});
  return cudaSuccess;
}

cudaError_t wait_for(cudaStream_t stream_handle, cudaEvent_t event_handle) {
  Call g;
  Event* event = nullptr;
  Stream* stream = nullptr;
  if (const cudaError_t error = g->find(event_handle, event)) return error;
  if (const cudaError_t error = g->find(stream_handle, stream)) return error;
  if (event->moment != nullptr) g->enqueue(*stream, {nullptr, event->moment, nullptr});
  return cudaSuccess;
}

cudaError_t synchronize(cudaEvent_t handle) {
  Call g;
  Event* event = nullptr;
  if (const cudaError_t error = g->find(handle, event)) return error;
  const std::shared_ptr<Moment> moment = event->moment;
  return g->wait(g.lock(), [&] { return moment == nullptr || moment->reached; });
}

cudaError_t query(cudaEvent_t handle) {
  Call g;
  Event* event = nullptr;
  if (const cudaError_t error = g->find(handle, event)) return error;
  return event->moment == nullptr || event->moment->reached ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t elapsed(float* milliseconds, cudaEvent_t begin_handle, cudaEvent_t end_handle) {
  Call g;
  Event *begin = nullptr, *end = nullptr;
  if (const cudaError_t error = g->find(begin_handle, begin)) return error;
  if (const cudaError_t error = g->find(end_handle, end)) return error;
  if (begin->ordinal != end->ordinal) return cudaErrorInvalidResourceHandle;
  for (const Event* event : {begin, end})
    if (!event->timed || event->moment == nullptr) return cudaErrorInvalidResourceHandle;
  if (!begin->moment->reached || !end->moment->reached) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(end->moment->time - begin->moment->time).count();
  return cudaSuccess;
}

// ---- Memory.

cudaError_t choose(int ordinal) {
  ordinal_of_thread = ordinal;
  return Call()->lost_;
}

int chosen() { return ordinal_of_thread; }

MemoryUse memory_use(int ordinal) {
  Locked g;
  const Card& card = g->cards_[ordinal];
  return {g->held(card), g->page_tables(card), g->set_up_.used_by_others, g->set_up_.memory_bytes};
}

cudaError_t memory_info(uint64_t* free, uint64_t* total) {
  Call g;
  const uint64_t used = g->set_up_.used_by_others + g->held(g.card) + g->page_tables(g.card);
  *total = g->set_up_.memory_bytes;
  *free = used < *total ? *total - used : 0;
  return g->lost_;
}

cudaError_t allocate(void** data, uint64_t bytes) {
  uint64_t free = 0, total = 0;
  if (const cudaError_t error = memory_info(&free, &total)) return error;
  Call g;
  if (round_up(bytes, kGranule) > free || g->counts_.allocations == g->set_up_.allocation_that_fails)
    return cudaErrorMemoryAllocation;
  ++g->counts_.allocations;
  std::byte* const begin = map_device_memory(bytes);
  if (begin == nullptr) return cudaErrorMemoryAllocation;
  CHECK(g.card.memory.add(begin, bytes), "device memory overlaps");
  g->note_held(g.card);
  *data = begin;
  return cudaSuccess;
}

// As CUDA's, it waits for the device.
cudaError_t free_memory(void* data) {
  Call g;
  const cudaError_t error = g->wait(g.lock(), [&] { return g->idle(); });
  if (data == nullptr) return error;
  uint64_t bytes = 0;
  for (auto& [ordinal, card] : g->cards_) bytes += card.memory.remove(data);
  if (bytes == 0) return cudaErrorInvalidValue;
  unmap_device_memory(data, bytes);
  return error;
}

cudaError_t register_host(void* begin, uint64_t bytes) {
  Call g;
  if (g->lost_ != cudaSuccess) return g->lost_;
  if (begin == nullptr || bytes == 0) return cudaErrorInvalidValue;
  if (g->counts_.registrations == g->set_up_.registration_that_fails ||
      bytes > g->set_up_.registration_bytes_max ||
      bytes > g->set_up_.pinned_bytes_max - g->host_memory_.bytes())
    return cudaErrorMemoryAllocation;
  if (!g->host_memory_.add(begin, bytes)) return cudaErrorHostMemoryAlreadyRegistered;
  ++g->counts_.registrations;
  g->counts_.untouched_bytes += untouched_bytes(begin, bytes);
  g->note_held(g.card);
  return cudaSuccess;
}

cudaError_t unregister_host(void* begin) {
  Call g;
  if (g->host_memory_.remove(begin) == 0) return cudaErrorHostMemoryNotRegistered;
  return g->lost_;
}

bool is_device_memory(const void* begin, uint64_t bytes) {
  Locked g;
  return g->is_memory(begin, bytes);
}

bool is_registered(const void* begin, uint64_t bytes) {
  Locked g;
  return g->host_memory_.contains(begin, bytes);
}

cudaError_t load(const void* kernel, uint64_t shared_bytes) {
  Locked g;
  g->loaded_[kernel] = shared_bytes;
  return g->set_up_.loading_returns;
}

void load_product(const std::vector<int>& kernel) {
  Call g;
  g.card.products.insert(kernel);
  g->note_held(g.card);
}

void check_loaded(const void* kernel, uint64_t shared_bytes) {
  Locked g;
  const auto found = g->loaded_.find(kernel);
  CHECK(found != g->loaded_.end(), "a kernel was launched that had not been loaded");
  CHECK(shared_bytes <= found->second, "a kernel was loaded for less shared memory");
}

}  // namespace sluice::emulation
