#include "offload/arena.h"

#include <hwloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/parallel.h"

namespace sluice {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;    // of x86-64 and of arm64 with 4 KiB pages
constexpr uint64_t kPrefaultSlice = 32 * kHugePage;  // filled in some milliseconds; every thread gets many

// Returns 0, or the errno with which pages were refused.
int populate(std::byte* data, uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno == ENOMEM || errno == EFAULT || errno == EHWPOISON) return errno;
#endif
  // For kernels before 5.14.
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (uint64_t i = 0; i < bytes; i += page) *const_cast<volatile std::byte*>(data + i) = std::byte{0};
  return 0;
}

// Without HWLOC_MEMBIND_STRICT, hwloc asks the kernel to prefer the nodes, and not to fail where they are
// full.
bool prefer_node(hwloc_topology_t topology, std::span<std::byte> memory, hwloc_bitmap_t set, int node) {
  return hwloc_bitmap_only(set, static_cast<unsigned>(node)) == 0 &&
         hwloc_set_area_membind(topology, memory.data(), memory.size(), set, HWLOC_MEMBIND_BIND,
                                HWLOC_MEMBIND_BYNODESET) == 0;
}

void prefer_processors(hwloc_topology_t topology, std::span<std::byte> memory, hwloc_bitmap_t set) {
  if (hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE) > 1 &&
      hwloc_get_cpubind(topology, set, HWLOC_CPUBIND_THREAD) == 0)
    (void)hwloc_set_area_membind(topology, memory.data(), memory.size(), set, HWLOC_MEMBIND_BIND, 0);
}

void keep_near(std::span<std::byte> memory, const ArenaOptions& options) {
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return;
  // Only the memory nodes are looked up; the rest of the machine would cost time and memory.
  hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
  const hwloc_bitmap_t set = hwloc_bitmap_alloc();
  if (set && hwloc_topology_load(topology) == 0) {
    const bool placed = options.near_node && prefer_node(topology, memory, set, *options.near_node);
    if (!placed && options.near_processors) prefer_processors(topology, memory, set);
  }
  hwloc_bitmap_free(set);
  hwloc_topology_destroy(topology);
}

}  // namespace

Arena::Arena(uint64_t bytes, const ArenaOptions& options) {
  if (bytes == 0) return;
  map(bytes);
  try {
    if (options.near_processors || options.near_node) keep_near(span(), options);
    if (options.prefault_threads > 0) prefault(options.prefault_threads);
  } catch (...) {
    munmap(data_, bytes_);
    throw;
  }
}

Arena::~Arena() {
  if (data_) munmap(data_, bytes_);
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

// Maps one huge page more than was asked for and unmaps the ends: kernels before 6.7 do not align mappings.
void Arena::map(uint64_t bytes) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t slack = bytes >= kHugePage ? kHugePage : 0;
  const bool representable = bytes < (uint64_t{1} << 62);
  const uint64_t size = representable ? (bytes + page - 1) / page * page : 0;
  void* all = MAP_FAILED;
  errno = ENOMEM;
  if (representable)
    all = mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED)
    throw Error(ExitCode::environment,
                "Cannot get " + std::to_string(bytes) + " bytes of memory: " + std::strerror(errno) + ".",
                "Lower the memory budget, or free memory.");
  auto* begin = static_cast<std::byte*>(all);
  const uint64_t head = slack ? (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage : 0;
  if (head > 0) munmap(begin, head);
  if (slack > head) munmap(begin + head + size, slack - head);
  data_ = begin + head;
  bytes_ = size;
  (void)madvise(data_, bytes_, MADV_HUGEPAGE);  // advice: a kernel without huge pages may refuse it
}

void Arena::prefault(int threads) {
  std::atomic<int> failed = 0;
  const uint64_t slices = (bytes_ + kPrefaultSlice - 1) / kPrefaultSlice;
  Workers(threads).parallel_for(static_cast<int64_t>(slices), [&](int64_t slice, int) {
    const uint64_t at = static_cast<uint64_t>(slice) * kPrefaultSlice;
    const int error = populate(data_ + at, std::min(kPrefaultSlice, bytes_ - at));
    if (error != 0) failed = error;
  });
  if (failed != 0)
    throw Error(ExitCode::environment,
                "Cannot fill " + std::to_string(bytes_) + " bytes of memory: " + std::strerror(failed) + ".",
                "Lower the memory budget, or free memory.");
}

}  // namespace sluice
