// Arenas: their sizes, their pages, and what is refused.
#include "offload/arena.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>

#include "engine/base/error.h"
#include "offload/system/memory_limits.h"
#include "tests/support/memory_policy.h"
#include "tests/support/units.h"

namespace sluice {
namespace {

// Resident bytes of this process.
uint64_t resident() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0, pages = 0;
  file >> total >> pages;
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

TEST(Arena, IsExactlyAsLargeAsAskedForInPages) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (const uint64_t bytes : {uint64_t{1}, page, page + 1, 2 * kMiB - 1, 2 * kMiB, 5 * kMiB + 1}) {
    const Arena arena(bytes);
    EXPECT_EQ(arena.bytes(), (bytes + page - 1) / page * page);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.data()) % (bytes >= 2 * kMiB ? 2 * kMiB : page), 0u);
    uint64_t sum = 0;
    for (const std::byte b : arena.span()) sum += static_cast<uint64_t>(b);
    EXPECT_EQ(sum, 0u);
    arena.data()[0] = arena.data()[arena.bytes() - 1] = std::byte{1};
  }
  EXPECT_EQ(Arena(0).data(), nullptr);
  EXPECT_EQ(Arena().bytes(), 0u);
}

TEST(Arena, MovesItsMemory) {
  Arena a(4096);
  a.data()[5] = std::byte{9};
  std::byte* const data = a.data();
  Arena b(std::move(a));
  EXPECT_EQ(b.data(), data);
  Arena c;
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(c.data()[5], std::byte{9});
  EXPECT_EQ(c.bytes(), 4096u);
}

TEST(Arena, PrefaultTouchesAllOfIt) {
  for (const int threads : {1, 3}) {
    const uint64_t before = resident();
    const Arena arena(133 * kMiB + 1, {.prefault_threads = threads});
    EXPECT_GE(resident(), before + 129 * kMiB);  // less 4 MiB that the process may have given back meanwhile
    EXPECT_EQ(arena.data()[arena.bytes() - 1], std::byte{0});
  }
  EXPECT_GE(process_peak_bytes(), 133 * kMiB);
}

// The nodes of the allowed processors are preferred where there are several nodes.
TEST(Arena, LiesNearTheProcessors) {
  const Arena arena(3 * kMiB, {.near_processors = true});
  std::ifstream nodes("/sys/devices/system/node/online");
  std::string online;
  if (!(nodes >> online)) GTEST_SKIP() << "the kernel lists no NUMA nodes";
  const std::optional<std::string> policy = memory_policy(arena.data());
  if (!policy) GTEST_SKIP() << "the kernel does not show memory policies";
  EXPECT_TRUE(policy->starts_with(online == "0" ? "default" : "prefer")) << *policy;
}

TEST(Arena, LiesNearANodeThatIsNamed) {
  const Arena arena(3 * kMiB, {.near_processors = true, .near_node = 0});
  arena.data()[0] = std::byte{1};
  const std::optional<std::string> policy = memory_policy(arena.data());
  if (!policy) GTEST_SKIP() << "the kernel does not show memory policies";
  EXPECT_TRUE(policy->starts_with("prefer") && policy->find(":0 ") != std::string::npos) << *policy;
  // A node that is not there is refused, and the arena made without it.
  const Arena nowhere(3 * kMiB, {.near_node = 63});
  nowhere.data()[0] = std::byte{1};
  EXPECT_TRUE(memory_policy(nowhere.data())->starts_with("default"));
}

TEST(Arena, TooMuchIsAnEnvironmentError) {
  for (const uint64_t bytes : {uint64_t{1} << 60, UINT64_MAX, uint64_t{1} << 63}) {
    try {
      const Arena arena(bytes);
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::environment);
      EXPECT_EQ(std::string(e.what()).find("Cannot get " + std::to_string(bytes) + " bytes of memory: "), 0u);
    }
  }
}

}  // namespace
}  // namespace sluice
