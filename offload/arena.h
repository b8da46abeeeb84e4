// An arena: one tier's memory, allocated once and never again.
//
// One anonymous mapping of the bytes asked for, rounded up to a page. From the size of a huge page (2 MiB)
// on, it begins at a huge-page boundary. It is advised to use huge pages, and is optionally kept near a card
// or the processors and touched in advance. Fresh memory is zero. The set-up code makes an arena. Then any
// thread may use its bytes, ordered by the program's waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace sluice {

struct ArenaOptions {
  // On a machine of several NUMA nodes, prefers the nodes whose processors the calling thread may run on.
  // What does not fit into these nodes lies elsewhere. A refusal of the system is ignored: containers may
  // forbid such requests, and memory elsewhere is only slower.
  bool near_processors = false;
  // The NUMA node of a card that reads and writes the arena. This node is preferred to those of
  // `near_processors`, unless the system refuses.
  std::optional<int> near_node = std::nullopt;
  int prefault_threads = 0;  // threads that touch every page now; 0: pages are filled when first used
};

class Arena {
 public:
  Arena() = default;
  // Throws Error(environment) when the memory cannot be had.
  explicit Arena(uint64_t bytes, const ArenaOptions& options = {});
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  std::span<std::byte> span() const { return {data_, bytes_}; }

 private:
  void map(uint64_t bytes);
  void prefault(int threads);

  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace sluice
