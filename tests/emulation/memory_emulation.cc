#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"
#include "tests/emulation/memory_model.h"

namespace sluice::emulation {
namespace {

uint64_t page_bytes() { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

uint64_t in_pages(uint64_t bytes) { return (bytes + page_bytes() - 1) / page_bytes() * page_bytes(); }

void protect(const Ranges& ranges, int protection) {
  for (const auto& [begin, bytes] : ranges.all())
    CHECK(mprotect(reinterpret_cast<void*>(begin), in_pages(bytes), protection) == 0, "mprotect");
}

}  // namespace

bool Ranges::add(const void* begin, uint64_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(begin);
  const auto next = ranges_.lower_bound(at);
  if (next != ranges_.end() && next->first < at + bytes) return false;
  if (next != ranges_.begin() && std::prev(next)->first + std::prev(next)->second > at) return false;
  ranges_.emplace(at, bytes);
  bytes_ += bytes;
  return true;
}

uint64_t Ranges::remove(const void* begin) {
  const auto it = ranges_.find(reinterpret_cast<uintptr_t>(begin));
  if (it == ranges_.end()) return 0;
  const uint64_t bytes = it->second;
  ranges_.erase(it);
  bytes_ -= bytes;
  return bytes;
}

bool Ranges::contains(const void* begin, uint64_t bytes) const {
  const auto at = reinterpret_cast<uintptr_t>(begin);
  const auto next = ranges_.upper_bound(at);
  if (next == ranges_.begin()) return false;
  const auto& [first, size] = *std::prev(next);
  return at - first <= size && bytes <= size - (at - first);
}

std::byte* map_device_memory(uint64_t bytes) {
  // Opening and closing a large range takes long with small pages.
  constexpr uint64_t kLargePage = 2 << 20;
  const uint64_t page = page_bytes(), alignment = bytes < kLargePage ? page : kLargePage;
  const uint64_t wanted = in_pages(bytes) + 2 * page, mapped_bytes = wanted + alignment;
  void* const mapped =
      mmap(nullptr, mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const first = static_cast<std::byte*>(mapped);
  const uint64_t ahead = alignment - reinterpret_cast<uintptr_t>(first + page) % alignment;
  std::byte* const begin = first + page + ahead;
  CHECK(munmap(first, ahead) == 0, "munmap");
  if (ahead < alignment) CHECK(munmap(first + ahead + wanted, alignment - ahead) == 0, "munmap");
  if (alignment == kLargePage) (void)madvise(begin, in_pages(bytes), MADV_HUGEPAGE);  // where there are some
  CHECK(mprotect(begin, in_pages(bytes), PROT_READ | PROT_WRITE) == 0, "mprotect");
  constexpr int kNan = 0xFF;
  std::memset(begin, kNan, in_pages(bytes));
  CHECK(mprotect(begin, in_pages(bytes), PROT_NONE) == 0, "mprotect");
  return begin;
}

void unmap_device_memory(void* begin, uint64_t bytes) {
  CHECK(munmap(static_cast<std::byte*>(begin) - page_bytes(), in_pages(bytes) + 2 * page_bytes()) == 0,
        "munmap");
}

uint64_t untouched_bytes(const void* begin, uint64_t bytes) {
  constexpr uint64_t kPagesAtOnce = 1 << 16;
  std::vector<unsigned char> there(kPagesAtOnce);
  const uint64_t page = page_bytes();
  const uintptr_t first = reinterpret_cast<uintptr_t>(begin) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(begin) + bytes;
  uint64_t untouched = 0;
  for (uintptr_t at = first; at < end; at += kPagesAtOnce * page) {
    const uint64_t pages = std::min(kPagesAtOnce, (end - at + page - 1) / page);
    if (mincore(reinterpret_cast<void*>(at), pages * page, there.data()) != 0) return bytes;  // not mapped
    for (uint64_t i = 0; i < pages; ++i) untouched += there[i] % 2 == 0 ? page : 0;
  }
  return untouched;
}

OpenMemory::OpenMemory(const Ranges& device_memory) : ranges_(device_memory) {
  protect(ranges_, PROT_READ | PROT_WRITE);
}

OpenMemory::~OpenMemory() { protect(ranges_, PROT_NONE); }

}  // namespace sluice::emulation
