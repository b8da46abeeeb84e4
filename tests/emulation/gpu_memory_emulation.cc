// Calls about memory and kernels: which GPU a thread uses, what is allocated, registered and loaded.
#include "engine/base/error.h"
#include "tests/emulation/gpu_state.h"

namespace sluice::emulation {

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

// Waits for the device, as cudaFree does.
cudaError_t free_memory(void* data) {
  Call g;
  int there = ordinal_of_thread;  // the GPU that has it
  for (const auto& [ordinal, card] : g->cards_)
    if (card.memory.contains(data, 1)) there = ordinal;
  const cudaError_t error = g->wait(g.lock(), [&] { return g->idle(there); });
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

cudaError_t load(const void* kernel, uint64_t shared_bytes, const char* source) {
  Locked g;
  g->loaded_[kernel] = {shared_bytes, source};
  return g->set_up_.loading_returns;
}

void load_product(uint32_t algorithm, const std::vector<int>& kernel) {
  Call g;
  ++g->counts_.products[{algorithm, kernel.back() != 0}];
  g.card.products.insert({algorithm, kernel});
  g->note_held(g.card);
}

void check_loaded(const void* kernel, uint64_t shared_bytes) {
  Locked g;
  const auto found = g->loaded_.find(kernel);
  CHECK(found != g->loaded_.end(), "a kernel was launched that had not been loaded");
  CHECK(shared_bytes <= found->second.shared_bytes, "a kernel was loaded for less shared memory");
}

std::string source_of(const void* kernel) {
  const std::string_view path = Locked()->loaded_.at(kernel).source;
  return std::string(path.substr(path.rfind('/') + 1));
}

bool is_idle(const void* kernel) {
  const std::string idle = current().idle_kernels;
  return !idle.empty() && source_of(kernel) == idle;
}

}  // namespace sluice::emulation
