// What is read from NVML, over a fake library that answers as the test wants, and where there is no library.
#include "gpu/cuda/nvml.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <vector>

namespace sluice {
namespace {

struct FakeProcess {
  unsigned pid;
  unsigned long long bytes;
};

// What the fake library answers, and what it was asked.
struct Fake {
  int init = 0, handle = 0, memory = 0, width = 0, processes = 0;  // result codes
  size_t entry_bytes = 24;
  std::vector<FakeProcess> list;
  int initialized = 0;
  std::string bus_id;
};
Fake& fake() {
  static Fake the_one;
  return the_one;
}

const char* error_text(int result) { return result == 3 ? "Not Supported" : "Unknown Error"; }
int answer(unsigned* to, unsigned value, int result) {
  *to = value;
  return result;
}

// Writes entries as drivers do: 4 bytes of pid, 4 that stay untouched, 8 of memory, and 4 for each of two
// instances. The longer form of entry has 8 more.
int list_processes(NvmlApi::Gpu, unsigned* count, void* to) {
  auto* out = static_cast<std::byte*>(to);
  for (const FakeProcess& p : fake().list) {
    const unsigned instances[2] = {~0u, ~0u};
    const unsigned long long guarded = 0;
    std::memcpy(out, &p.pid, 4);
    std::memcpy(out + 8, &p.bytes, 8);
    std::memcpy(out + 16, instances, 8);
    if (fake().entry_bytes == 32) std::memcpy(out + 24, &guarded, 8);
    out += fake().entry_bytes;
  }
  *count = static_cast<unsigned>(fake().list.size());
  return fake().processes;
}

Known<NvmlApi> fake_api() {
  NvmlApi api;
  api.nvmlInit_v2 = [] { return fake().init != 0 ? fake().init : (++fake().initialized, 0); };
  api.nvmlShutdown = [] { return --fake().initialized, 0; };
  api.nvmlErrorString = error_text;
  api.nvmlSystemGetDriverVersion = [](char* to, unsigned length) {
    return length < 80 ? 7 : (std::strcpy(to, "580.82.07"), 0);
  };
  api.nvmlDeviceGetHandleByPciBusId_v2 = [](const char* bus_id, NvmlApi::Gpu* gpu) {
    fake().bus_id = bus_id;
    *gpu = reinterpret_cast<NvmlApi::Gpu>(&fake());
    return fake().handle;
  };
  api.nvmlDeviceGetMemoryInfo = [](NvmlApi::Gpu, NvmlApi::Memory* to) {
    *to = {100, 30, 70};
    return fake().memory;
  };
  api.nvmlDeviceGetCurrPcieLinkGeneration = [](NvmlApi::Gpu, unsigned* to) { return answer(to, 4, 0); };
  api.nvmlDeviceGetMaxPcieLinkGeneration = [](NvmlApi::Gpu, unsigned* to) { return answer(to, 5, 0); };
  api.nvmlDeviceGetCurrPcieLinkWidth = [](NvmlApi::Gpu, unsigned* to) { return answer(to, 8, fake().width); };
  api.nvmlDeviceGetMaxPcieLinkWidth = [](NvmlApi::Gpu, unsigned* to) { return answer(to, 16, 0); };
  api.nvmlDeviceGetComputeRunningProcesses_v3 = list_processes;
  return {api, ""};
}

class NvmlTest : public ::testing::Test {
 protected:
  void SetUp() override { fake() = {}; }
  void TearDown() override { EXPECT_EQ(fake().initialized, 0) << "as often shut down as initialized"; }
  static std::optional<uint64_t> bytes_of_own(size_t entry_bytes, const std::vector<FakeProcess>& list) {
    fake().entry_bytes = entry_bytes;
    fake().list = list;
    return NvmlGpu(fake_api(), "0000:17:00.0").process_bytes();
  }
  const unsigned own_ = static_cast<unsigned>(getpid());
};

TEST_F(NvmlTest, Facts) {
  const NvmlGpu gpu(fake_api(), "0000:17:00.0");
  EXPECT_EQ(fake().bus_id, "0000:17:00.0");
  EXPECT_EQ(gpu.driver_version().value, "580.82.07");
  const auto memory = gpu.memory();
  ASSERT_TRUE(memory.value);
  EXPECT_EQ(memory.value->total, 100u);
  EXPECT_EQ(memory.value->free, 30u);
  EXPECT_EQ(memory.value->used, 70u);
  const auto link = gpu.link();
  ASSERT_TRUE(link.value);
  EXPECT_EQ(link.value->generation, 4);
  EXPECT_EQ(link.value->generation_max, 5);
  EXPECT_EQ(link.value->width, 8);
  EXPECT_EQ(link.value->width_max, 16);
}

TEST_F(NvmlTest, OwnMemoryWithEitherLengthOfEntries) {
  for (const size_t bytes : {24, 32}) {
    EXPECT_EQ(bytes_of_own(bytes, {{own_, 7}}), 7u) << bytes;
    EXPECT_EQ(bytes_of_own(bytes, {{own_ + 1, 5}, {own_ + 2, 6}, {own_, 7}}), 7u) << bytes;
    EXPECT_EQ(bytes_of_own(bytes, {{own_ + 1, 5}}), std::nullopt) << bytes;
    EXPECT_EQ(bytes_of_own(bytes, {{own_, ~0ull}}), std::nullopt) << "NVML's \"not available\"";
    EXPECT_EQ(bytes_of_own(bytes, {{own_, 0}}), std::nullopt) << "as in a container";
    EXPECT_EQ(bytes_of_own(bytes, {}), std::nullopt) << bytes;
  }
  fake().processes = 3;
  EXPECT_EQ(NvmlGpu(fake_api(), "").process_bytes(), std::nullopt);
}

TEST_F(NvmlTest, EveryFailureSaysWhy) {
  fake().memory = fake().width = 3;
  {
    const NvmlGpu gpu(fake_api(), "0000:17:00.0");
    EXPECT_FALSE(gpu.memory().value);
    EXPECT_EQ(gpu.memory().reason, "nvmlDeviceGetMemoryInfo says: Not Supported");
    EXPECT_FALSE(gpu.link().value);
    EXPECT_EQ(gpu.link().reason, "nvmlDeviceGetCurrPcieLinkWidth says: Not Supported");
  }
  fake().handle = 999;
  {
    const NvmlGpu gpu(fake_api(), "0000:17:00.0");
    EXPECT_EQ(gpu.memory().reason, "nvmlDeviceGetHandleByPciBusId says: Unknown Error");
    EXPECT_EQ(gpu.process_bytes(), std::nullopt);
    EXPECT_EQ(gpu.driver_version().value, "580.82.07");  // not a question about one GPU
  }
  fake().init = 999;
  const NvmlGpu gpu(fake_api(), "0000:17:00.0");
  EXPECT_EQ(gpu.driver_version().reason, "nvmlInit says: Unknown Error");
  EXPECT_EQ(gpu.link().reason, "nvmlInit says: Unknown Error");
}

TEST_F(NvmlTest, WithoutTheLibraryNothingIsKnown) {
  const NvmlGpu gpu({{}, "there is no library"}, "0000:17:00.0");
  EXPECT_EQ(gpu.driver_version().reason, "there is no library");
  EXPECT_EQ(gpu.memory().reason, "there is no library");
  EXPECT_EQ(gpu.link().reason, "there is no library");
  EXPECT_EQ(gpu.process_bytes(), std::nullopt);
}

TEST_F(NvmlTest, TheSystemsOwnLibraryOpensOrIsNamed) {
  const Known<NvmlApi> api = open_nvml();
  if (api.value)
    EXPECT_NE(api.value->nvmlErrorString(0), nullptr);
  else
    EXPECT_EQ(api.reason, "libnvidia-ml.so.1, a part of the NVIDIA driver, is not there");
}

}  // namespace
}  // namespace sluice
