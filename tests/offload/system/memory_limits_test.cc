// What the system tells about memory, read from trees of files like the kernel's.
#include "offload/system/memory_limits.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/test_directory.h"
#include "tests/support/units.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

class MemoryLimitsTest : public ::testing::Test {
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
