// Facts of made-up machines, read from trees of files like the kernel's.
#include "offload/system/system_facts.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/test_directory.h"
#include "tests/support/units.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

class SystemFactsTest : public ::testing::Test {
 protected:
  void put(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  const TestDirectory directory_;
  const std::string root_ = directory_ / "";
};

TEST_F(SystemFactsTest, NothingThereIsNothingKnown) {
  const SystemFacts facts = system_facts(root_);
  EXPECT_EQ(facts.kernel, "");
  EXPECT_FALSE(facts.container);
  EXPECT_EQ(facts.processors, 0);
  EXPECT_FALSE(facts.processor_quota);
  EXPECT_TRUE(facts.nodes.empty());
  EXPECT_EQ(facts.transparent_huge_pages, "");
  EXPECT_TRUE(facts.pools.empty());
  EXPECT_FALSE(facts.nvidia_card);
  EXPECT_FALSE(numa_node_of_card("0000:17:00.0", root_));
  EXPECT_FALSE(file_system_of("/mnt", root_));
}

TEST_F(SystemFactsTest, ProcessorsAndContainers) {
  put("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
  put("proc/self/status", "Name:\tsluice\nCpus_allowed:\tff\nCpus_allowed_list:\t0-3,8,10-11\n");
  EXPECT_EQ(system_facts(root_).kernel, "6.1.0-18-amd64");
  EXPECT_EQ(system_facts(root_).processors, 7);
  EXPECT_FALSE(system_facts(root_).container);
  put("run/.containerenv", "");
  EXPECT_TRUE(system_facts(root_).container);
  fs::remove_all(root_ + "run");
  put(".dockerenv", "");
  EXPECT_TRUE(system_facts(root_).container);
}

TEST_F(SystemFactsTest, TheTightestQuotaOfBothVersions) {
  put("proc/self/cgroup", "0::/a/b\n");
  put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_FALSE(system_facts(root_).processor_quota);
  put("sys/fs/cgroup/a/cpu.max", "250000 100000\n");
  put("sys/fs/cgroup/cpu.max", "800000 100000\n");
  EXPECT_EQ(system_facts(root_).processor_quota, 2.5);
  EXPECT_EQ(system_facts(root_).processor_quota_file, root_ + "sys/fs/cgroup/a/cpu.max");

  put("proc/self/cgroup", "4:cpu,cpuacct:/x\n");
  put("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(system_facts(root_).processor_quota);
  put("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(system_facts(root_).processor_quota, 0.5);
}

TEST_F(SystemFactsTest, TwoNodesAndACard) {
  put("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       65536 kB\nNode 0 MemFree: 1 kB\n");
  put("sys/devices/system/node/node0/distance", "10 21\n");
  put("sys/devices/system/node/node10/meminfo", "Node 10 MemTotal:       32768 kB\n");
  put("sys/devices/system/node/node10/distance", "21 10\n");
  put("sys/devices/system/node/possible", "0-15\n");
  SystemFacts facts = system_facts(root_);
  ASSERT_EQ(facts.nodes.size(), 2u);
  EXPECT_EQ(facts.nodes[0].id, 0);
  EXPECT_EQ(facts.nodes[0].memory_bytes, 64 * kMiB);
  EXPECT_EQ(facts.nodes[0].distances, (std::vector<int>{10, 21}));
  EXPECT_EQ(facts.nodes[1].id, 10);
  EXPECT_EQ(facts.nodes[1].memory_bytes, 32 * kMiB);
  EXPECT_EQ(facts.nodes[1].distances, (std::vector<int>{21, 10}));
  EXPECT_TRUE(facts.nodes[0].allowed && facts.nodes[1].allowed);
  put("proc/self/status", "Mems_allowed_list:\t1-10\n");
  facts = system_facts(root_);
  EXPECT_FALSE(facts.nodes[0].allowed);
  EXPECT_TRUE(facts.nodes[1].allowed);

  put("sys/bus/pci/devices/0000:17:00.0/numa_node", "10\n");
  put("sys/bus/pci/devices/0000:18:00.0/numa_node", "-1\n");
  EXPECT_EQ(numa_node_of_card("0000:17:00.0", root_), 10);
  EXPECT_FALSE(numa_node_of_card("0000:18:00.0", root_));
}

TEST_F(SystemFactsTest, OnlyNvidiaControllersOfDisplaysCount) {
  put("sys/bus/pci/devices/0000:00:01.0/vendor", "0x8086\n");
  put("sys/bus/pci/devices/0000:00:01.0/class", "0x030000\n");
  put("sys/bus/pci/devices/0000:17:00.1/vendor", "0x10de\n");
  put("sys/bus/pci/devices/0000:17:00.1/class", "0x040300\n");  // sound, over the display's cable
  EXPECT_FALSE(system_facts(root_).nvidia_card);
  put("sys/bus/pci/devices/0000:17:00.0/vendor", "0x10de\n");
  put("sys/bus/pci/devices/0000:17:00.0/class", "0x030200\n");
  EXPECT_TRUE(system_facts(root_).nvidia_card);
}

TEST_F(SystemFactsTest, HugePages) {
  put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  put("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n");
  put("sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "0\n");
  put("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512\n");
  put("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "500\n");
  const SystemFacts facts = system_facts(root_);
  EXPECT_EQ(facts.transparent_huge_pages, "madvise");
  ASSERT_EQ(facts.pools.size(), 2u);
  EXPECT_EQ(facts.pools[0].page_bytes, 2 * kMiB);
  EXPECT_EQ(facts.pools[0].pages, 512u);
  EXPECT_EQ(facts.pools[0].free_pages, 500u);
  EXPECT_EQ(facts.pools[1].page_bytes, 1024 * kMiB);
  put("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  EXPECT_EQ(system_facts(root_).transparent_huge_pages, "never");
  put("sys/kernel/mm/transparent_hugepage/enabled", "]\n");
  EXPECT_EQ(system_facts(root_).transparent_huge_pages, "");
}

TEST_F(SystemFactsTest, FileSystemsByTheLongestMountPoint) {
  put("proc/self/mountinfo",
      "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
      "23 22 259:1 / /mnt/fast ro,noatime - xfs /dev/nvme0n1p1 rw\n"
      "24 22 0:9 / /mnt/a\\040b rw - btrfs /dev/nvme1n1 rw\n"
      "25 22 0:8 / /over rw - ext4 /dev/hidden rw\n"
      "26 22 0:7 / /over rw - tmpfs tmpfs rw\n"
      "a line of another kind\n");
  const auto root = file_system_of("/mnt/faster", root_);
  ASSERT_TRUE(root);
  EXPECT_EQ(root->type, "ext4");
  EXPECT_EQ(root->source, "/dev/vda");
  EXPECT_EQ(root->mount_point, "/");
  EXPECT_FALSE(root->read_only);
  for (const char* path : {"/mnt/fast", "/mnt/fast/scratch"}) {
    const auto fast = file_system_of(path, root_);
    ASSERT_TRUE(fast);
    EXPECT_EQ(fast->type, "xfs");
    EXPECT_EQ(fast->mount_point, "/mnt/fast");
    EXPECT_TRUE(fast->read_only);
  }
  EXPECT_EQ(file_system_of("/mnt/a b/c", root_)->source, "/dev/nvme1n1");
  EXPECT_EQ(file_system_of("/over", root_)->type, "tmpfs");
}

TEST(SystemFacts, OfThisMachineAreSane) {
  const SystemFacts facts = system_facts();
  EXPECT_NE(facts.kernel, "");
  EXPECT_GE(facts.processors, 1);
  for (const NumaNode& node : facts.nodes) EXPECT_EQ(node.distances.size(), facts.nodes.size());
}

// Runs in a child process that gives up its rights. Under a limit of 3 MiB, 8 MiB are halved until 2 MiB can
// be locked.
[[noreturn]] void expect_locked() {
  const rlimit limit{3 * kMiB, 3 * kMiB};
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) std::_Exit(77);
  if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) std::_Exit(77);
  std::_Exit(lockable_bytes(8 * kMiB) == 2 * kMiB && lockable_bytes(kMiB) == kMiB ? 0 : 1);
}

TEST(SystemFactsDeathTest, LockingStopsAtTheLimit) {
  EXPECT_EXIT(expect_locked(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sluice
