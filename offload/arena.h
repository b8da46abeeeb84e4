// An arena: one tier's memory, allocated once and never again.
//
// One anonymous mapping of exactly the bytes asked for (rounded up to a page), begun at a huge-page boundary
// and advised to use huge pages, optionally bound to a NUMA node and touched in advance. Fresh memory is
// zero. The set-up code makes it; then any thread may use the bytes, ordered by the program's waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace sluice {

struct ArenaOptions {
  std::optional<unsigned> numa_node;  // operating-system index; on a machine with one node, 0 does nothing
  bool prefault = false;              // touch every page now
};

class Arena {
 public:
  Arena() = default;
  // Throws Error(environment) when the memory cannot be had or the node does not exist.
  explicit Arena(uint64_t bytes, const ArenaOptions& options = {});
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  std::span<std::byte> span() const { return {data_, bytes_}; }

 private:
  void map(uint64_t bytes);
  void prefault();

  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace sluice
