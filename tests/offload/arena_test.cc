// Arenas, and what the system tells about memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iomanip>
#include <sstream>
#include <string>

#include "engine/base/error.h"
#include "offload/arena.h"
#include "offload/system/memory_limits.h"
#include "tests/support/test_directory.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMiB = 1 << 20;

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

// The kernel's policy for the arena's pages: bound to the nodes of the allowed processors where there are
// several nodes, the default where there is one.
TEST(Arena, LiesNearTheProcessors) {
  const Arena arena(3 * kMiB, {.near_processors = true});
  arena.data()[3 * kMiB - 1] = std::byte{1};
  std::ifstream nodes("/sys/devices/system/node/online");
  std::string online;
  if (!(nodes >> online)) GTEST_SKIP() << "the kernel lists no NUMA nodes";
  std::ifstream maps("/proc/self/numa_maps");
  if (!maps) GTEST_SKIP() << "the kernel does not show memory policies";
  std::ostringstream address;
  address << std::hex << std::setw(8) << std::setfill('0') << reinterpret_cast<uintptr_t>(arena.data());
  std::string policy;
  for (std::string line; std::getline(maps, line);)
    if (line.starts_with(address.str())) policy = line.substr(address.str().size() + 1);
  ASSERT_FALSE(policy.empty());
  EXPECT_TRUE(policy.starts_with(online == "0" ? "default" : "bind:")) << policy;
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

class MemoryLimitsTest : public testing::Test {
 protected:
  void SetUp() override {
    put("proc/meminfo", "MemTotal:       16384 kB\nMemFree:   1 kB\nMemAvailable:    8192 kB\n");
    put("proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max locked memory         65536                unlimited            bytes     \n");
  }
  void put(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  const TestDirectory directory_;
  const std::string root_ = directory_ / "";
};

TEST_F(MemoryLimitsTest, WithoutCgroup) {
  const MemoryLimits limits = memory_limits(root_);
  EXPECT_EQ(limits.total, 16 * kMiB);
  EXPECT_EQ(limits.available, 8 * kMiB);
  EXPECT_EQ(limits.lockable, 65536u);
  EXPECT_EQ(limits.lockable_hard, kNoLimit);
  EXPECT_EQ(limits.cgroup_limit, kNoLimit);
  EXPECT_EQ(limits.cgroup_file, "");
  EXPECT_EQ(limits.usable(), 8 * kMiB);
  put("proc/self/limits", "Max locked memory         unlimited            unlimited            bytes     \n");
  EXPECT_EQ(memory_limits(root_).lockable, kNoLimit);
  put("proc/self/limits", "Max locked memory         65536                131072               bytes     \n");
  EXPECT_EQ(memory_limits(root_).lockable_hard, 131072u);
}

TEST_F(MemoryLimitsTest, Version2TakesTheTightestLevel) {
  put("proc/self/cgroup", "0::/a/b\n");
  put("sys/fs/cgroup/a/b/memory.max", "max\n");
  put("sys/fs/cgroup/a/memory.max", "5242880\n");
  put("sys/fs/cgroup/a/memory.current", "3145728\n");
  put("sys/fs/cgroup/a/memory.stat", "anon 1048576\ninactive_file 1048576\nactive_file 7\n");
  put("sys/fs/cgroup/memory.max", "104857600\n");
  const MemoryLimits limits = memory_limits(root_);
  EXPECT_EQ(limits.cgroup_limit, 5 * kMiB);
  EXPECT_EQ(limits.cgroup_used, 2 * kMiB);
  EXPECT_EQ(limits.cgroup_file, root_ + "sys/fs/cgroup/a/memory.max");
  EXPECT_EQ(limits.usable(), 3 * kMiB);
}

TEST_F(MemoryLimitsTest, UsedUpIsNothingLeft) {
  put("proc/self/cgroup", "0::/\n");
  put("sys/fs/cgroup/memory.max", "1048576\n");
  put("sys/fs/cgroup/memory.current", "2097152\n");
  EXPECT_EQ(memory_limits(root_).usable(), 0u);
}

TEST_F(MemoryLimitsTest, Version1InsideAContainer) {
  put("proc/self/cgroup",
      "12:pids:/docker/x\n4:cpu,memory:/docker/x\n0::/docker/x\n");  // paths as the host has them
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "4194304\n");
  put("sys/fs/cgroup/memory/memory.usage_in_bytes", "2097152\n");
  put("sys/fs/cgroup/memory/memory.stat", "inactive_file 5\ntotal_inactive_file 1048576\n");
  EXPECT_EQ(memory_limits(root_).usable(), 3 * kMiB);
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(memory_limits(root_).cgroup_limit, kNoLimit);
  EXPECT_EQ(memory_limits(root_).usable(), 8 * kMiB);
}

TEST_F(MemoryLimitsTest, ResidentCountsHugePages) {
  put("proc/self/status",
      "Name:\tsluice\nVmPeak:\t  999 kB\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nHugetlbPages:\t    1024 "
      "kB\n");
  EXPECT_EQ(process_peak_bytes(root_.c_str()), 3 * kMiB);
  EXPECT_EQ(process_resident_bytes(root_.c_str()), 2 * kMiB);
  EXPECT_EQ(process_peak_bytes("/nowhere/"), 0u);
  EXPECT_GT(process_peak_bytes(), kMiB);
}

TEST(MemoryLimits, OfThisMachineAreSane) {
  const MemoryLimits limits = memory_limits();
  EXPECT_GT(limits.total, 64 * kMiB);
  EXPECT_GT(limits.available, 0u);
  EXPECT_LE(limits.usable(), limits.total);
}

}  // namespace
}  // namespace sluice
