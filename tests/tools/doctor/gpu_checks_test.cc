// `sluice doctor` on the GPU: it names a command for each reason why no GPU can be used, and for each state
// of a GPU.
#include <gtest/gtest.h>

#include "tests/support/doctor_support.h"

namespace sluice {
namespace {

// Facts of a machine without a usable GPU. `reason` stands in CudaStatus as the cuda device fills it.
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
      {"GPU cuBLAS",
       [](DoctorFacts& f) {
         f.cuda.cublas = {{}, "X"};
       },
       "X", "find / -name 'libcublasLt.so*' 2> /dev/null", CheckStatus::fail},
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
  EXPECT_EQ(names(f), "device driver memory link copies pinning cuBLAS NCCL ");
  const std::string versions = "for CUDA 13.0 and before, this build uses CUDA 13.0; ";
  f.cuda.driver = {{}, "X"};
  f.cuda.link = {{}, "X"};
  EXPECT_EQ(names(f), "device driver memory copies pinning cuBLAS NCCL ");
  EXPECT_EQ(verdict_of(f, "GPU driver").check.text,
            versions + "its version and the link are not known, because X");
  f.cuda.memory = {{}, "X"};
  EXPECT_EQ(names(f), "device driver copies pinning cuBLAS NCCL ");
  EXPECT_EQ(verdict_of(f, "GPU driver").check.text,
            versions + "its version, the memory and the link are not known, because X");
  EXPECT_NE(verdict_of(f, "GPU driver").check.advice.find("--gpu-mem"), std::string::npos);
  f.cuda.link.reason = "Y";
  EXPECT_EQ(names(f), "device driver link copies pinning cuBLAS NCCL ");
  EXPECT_EQ(verdict_of(f, "GPU driver").check.text,
            versions + "its version and the memory are not known, because X");
  f.cuda.copies = {{}, "Z"};
  f.cuda.pinning = {{}, "Z"};
  EXPECT_EQ(names(f), "device driver link pinning cuBLAS NCCL ");
  EXPECT_EQ(verdict_of(f, "GPU pinning").check.status, CheckStatus::fail);
}

TEST(Doctor, RatesOfLinks) {
  EXPECT_DOUBLE_EQ(pcie_bytes_per_second(1, 1), 0.25e9);
  EXPECT_DOUBLE_EQ(pcie_bytes_per_second(2, 4), 2e9);
  EXPECT_NEAR(pcie_bytes_per_second(3, 16), 15.754e9, 1e6);
  EXPECT_NEAR(pcie_bytes_per_second(5, 16), 63.015e9, 1e6);
  EXPECT_DOUBLE_EQ(pcie_bytes_per_second(6, 16), 121e9);
  EXPECT_EQ(pcie_bytes_per_second(0, 16), 0);
  EXPECT_EQ(pcie_bytes_per_second(7, 16), 0);
}

}  // namespace
}  // namespace sluice
