// What `sluice doctor` finds out about a GPU, here the emulated one, with a clock that advances by a
// sixteenth of a second at every look; and the verb itself on a machine with that GPU.
#include <gtest/gtest.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "gpu/cuda/facts.h"
#include "tests/emulation/emulated_gpu.h"
#include "tests/support/units.h"
#include "tools/command/run_verb.h"

namespace sluice {
namespace {

double ticking_clock() {
  static double now = 0;
  return now += 1.0 / 16;
}

class CudaFactsTest : public ::testing::Test {
 protected:
  void TearDown() override {
    const emulation::Counts counts = emulation::counts();
    EXPECT_EQ(counts.allocated_bytes + counts.registered_bytes + counts.streams_there, 0u);
    emulation::set_up({});
  }
  // The facts of a small GPU, so that copies are small.
  static CudaFacts facts(uint64_t host_bytes_most, emulation::EmulatedGpu gpu = {}) {
    if (gpu.memory_bytes == emulation::EmulatedGpu{}.memory_bytes) gpu.memory_bytes = 64 * kMiB;
    emulation::set_up(gpu);
    return cuda_facts({0, host_bytes_most, ticking_clock, {{}, "there is no library"}});
  }
};

TEST_F(CudaFactsTest, AreMeasured) {
  const CudaFacts found = facts(24 * kMiB);
  ASSERT_TRUE(found.status.available) << found.status.reason;
  EXPECT_EQ(found.toolkit_version, 13000);
  EXPECT_EQ(found.pci_bus_id, "0000:e0:00.0");  // as sysfs spells it
  ASSERT_TRUE(found.pinning.value);
  EXPECT_EQ(found.pinning.value->asked, 24 * kMiB);
  EXPECT_EQ(found.pinning.value->pinned, 24 * kMiB);
  EXPECT_EQ(found.pinning.value->seconds, 1.0 / 16);
  EXPECT_EQ(found.pinning.value->reason, "");
  ASSERT_TRUE(found.copies.value) << found.copies.reason;
  EXPECT_EQ(found.copies.value->bytes, 12 * kMiB);  // half of what is pinned, for each direction
  EXPECT_EQ(found.copies.value->host_to_device, 16 * 12.0 * kMiB);
  EXPECT_EQ(found.copies.value->device_to_host, 16 * 12.0 * kMiB);
  EXPECT_EQ(found.copies.value->both, 16 * 24.0 * kMiB);
  // Four copies: one each way, and the two at once. Each runs once to wake the link, then `times` times.
  EXPECT_EQ(emulation::counts().works, 4u * (1 + static_cast<uint64_t>(found.copies.value->times)));
}

TEST_F(CudaFactsTest, GpusAreKnownByTheirAddresses) {
  const auto shown = [](const emulation::EmulatedGpu& gpu) {
    emulation::set_up(gpu);
    return visible_gpus();
  };
  EXPECT_EQ(shown({.count = 2, .hidden = 1}), (std::vector<uint64_t>{0x0000e1000, 0x0000e2000}));
  EXPECT_TRUE(shown({.count = 0}).empty());
  EXPECT_TRUE(shown({.count = 2, .driver_version = 12000}).empty());
  EXPECT_TRUE(emulation::counts().contexts.empty());
}

TEST_F(CudaFactsTest, TheRuntimeStandsInForNvmlsMemory) {
  const CudaFacts found = facts(4 * kMiB, {.used_by_others = 16 * kMiB});
  ASSERT_TRUE(found.memory.value);
  EXPECT_EQ(found.memory.value->total, 64 * kMiB);
  EXPECT_EQ(found.memory.value->free, 48 * kMiB);
  EXPECT_EQ(found.memory.value->used, 16 * kMiB);
  EXPECT_EQ(found.driver.reason, "there is no library");
  EXPECT_EQ(found.link.reason, "there is no library");
}

TEST_F(CudaFactsTest, WhatCannotBeMappedIsHalved) {
  const uint64_t absurd = uint64_t{1} << 60;
  const CudaFacts found = facts(absurd);
  ASSERT_TRUE(found.pinning.value);
  EXPECT_EQ(found.pinning.value->asked, absurd);
  EXPECT_GT(found.pinning.value->pinned, kMiB);
  EXPECT_LT(found.pinning.value->pinned, absurd);
  EXPECT_EQ(found.pinning.value->reason, "that much host memory cannot be mapped");
  ASSERT_TRUE(found.copies.value);
  EXPECT_EQ(found.copies.value->bytes, 16 * kMiB);  // the two directions share half of the GPU's memory
}

TEST_F(CudaFactsTest, WhatCannotBePinnedIsHalved) {
  const CudaFacts found = facts(64 * kMiB, {.pinned_bytes_max = 20 * kMiB});
  EXPECT_EQ(found.pinning.value->asked, 64 * kMiB);
  EXPECT_EQ(found.pinning.value->pinned, 16 * kMiB);
  EXPECT_TRUE(found.pinning.value->reason.starts_with("cudaHostRegister says: "));
  EXPECT_EQ(found.copies.value->bytes, 8 * kMiB);
}

TEST_F(CudaFactsTest, WithoutPinnedMemoryNothingIsCopied) {
  for (const uint64_t most : {uint64_t{0}, 64 * kMiB}) {
    const CudaFacts found = facts(most, {.pinned_bytes_max = 0});
    EXPECT_EQ(found.pinning.value->pinned, 0u);
    EXPECT_EQ(found.pinning.value->reason.empty(), most == 0);
    EXPECT_FALSE(found.copies.value);
    EXPECT_EQ(found.copies.reason, "less than 2 MiB could be pinned, or less than 4 MiB of the GPU are free");
  }
}

TEST_F(CudaFactsTest, FailuresLeaveWhatWasFoundBefore) {
  for (const emulation::EmulatedGpu& gpu :
       {emulation::EmulatedGpu{.allocation_that_fails = 0}, emulation::EmulatedGpu{.stream_that_fails = 1}}) {
    const CudaFacts found = facts(8 * kMiB, gpu);
    EXPECT_EQ(found.pinning.value->pinned, 8 * kMiB);
    EXPECT_FALSE(found.copies.value);
    EXPECT_TRUE(found.copies.reason.starts_with("this failed: ")) << found.copies.reason;
    EXPECT_FALSE(found.copies.reason.ends_with(".")) << found.copies.reason;
  }
}

TEST_F(CudaFactsTest, ALostGpuIsSaid) {
  const CudaFacts found = facts(8 * kMiB, {.work_that_is_lost = 5});
  EXPECT_TRUE(found.status.available);  // before it was lost
  EXPECT_EQ(found.pinning.value->pinned, 8 * kMiB);
  EXPECT_TRUE(found.copies.reason.starts_with("this failed: A copy failed: ")) << found.copies.reason;
  emulation::set_up({});  // the GPU is there again
}

TEST_F(CudaFactsTest, AnotherGpuIsNotThere) {
  const CudaFacts found = cuda_facts({1, 64 * kMiB, ticking_clock, {{}, "there is no library"}});
  EXPECT_FALSE(found.status.available);
  EXPECT_EQ(found.status.reason, "There is no GPU 1: this machine has 1.");
  EXPECT_FALSE(found.pinning.value);
}

// What `sluice doctor --json` prints here, and its exit code.
struct Printed {
  nlohmann::json json;
  ExitCode code;
};
Printed doctor() {
  Options options;
  options.print.json = true;
  std::FILE* file = std::tmpfile();
  EXPECT_NE(file, nullptr);
  const ExitCode code = run_doctor(options, file);
  std::rewind(file);
  std::string text;
  for (int c; (c = std::fgetc(file)) != EOF;) text += static_cast<char>(c);
  std::fclose(file);
  return {nlohmann::json::parse(text), code};
}

TEST_F(CudaFactsTest, DoctorMeasuresTheGpu) {
  emulation::set_up({.memory_bytes = 64 * kMiB});
  const auto [json, code] = doctor();
  EXPECT_EQ(code, ExitCode::done);
  EXPECT_EQ(json["ready"], true);
  const auto& cuda = json["cuda"];
  EXPECT_EQ(cuda["available"], true);
  EXPECT_EQ(cuda["memory"]["total"], 64 * kMiB);
  EXPECT_EQ(cuda["pinning"]["pinned"], cuda["pinning"]["asked"]);
  EXPECT_EQ(cuda["copies"]["bytes"], 16 * kMiB);
  for (const char* rate : {"host_to_device", "device_to_host", "both"})
    EXPECT_GT(cuda["copies"][rate].get<double>(), 0) << rate;
}

TEST_F(CudaFactsTest, DoctorRefusesAGpuThatCannotPin) {
  emulation::set_up({.memory_bytes = 64 * kMiB, .pinned_bytes_max = 0});
  const auto [json, code] = doctor();
  EXPECT_EQ(code, ExitCode::environment);
  EXPECT_EQ(json["ready"], false);
  EXPECT_EQ(json["cuda"]["pinning"]["pinned"], 0u);
}

TEST_F(CudaFactsTest, DoctorAcceptsAMachineWithoutAGpu) {
  emulation::set_up({.driver_version = 0});
  const auto [json, code] = doctor();
  EXPECT_EQ(code, ExitCode::done);
  EXPECT_EQ(json["cuda"]["available"], false);
  EXPECT_EQ(json["cuda"]["reason"], "This machine has no NVIDIA driver.");
}

}  // namespace
}  // namespace sluice
