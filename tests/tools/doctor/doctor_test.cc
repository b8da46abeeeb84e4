// `sluice doctor`: its verdicts and output on made-up machines, and the verb itself on this machine.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "offload/io/uring_queue.h"
#include "tests/support/cli_support.h"
#include "tests/support/golden.h"
#include "tools/doctor/gpu_checks.h"
#include "tools/doctor/report.h"

namespace sluice {
namespace {

constexpr uint64_t kMiB = 1 << 20, kGiB = 1 << 30;

DirectoryFacts fast_drive() {
  return {
      "/mnt/fast",
      true,
      {.directory = true, .writable = true, .direct_io = true, .alignment = 512, .free_bytes = 1800 * kGiB},
      FileSystem{"xfs", "/dev/nvme0n1p1", "/mnt/fast"}};
}

// Two sockets, 128 GiB, one GPU at the second socket, everything as it should be.
DoctorFacts good_machine() {
  DoctorFacts f;
  f.cuda.status = {.built = true,
                   .available = true,
                   .name = "NVIDIA H100 PCIe",
                   .capability_major = 9,
                   .capability_minor = 0,
                   .driver_version = 13000,
                   .multiprocessors = 114,
                   .memory_bytes = 80 * kGiB,
                   .bf16 = true};
  f.cuda.toolkit_version = 13000;
  f.cuda.pci_bus_id = "0000:ca:00.0";
  f.cuda.driver = {"580.82.07", ""};
  f.cuda.memory = {NvmlMemory{80 * kGiB, 600 * kMiB, 80 * kGiB - 600 * kMiB}, ""};
  f.cuda.link = {NvmlLink{5, 5, 16, 16}, ""};
  f.cuda.copies = {CudaCopies{256 * kMiB, 9, 55.25e9, 54.5e9, 0.265e12 / 3}, ""};
  f.cuda.pinning = {CudaPinning{kGiB, kGiB, 0.21, ""}, ""};
  f.nccl = {22809, ""};
  f.gpu_node = 1;
  f.system = {.kernel = "6.1.0-18-amd64",
              .processors = 32,
              .nodes = {{0, 64 * kGiB, true, {10, 21}}, {1, 64 * kGiB, true, {21, 10}}},
              .transparent_huge_pages = "madvise",
              .pools = {{2 * kMiB, 0, 0}, {kGiB, 0, 0}}};
  f.memory.total = 128 * kGiB;
  f.memory.available = 120 * kGiB;
  f.lock_asked = f.locked = 64 * kMiB;
  f.io = {{&kUringBackend, {}}};
  f.directories = {fast_drive()};
  return f;
}

// The same machine from inside a tight container, as another user, with a GPU in a bad slot.
DoctorFacts bad_machine() {
  DoctorFacts f = good_machine();
  f.cuda.driver = {{}, "libnvidia-ml.so.1, a part of the NVIDIA driver, is not there"};
  f.cuda.memory = {NvmlMemory{80 * kGiB, 60 * kGiB, 20 * kGiB}, ""};
  f.cuda.link = {NvmlLink{4, 5, 8, 16}, ""};
  f.cuda.copies = {CudaCopies{256 * kMiB, 9, 7e9, 6.5e9, 9e9}, ""};
  f.cuda.pinning = {CudaPinning{kGiB, 64 * kMiB, 0.02, "cudaHostRegister says: out of memory"}, ""};
  f.nccl = {{}, "libnccl.so.2, NVIDIA's package libnccl2, is not there"};
  f.system.container = true;
  f.system.nodes[1].allowed = false;
  f.system.processor_quota = 4;
  f.system.transparent_huge_pages = "never";
  f.memory.cgroup_limit = 32 * kGiB;
  f.memory.cgroup_used = kGiB;
  f.memory.cgroup_file = "/sys/fs/cgroup/memory.max";
  f.memory.lockable = f.memory.lockable_hard = 8 * kMiB;
  f.memory.address_space = 256 * kGiB;
  f.locked = 8 * kMiB;
  f.io[0].status = explain_uring_error(EPERM, -1);
  f.directories.push_back(
      {"/dev/shm",
       true,
       {.directory = true,
        .writable = true,
        .memory = true,
        .free_bytes = 60 * kGiB,
        .reason = "The NVMe directory /dev/shm is on a file system in memory, not on a drive.",
        .remedy = "Give a directory on a drive with --nvme-dir."},
       FileSystem{"tmpfs", "tmpfs", "/dev/shm"}});
  return f;
}

TEST(Doctor, LooksAsReviewed) {
  const DoctorFacts good = good_machine(), bad = bad_machine();
  expect_golden("doctor.good", doctor_text(good, judge(good)));
  expect_golden("doctor.bad", doctor_text(bad, judge(bad)));
}

// The last line with that name, "GROUP NAME", and whether the whole machine counts as ready.
struct Verdict {
  Check check;
  bool is_ready;
};
Verdict verdict_of(const DoctorFacts& facts, const std::string& name) {
  const std::vector<Check> checks = judge(facts);
  for (auto c = checks.rbegin(); c != checks.rend(); ++c)
    if (name == std::string(c->group) + " " + c->name) return {*c, ready(checks)};
  ADD_FAILURE() << name << " is not in the report";
  return {};
}

// One changed fact, the line that then fails, its remedy, and whether training is refused for it.
struct State {
  const char* line;
  void (*change)(DoctorFacts&);
  const char* text;  // a part
  const char* command;
  CheckStatus status = CheckStatus::warn;
};

void expect_state(const State& state) {
  DoctorFacts facts = good_machine();
  ASSERT_EQ(verdict_of(facts, state.line).check.status, CheckStatus::ok) << state.line;
  state.change(facts);
  const auto [check, is_ready] = verdict_of(facts, state.line);
  EXPECT_EQ(check.status, state.status) << state.line << ": " << check.text;
  EXPECT_NE(check.text.find(state.text), std::string::npos) << state.line << ": " << check.text;
  EXPECT_EQ(check.command, state.command) << state.line;
  EXPECT_NE(check.advice, "") << state.line;
  EXPECT_EQ(is_ready, state.status != CheckStatus::fail) << state.line;
}

// No usable GPU, for this reason; CudaStatus as the cuda device fills it.
DoctorFacts without_gpu(const std::string& reason, int driver_version) {
  DoctorFacts facts = good_machine();
  facts.cuda = {};
  facts.cuda.status = {
      .built = true, .reason = reason, .remedy = "A remedy.", .driver_version = driver_version};
  facts.cuda.toolkit_version = 13000;
  return facts;
}

TEST(Doctor, AMissingGpuHasACommandForEveryCause) {
  const auto command = [](const DoctorFacts& facts) {
    const auto [check, is_ready] = verdict_of(facts, "GPU device");
    EXPECT_EQ(check.status, CheckStatus::warn);
    EXPECT_EQ(check.text, facts.cuda.status.reason);
    const bool packages = check.command.find("apt-get") != std::string::npos;
    EXPECT_EQ(check.advice.find("Once NVIDIA's package repository is set up") != std::string::npos, packages);
    EXPECT_TRUE(check.advice.starts_with("A remedy."));
    EXPECT_TRUE(is_ready) << "the cpu device is there";
    return check.command;
  };
  DoctorFacts facts = without_gpu("No driver.", 0);
  EXPECT_EQ(command(facts), "sudo apt-get install nvidia-open");
  EXPECT_NE(verdict_of(facts, "GPU device").check.advice.find("No NVIDIA card"), std::string::npos);
  facts.system.nvidia_card = true;
  EXPECT_EQ(command(facts), "sudo apt-get install nvidia-open");
  EXPECT_EQ(verdict_of(facts, "GPU device").check.advice.find("No NVIDIA card"), std::string::npos);
  facts.system.container = true;
  EXPECT_EQ(command(facts), "docker run --gpus all ...");
  facts = without_gpu("Too old.", 12040);
  EXPECT_EQ(command(facts), "sudo apt-get install nvidia-open");
  facts.root = true;
  EXPECT_EQ(command(facts), "apt-get install nvidia-open");
  facts = without_gpu("Sees no GPU.", 13000);
  EXPECT_EQ(command(facts), "nvidia-smi");
  facts.visible_devices = "";
  EXPECT_EQ(command(facts), "unset CUDA_VISIBLE_DEVICES");
  facts = without_gpu("Compute capability 6.1.", 13000);
  facts.cuda.status.name = "An old GPU";
  EXPECT_EQ(command(facts), "sluice train --device cpu ...");
  facts.cuda.status.built = false;
  EXPECT_NE(command(facts).find("cuda-nvcc-13-0"), std::string::npos);
}

TEST(Doctor, AGpuThatIsDemandedMustBeThere) {
  DoctorFacts facts = without_gpu("No driver.", 0);
  facts.gpu_use = GpuUse::demanded;
  EXPECT_EQ(verdict_of(facts, "GPU device").check.status, CheckStatus::fail);
  EXPECT_FALSE(ready(judge(facts)));
  facts.gpu_use = GpuUse::none;
  EXPECT_TRUE(ready(judge(facts)));
  for (const Check& c : judge(facts)) EXPECT_NE(std::string(c.group), "GPU");
}

TEST(Doctor, EveryStateOfTheGpuHasItsCommand) {
  const State states[] = {
      {"GPU driver",
       [](DoctorFacts& f) {
         f.cuda.driver = {{}, "X"};
       },
       "not known, because X", "sudo apt-get install nvidia-open"},
      {"GPU memory", [](DoctorFacts& f) { f.cuda.memory.value->free = 71 * kGiB; },
       "71.0 GiB free of 80.0 GiB",
       "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv"},
      {"GPU memory",
       [](DoctorFacts& f) {
         f.cuda.memory = {{}, "X"};
       },
       "not known, because X", "nvidia-smi"},
      {"GPU link", [](DoctorFacts& f) { f.cuda.link.value->width = 8; },
       "PCIe 5.0 x8, where PCIe 5.0 x16 is possible", "sudo lspci -vv -s 0000:ca:00.0 | grep Lnk"},
      {"GPU link",
       [](DoctorFacts& f) {
         f.cuda.link = {{}, "X"};
       },
       "not known, because X",
       "nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv"},
      {"GPU copies", [](DoctorFacts& f) { f.cuda.copies.value->device_to_host = 30e9; },
       "48 % of the link's 63.0", "numactl --cpunodebind=1 --membind=1 sluice doctor"},
      {"GPU copies",
       [](DoctorFacts& f) {
         f.cuda.copies.value->device_to_host = 30e9;
         f.gpu_node.reset();
       },
       "48 % of the link's 63.0", "nvidia-smi topo -m"},
      {"GPU copies",
       [](DoctorFacts& f) {
         f.cuda.copies = {{}, "X"};
       },
       "not measured, because X", "nvidia-smi"},
      {"GPU pinning", [](DoctorFacts& f) { f.cuda.pinning.value->pinned = kMiB; }, "1.00 MiB of host memory",
       "ulimit -l unlimited"},
      {"GPU pinning", [](DoctorFacts& f) { f.cuda.pinning.value->pinned = 0; }, "0 B of host memory",
       "ulimit -l unlimited", CheckStatus::fail},
      {"GPU pinning",
       [](DoctorFacts& f) {
         f.cuda.pinning = {{}, "X"};
       },
       "not possible, because X", "nvidia-smi", CheckStatus::fail},
      {"GPU NCCL",
       [](DoctorFacts& f) {
         f.nccl = {{}, "X"};
       },
       "none, because X", "sudo apt-get install libnccl2"},
  };
  for (const State& state : states) expect_state(state);
}

// Facts that are unknown for one reason share one line.
TEST(Doctor, WhatIsNotKnownForTheSameReasonIsSaidOnce) {
  const auto names = [](const DoctorFacts& facts) {
    std::string all;
    for (const Check& c : judge(facts))
      if (std::string(c.group) == "GPU") all += std::string(c.name) + " ";
    return all;
  };
  DoctorFacts f = good_machine();
  EXPECT_EQ(names(f), "device driver memory link copies pinning NCCL ");
  const std::string versions = "for CUDA 13.0 and before, this build uses CUDA 13.0; ";
  f.cuda.driver = {{}, "X"};
  f.cuda.link = {{}, "X"};
  EXPECT_EQ(names(f), "device driver memory copies pinning NCCL ");
  EXPECT_EQ(verdict_of(f, "GPU driver").check.text,
            versions + "its version and the link are not known, because X");
  f.cuda.memory = {{}, "X"};
  EXPECT_EQ(names(f), "device driver copies pinning NCCL ");
  EXPECT_EQ(verdict_of(f, "GPU driver").check.text,
            versions + "its version, the memory and the link are not known, because X");
  EXPECT_NE(verdict_of(f, "GPU driver").check.advice.find("--gpu-mem"), std::string::npos);
  f.cuda.link.reason = "Y";
  EXPECT_EQ(names(f), "device driver link copies pinning NCCL ");
  EXPECT_EQ(verdict_of(f, "GPU driver").check.text,
            versions + "its version and the memory are not known, because X");
  f.cuda.copies = {{}, "Z"};
  f.cuda.pinning = {{}, "Z"};
  EXPECT_EQ(names(f), "device driver link pinning NCCL ");
  EXPECT_EQ(verdict_of(f, "GPU pinning").check.status, CheckStatus::fail);
}

TEST(Doctor, EveryStateOfTheHostsMemoryHasItsCommand) {
  const State states[] = {
      {"host memory", [](DoctorFacts& f) { f.memory.available = 96 * kMiB; }, "96.0 MiB available of 128 GiB",
       "ps aux --sort=-rss | head", CheckStatus::fail},
      {"host cgroup",
       [](DoctorFacts& f) {
         f.memory.cgroup_limit = 60 * kGiB;
         f.memory.cgroup_used = kGiB;
         f.memory.cgroup_file = "/sys/fs/cgroup/a/memory.max";
       },
       "1.00 GiB of 60.0 GiB used", "echo max | sudo tee '/sys/fs/cgroup/a/memory.max'"},
      {"host cgroup",
       [](DoctorFacts& f) {
         f.memory.cgroup_limit = 60 * kGiB;
         f.memory.cgroup_used = kGiB;
         f.memory.cgroup_file = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
       },
       "1.00 GiB of 60.0 GiB used", "echo -1 | sudo tee '/sys/fs/cgroup/memory/memory.limit_in_bytes'"},
      {"host cgroup",
       [](DoctorFacts& f) {
         f.memory.cgroup_limit = 50 * kGiB;
         f.system.container = true;
       },
       "0 B of 50.0 GiB used", "docker update --memory 122880m --memory-swap 122880m CONTAINER"},
      {"host memlock",
       [](DoctorFacts& f) {
         f.memory.lockable = 8 * kMiB;
         f.locked = 8 * kMiB;
       },
       "8.00 MiB may be locked", "ulimit -l unlimited"},
      {"host memlock",
       [](DoctorFacts& f) { f.memory.lockable = f.memory.lockable_hard = f.locked = 8 * kMiB; },
       "8.00 MiB may be locked", "sudo prlimit --pid $$ --memlock=unlimited:unlimited"},
      {"host memlock",
       [](DoctorFacts& f) {
         f.memory.lockable = f.locked = 8 * kMiB;
         f.system.container = true;
       },
       "8.00 MiB may be locked", "docker run --ulimit memlock=-1 ..."},
      {"host addresses", [](DoctorFacts& f) { f.memory.address_space = 64 * kGiB; }, "64.0 GiB may be mapped",
       "ulimit -v unlimited"},
      {"host huge pages", [](DoctorFacts& f) { f.system.transparent_huge_pages = "never"; },
       "transparent: never", "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"},
      {"host huge pages",
       [](DoctorFacts& f) {
         f.system.pools[0] = {2 * kMiB, 8192, 8000};
       },
       "8192 of 2.00 MiB in a pool", "echo 0 | sudo tee /sys/kernel/mm/hugepages/hugepages-*/nr_hugepages"},
  };
  for (const State& state : states) expect_state(state);
}

TEST(Doctor, EveryStateOfTheProcessorsHasItsCommand) {
  const State states[] = {
      {"host NUMA", [](DoctorFacts& f) { f.gpu_node.reset(); }, "is not known", "nvidia-smi topo -m"},
      {"host NUMA", [](DoctorFacts& f) { f.system.nodes[1].allowed = false; },
       "21 from node 0, 10 from node 1", "numactl --cpunodebind=1 --membind=1 sluice train ..."},
      {"host processors", [](DoctorFacts& f) { f.system.processor_quota = 2.5; }, "grants 2.5 at a time",
       "sluice train --threads 2 ..."},
      {"host processors",
       [](DoctorFacts& f) {
         f.system.processor_quota = 2.5;
         f.system.container = true;
       },
       "grants 2.5 at a time", "docker update --cpus 32 CONTAINER"},
  };
  for (const State& state : states) expect_state(state);
}

TEST(Doctor, EveryObstacleToIoUringHasItsCommand) {
  const State states[] = {
      {"files io_uring", [](DoctorFacts& f) { f.io[0].status = explain_uring_error(EPERM, 0); }, "seccomp",
       "docker run --security-opt seccomp=unconfined ..."},
      {"files io_uring", [](DoctorFacts& f) { f.io[0].status = explain_uring_error(EPERM, 2); },
       "kernel.io_uring_disabled is 2", "sudo sysctl -w kernel.io_uring_disabled=0"},
      {"files io_uring", [](DoctorFacts& f) { f.io[0].status = explain_uring_error(ENOSYS, -1); }, "ENOSYS",
       "sudo apt-get full-upgrade && sudo reboot  # Linux 5.11 or later"},
      {"files io_uring", [](DoctorFacts& f) { f.io[0].status = explain_uring_error(ENOMEM, 0); }, "ENOMEM",
       "ulimit -l unlimited"},
      {"files io_uring", [](DoctorFacts& f) { f.io[0].status = explain_uring_error(EMFILE, 0); },
       "Too many open", "sluice train --io threads ..."},
  };
  for (const State& state : states) expect_state(state);
}

TEST(Doctor, ABackEndThatIsRefusedNamesTheOneThatStandsIn) {
  constexpr IoBackend kOther = {"other", "Other", "", nullptr};
  DoctorFacts f = good_machine();
  f.io = {{&kUringBackend, explain_uring_error(EMFILE, 0)}, {&kOther, {}}};
  EXPECT_EQ(verdict_of(f, "files Other").check.status, CheckStatus::ok);
  const Check refused_io = verdict_of(f, "files io_uring").check;
  EXPECT_EQ(refused_io.advice, "Other reads and writes instead, which takes more processor time.");
  EXPECT_EQ(refused_io.command, "sluice train --io other ...");
  f.io[1].status = {IoObstacle::other, "It is out of order", "mend it"};
  EXPECT_EQ(verdict_of(f, "files io_uring").check.command, "sluice train --io threads ...");
  f.io[0].status = {};  // a later back end is not missed where an earlier one works
  const Check not_missed = verdict_of(f, "files Other").check;
  EXPECT_EQ(not_missed.status, CheckStatus::ok);
  EXPECT_EQ(not_missed.text, "It is out of order");
  EXPECT_EQ(not_missed.command, "");
}

// A directory that cannot hold the nvme tier.
DirectoryFacts refused(const std::string& path, bool exists, const NvmeProbe& probe) {
  DirectoryFacts d{path, exists, probe, FileSystem{"ext4", "/dev/sda1", "/mnt"}};
  d.probe.reason = "A reason.";
  d.probe.remedy = "A remedy.";
  return d;
}

TEST(Doctor, EveryStateOfADirectoryHasItsCommand) {
  const auto command = [](const DirectoryFacts& directory) {
    DoctorFacts facts = good_machine();
    facts.directories = {fast_drive(), directory};
    const auto [check, is_ready] = verdict_of(facts, "files nvme");
    EXPECT_EQ(check.status, CheckStatus::fail);
    EXPECT_FALSE(is_ready);
    return check.command;
  };
  const std::string drives = "lsblk -o NAME,FSTYPE,FSAVAIL,MOUNTPOINT  # shows the drives";
  EXPECT_EQ(command(refused("/mnt/it's\n", false, {})), "mkdir -p '/mnt/it'\\''s\\x0a'");
  EXPECT_EQ(command(refused("/mnt/file", true, {})), "ls -ld '/mnt/file'");
  EXPECT_EQ(command(refused("/mnt/a", true, {.directory = true})), "sudo chown $(id -u) '/mnt/a'");
  EXPECT_EQ(command(refused("/mnt/a", true, {.directory = true, .writable = true})), drives);
  EXPECT_EQ(command(refused("/mnt/a", true, {.directory = true, .writable = true, .memory = true})), drives);
  DirectoryFacts read_only = refused("/mnt/a", true, {.directory = true});
  read_only.file_system->read_only = true;
  EXPECT_EQ(command(read_only), "sudo mount -o remount,rw '/mnt'");
  DirectoryFacts full = fast_drive();
  full.probe.free_bytes = 96 * kMiB;
  EXPECT_EQ(command(full), "du -xh --max-depth=2 '/mnt/fast' | sort -h | tail");
}

TEST(Doctor, WhatIsEnoughIsOk) {
  DoctorFacts f = good_machine();
  f.memory.cgroup_limit = 100 * kGiB;
  f.memory.cgroup_used = 10 * kGiB;
  EXPECT_EQ(verdict_of(f, "host cgroup").check.status, CheckStatus::ok);
  f.memory.lockable = 8 * kMiB;  // yet 64 MiB could be locked
  EXPECT_EQ(verdict_of(f, "host memlock").check.status, CheckStatus::ok);
  f.memory.lockable = f.memory.total;
  f.locked = 0;
  EXPECT_EQ(verdict_of(f, "host memlock").check.status, CheckStatus::ok);
  f.system.processor_quota = 32;
  EXPECT_EQ(verdict_of(f, "host processors").check.status, CheckStatus::ok);
  f.system.nodes.pop_back();
  f.gpu_node.reset();
  EXPECT_EQ(verdict_of(f, "host NUMA").check.text, "one node");
  EXPECT_TRUE(ready(judge(f)));
}

// PCI Express Base 6.0, section 1: per lane 2.5, 5, 8, 16, 32, 64 GT/s.
TEST(Doctor, RatesOfLinks) {
  EXPECT_DOUBLE_EQ(pcie_bytes_per_second(1, 1), 0.25e9);
  EXPECT_DOUBLE_EQ(pcie_bytes_per_second(2, 4), 2e9);
  EXPECT_NEAR(pcie_bytes_per_second(3, 16), 15.754e9, 1e6);
  EXPECT_NEAR(pcie_bytes_per_second(5, 16), 63.015e9, 1e6);
  EXPECT_DOUBLE_EQ(pcie_bytes_per_second(6, 16), 121e9);
  EXPECT_EQ(pcie_bytes_per_second(0, 16), 0);
  EXPECT_EQ(pcie_bytes_per_second(7, 16), 0);
}

TEST(Doctor, JsonReadsBack) {
  const DoctorFacts facts = bad_machine();
  const auto json = nlohmann::json::parse(doctor_json(facts, judge(facts)));
  EXPECT_EQ(json["ready"], false);
  const auto& cuda = json["cuda"];
  EXPECT_EQ(cuda["built"], true);
  EXPECT_EQ(cuda["available"], true);
  EXPECT_EQ(cuda["reason"], "");
  EXPECT_EQ(cuda["name"], "NVIDIA H100 PCIe");
  EXPECT_EQ(cuda["compute_capability"], "9.0");
  EXPECT_EQ(cuda["driver"], nullptr);
  EXPECT_EQ(cuda["driver_unknown"], facts.cuda.driver.reason);
  EXPECT_EQ(cuda["driver_cuda"], "13.0");
  EXPECT_EQ(cuda["numa_node"], 1);
  EXPECT_EQ(cuda["memory"]["free"], 20 * kGiB);
  EXPECT_EQ(cuda["link"]["generation"], 4);
  EXPECT_EQ(cuda["link"]["width_max"], 16);
  EXPECT_FALSE(cuda.contains("link_unknown"));
  EXPECT_EQ(cuda["pinning"]["pinned"], 64 * kMiB);
  EXPECT_EQ(cuda["nccl"], nullptr);
  EXPECT_EQ(cuda["nccl_unknown"], facts.nccl.reason);
  EXPECT_EQ(json["io_uring"]["available"], false);
  EXPECT_EQ(json["io_uring"]["obstacle"], "seccomp");
  EXPECT_EQ(json["io_uring"]["reason"], facts.io[0].status.reason);
  EXPECT_EQ(json["memlock"]["limit"], 8 * kMiB);
  EXPECT_EQ(json["cgroup"]["memory_limit"], 32 * kGiB);
  EXPECT_EQ(json["cgroup"]["processors"], 4.0);
  EXPECT_EQ(json["memory"]["usable"], 31 * kGiB);
  EXPECT_EQ(json["huge_pages"]["transparent"], "never");
  EXPECT_EQ(json["numa_nodes"][1]["distances"], (std::vector<int>{21, 10}));
  ASSERT_EQ(json["nvme_dirs"].size(), 2u);
  EXPECT_EQ(json["nvme_dirs"][0]["usable"], true);
  EXPECT_EQ(json["nvme_dirs"][0]["free"], 1800 * kGiB);
  EXPECT_EQ(json["nvme_dirs"][0]["file_system"], "xfs");
  EXPECT_EQ(json["nvme_dirs"][1]["tmpfs"], true);
  EXPECT_EQ(json["checks"].size(), judge(facts).size());
  EXPECT_EQ(json["checks"].back()["status"], "FAIL");

  const DoctorFacts good = good_machine();
  const auto exact = nlohmann::json::parse(doctor_json(good, judge(good)));
  EXPECT_EQ(exact["ready"], true);
  EXPECT_EQ(exact["cuda"]["nccl"], "2.28.9");
  EXPECT_EQ(exact["memlock"]["limit"], nullptr);
  EXPECT_EQ(exact["cgroup"]["memory_limit"], nullptr);
  EXPECT_EQ(exact["cuda"]["copies"]["both"].get<double>(), good.cuda.copies.value->both);  // to the bit
  EXPECT_EQ(exact["cuda"]["pinning"]["seconds"].get<double>(), good.cuda.pinning.value->seconds);
}

TEST(Doctor, NamesThatAreNoTextAreEscaped) {
  DoctorFacts facts = good_machine();
  facts.directories[0].path = "/mnt/\xff\n";
  EXPECT_NE(doctor_text(facts, judge(facts)).find("/mnt/\\xff\\x0a: 1.76 TiB free"), std::string::npos);
  const auto json = nlohmann::json::parse(doctor_json(facts, judge(facts)));
  EXPECT_EQ(json["nvme_dirs"][0]["path"], "/mnt/\\xff\\x0a");
}

TEST_F(Cli, DoctorOfThisMachine) {
  const CommandResult plain = run({"doctor", "--nvme-dir", directory.path()});
  EXPECT_EQ(plain.code, 0) << plain.out << plain.err;
  EXPECT_EQ(plain.err, "");
  EXPECT_NE(plain.out.find("\nready: training can run on "), std::string::npos) << plain.out;
  for (const char* line : {"\nhost\n", "\nfiles\n", " memlock "})
    EXPECT_NE(plain.out.find(line), std::string::npos) << plain.out;
  for (const IoBackend* backend : kIoBackends)  // all but the last, which works everywhere
    EXPECT_EQ(plain.out.find(std::string(" ") + backend->title + " ") != std::string::npos,
              backend != *std::rbegin(kIoBackends))
        << plain.out;

  const CommandResult good = run({"doctor", "--json", "--nvme-dir", directory.path()});
  EXPECT_EQ(good.code, 0) << good.out << good.err;
  const auto json = nlohmann::json::parse(good.out);
  EXPECT_EQ(json["ready"], true);
  EXPECT_EQ(json["cuda"]["available"].get<bool>(), json["cuda"]["reason"] == "");
  EXPECT_EQ(json["nvme_dirs"][0]["path"], directory.path());
  EXPECT_EQ(json["nvme_dirs"][0]["direct_io"], true);
  EXPECT_EQ(json["memory"]["total"], memory_limits().total);

  const CommandResult bad = run({"doctor", "--nvme-dir", directory.path() + "," + (directory / "none")});
  EXPECT_EQ(bad.code, 4) << bad.out << bad.err;
  EXPECT_NE(bad.out.find("$ mkdir -p '" + (directory / "none") + "'"), std::string::npos) << bad.out;
  EXPECT_NE(bad.out.find("not ready: 1 failure;"), std::string::npos) << bad.out;
  EXPECT_FALSE(std::filesystem::exists(directory / "none"));
}

}  // namespace
}  // namespace sluice
