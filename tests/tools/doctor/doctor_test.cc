// `sluice doctor`: its verdicts and output on made-up machines, and the verb itself on this machine.
// gpu_checks_test.cc has the GPU.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/cli_support.h"
#include "tests/support/doctor_support.h"
#include "tests/support/golden.h"

namespace sluice {
namespace {

TEST(Doctor, LooksAsReviewed) {
  const DoctorFacts good = good_machine(), bad = bad_machine();
  expect_golden("doctor.good", doctor_text(good, judge(good)));
  expect_golden("doctor.bad", doctor_text(bad, judge(bad)));
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
      {"host addresses", [](DoctorFacts& f) { f.memory.address_space = 300 * kMiB; }, "300 MiB may be mapped",
       "ulimit -v unlimited", CheckStatus::fail},
      {"files file size", [](DoctorFacts& f) { f.memory.file_size = kMiB; }, "1.00 MiB a file",
       "ulimit -f unlimited"},
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
  f.io[0].status = {};  // if one back end works, later ones are not missed
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
