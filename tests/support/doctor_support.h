// Made-up machines for `sluice doctor`, and what it finds there.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "offload/io/uring_queue.h"
#include "tests/support/units.h"
#include "tools/doctor/gpu_checks.h"
#include "tools/doctor/report.h"

namespace sluice {

inline DirectoryFacts fast_drive() {
  return {
      "/mnt/fast",
      true,
      {.directory = true, .writable = true, .direct_io = true, .alignment = 512, .free_bytes = 1800 * kGiB},
      FileSystem{"xfs", "/dev/nvme0n1p1", "/mnt/fast"}};
}

// Two sockets, 128 GiB, one GPU at the second socket, everything as it should be.
inline DoctorFacts good_machine() {
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
  f.cuda.cublas = {"/usr/local/cuda/lib64/libcublasLt.so.13", ""};
  f.nccl = {22809, ""};
  f.nccl_file = "/usr/lib/x86_64-linux-gnu/libnccl.so.2";
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
inline DoctorFacts bad_machine() {
  DoctorFacts f = good_machine();
  f.cuda.driver = {{}, "libnvidia-ml.so.1, a part of the NVIDIA driver, is not there"};
  f.cuda.memory = {NvmlMemory{80 * kGiB, 60 * kGiB, 20 * kGiB}, ""};
  f.cuda.link = {NvmlLink{4, 5, 8, 16}, ""};
  f.cuda.copies = {CudaCopies{256 * kMiB, 9, 7e9, 6.5e9, 9e9}, ""};
  f.cuda.pinning = {CudaPinning{kGiB, 64 * kMiB, 0.02, "cudaHostRegister says: out of memory"}, ""};
  f.cuda.cublas = {{},
                   "cuBLASLt cannot be opened: libcublasLt.so.13: cannot open shared object file: No such "
                   "file or directory"};
  f.nccl = {{}, "libnccl.so.2, NVIDIA's package libnccl2, is not there"};
  f.nccl_file = "";
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

// The last line of the report that is named "GROUP NAME", and whether the whole machine counts as ready.
struct Verdict {
  Check check;
  bool is_ready;
};
inline Verdict verdict_of(const DoctorFacts& facts, const std::string& name) {
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

inline void expect_state(const State& state) {
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

}  // namespace sluice
