// What doctor finds out of a GPU, over the emulated one and a clock that advances by a sixteenth of a second
// with every look.
#include "gpu/cuda_facts.h"

#include <gtest/gtest.h>

#include "tests/emulation/emulated_gpu.h"

namespace sluice {
namespace {

constexpr uint64_t kMiB = 1 << 20;

double ticking_clock() {
  static double now = 0;
  return now += 1.0 / 16;
}

const Known<NvmlApi> kNoNvml{{}, "there is no library"};

TEST(CudaFacts, AreMeasured) {
  const CudaFacts facts = cuda_facts({0, 64 * kMiB, ticking_clock, kNoNvml});
  ASSERT_TRUE(facts.status.available) << facts.status.reason;
  EXPECT_EQ(facts.toolkit_version, 13000);
  EXPECT_EQ(facts.pci_bus_id, "0000:e0:00.0");  // as sysfs spells it
  ASSERT_TRUE(facts.pinning.value);
  EXPECT_EQ(facts.pinning.value->asked, 64 * kMiB);
  EXPECT_EQ(facts.pinning.value->pinned, 64 * kMiB);
  EXPECT_EQ(facts.pinning.value->seconds, 1.0 / 16);
  EXPECT_EQ(facts.pinning.value->reason, "");
  ASSERT_TRUE(facts.copies.value) << facts.copies.reason;
  EXPECT_EQ(facts.copies.value->bytes, 32 * kMiB);  // one each way at once
  EXPECT_EQ(facts.copies.value->host_to_device, 16 * 32.0 * kMiB);
  EXPECT_EQ(facts.copies.value->device_to_host, 16 * 32.0 * kMiB);
  EXPECT_EQ(facts.copies.value->both, 16 * 64.0 * kMiB);
}

TEST(CudaFacts, TheRuntimeStandsInForNvmlsMemory) {
  const CudaFacts facts = cuda_facts({0, 4 * kMiB, ticking_clock, kNoNvml});
  ASSERT_TRUE(facts.memory.value);
  EXPECT_GT(facts.memory.value->free, 0u);
  EXPECT_EQ(facts.memory.value->free + facts.memory.value->used, facts.memory.value->total);
  EXPECT_EQ(facts.driver.reason, "there is no library");
  EXPECT_EQ(facts.link.reason, "there is no library");
}

TEST(CudaFacts, WhatCannotBePinnedIsHalved) {
  emulation::set_up({.memory_bytes = 64 * kMiB});  // so that copies are small
  const uint64_t absurd = uint64_t{1} << 60;
  const CudaFacts facts = cuda_facts({0, absurd, ticking_clock, kNoNvml});
  ASSERT_TRUE(facts.pinning.value);
  EXPECT_EQ(facts.pinning.value->asked, absurd);
  EXPECT_GT(facts.pinning.value->pinned, kMiB);
  EXPECT_LT(facts.pinning.value->pinned, absurd);
  EXPECT_EQ(facts.pinning.value->reason, "that much host memory cannot be mapped");
  ASSERT_TRUE(facts.copies.value);
  EXPECT_EQ(facts.copies.value->bytes, 16 * kMiB);  // two each way in half of what the GPU has
  emulation::set_up({});
}

TEST(CudaFacts, WithoutHostMemoryNothingIsMeasured) {
  const CudaFacts facts = cuda_facts({0, 0, ticking_clock, kNoNvml});
  EXPECT_EQ(facts.pinning.value->pinned, 0u);
  EXPECT_FALSE(facts.copies.value);
  EXPECT_EQ(facts.copies.reason, "less than 2 MiB could be pinned, or 4 MiB of the GPU are free");
}

TEST(CudaFacts, AnotherGpuIsNotThere) {
  const CudaFacts facts = cuda_facts({1, 64 * kMiB, ticking_clock, kNoNvml});
  EXPECT_FALSE(facts.status.available);
  EXPECT_EQ(facts.status.reason, "There is no GPU 1: this machine has 1.");
  EXPECT_FALSE(facts.pinning.value);
}

}  // namespace
}  // namespace sluice
