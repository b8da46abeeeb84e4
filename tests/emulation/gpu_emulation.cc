// The GPUs' work, streams, events, and what tests set up.
#include <utility>

#include "engine/base/error.h"
#include "tests/emulation/gpu_state.h"

namespace sluice::emulation {

thread_local int ordinal_of_thread = 0;

Gpu& gpu() {
  static Gpu instance;
  return instance;
}

namespace {

template <typename Handle>
uintptr_t number(Handle handle) {
  return reinterpret_cast<uintptr_t>(handle);
}

}  // namespace

void Gpu::carry_out() {
  std::unique_lock lock(mutex_);
  for (;;) {
    Stream* stream = nullptr;
    work_.wait(lock, [&] { return stopping_ || (!paused_ && (stream = choose()) != nullptr); });
    if (stopping_) return;
    const Item item = std::move(stream->items.front());
    stream->items.pop_front();
    busy_ = stream->ordinal;
    if (item.kind == Work::copy) note_copy(*stream);
    run(lock, item, cards_[stream->ordinal]);
    busy_.reset();
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
    constexpr unsigned kPreferred = 16;  // choices until another stream is preferred, on average
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

// The memory that a stream's first copy takes stays taken.
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

bool Gpu::idle(int ordinal) const {
  for (const auto& [handle, stream] : streams_)
    if (stream.ordinal == ordinal && !stream.items.empty()) return false;
  return busy_ != ordinal;
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

// ---- For tests.

void set_up(const EmulatedGpu& settings) {
  Locked g;
  CHECK(g->idle(), "the GPU is set up while it works");
  g->set_up_ = with_environment(settings);
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

uint64_t count_nccl_call() {
  Locked g;
  return g->counts_.nccl_calls++;
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
  return g->wait(g.lock(), [&] { return g->idle(ordinal_of_thread); });
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

Gate make_gate() { return std::make_shared<Moment>(); }

void open(const Gate& gate) {
  Locked g;
  gate->reached = true;
  g->work_.notify_one();
}

cudaError_t wait_for(cudaStream_t handle, const Gate& gate) {
  Call g;
  Stream* stream = nullptr;
  if (const cudaError_t error = g->find(handle, stream)) return error;
  g->enqueue(*stream, {nullptr, gate, nullptr});
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

}  // namespace sluice::emulation
