// Tests host memory that the cuda device pins in pieces, near the GPU. The emulated GPU refuses pieces that
// are too large and copies that lie in two pieces.
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "engine/base/error.h"
#include "gpu/cuda/device.h"
#include "gpu/machine.h"
#include "offload/arena.h"
#include "tests/emulation/emulated_gpu.h"
#include "tests/support/memory_policy.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

constexpr uint64_t kPage = 4096;

TEST(PinnedMemory, CopiesAreCutWhereItsPiecesEnd) {
  emulation::set_up({.registration_bytes_max = kPage});
  const auto device = make_cuda_device(0, {.pinned_piece_bytes = kPage});
  Accelerator& accelerator = *device->accelerator();
  Arena host(6 * kPage);
  const auto arena = accelerator.allocate(3 * kPage);
  auto pinned = accelerator.pin(host.span());
  EXPECT_EQ(emulation::counts().registrations, 6u);
  EXPECT_EQ(emulation::counts().registered_bytes, host.bytes());

  const std::vector<uint32_t> marks(kD2hLane + 1, 1);
  const auto streams = accelerator.make_streams(marks);
  constexpr uint64_t kBytes = 2 * kPage + 7;
  std::byte *const from = host.data() + 100, *const to = host.data() + 3 * kPage + 33;
  for (uint64_t i = 0; i < kBytes; ++i) from[i] = static_cast<std::byte>(i % 251 + 1);
  const uint64_t works = emulation::counts().works;
  streams->copy(kH2dLane, arena.get(), from, kBytes);
  accelerator.finish();
  streams->copy(kD2hLane, to, arena.get(), kBytes);
  accelerator.finish();
  EXPECT_EQ(emulation::counts().works - works, 3u + 3u);
  EXPECT_TRUE(std::equal(from, from + kBytes, to));
  EXPECT_EQ(to[-1], std::byte{0});
  EXPECT_EQ(to[kBytes], std::byte{0});

  pinned.reset();
  EXPECT_EQ(emulation::counts().registered_bytes, 0u);
}

TEST(PinnedMemory, APieceThatIsRefusedGivesBackTheOthers) {
  emulation::set_up({.registration_that_fails = 3});
  const auto device = make_cuda_device(0, {.pinned_piece_bytes = kPage});
  Arena host(6 * kPage);
  try {
    device->accelerator()->pin(host.span());
    FAIL() << "the fourth piece was pinned";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::environment);
  }
  EXPECT_EQ(emulation::counts().registrations, 3u);
  EXPECT_EQ(emulation::counts().registered_bytes, 0u);
}

// Pins 600 GiB, more than one table of the driver describes. The memory does not exist, and nothing touches
// it.
TEST(PinnedMemory, HundredsOfGibibytesArePinned) {
  emulation::set_up({.memory_bytes = uint64_t{8} << 30});
  const auto device = make_cuda_device(0);
  const std::span<std::byte> host(reinterpret_cast<std::byte*>(uintptr_t{1} << 45), uint64_t{600} << 30);
  const auto pinned = device->accelerator()->pin(host);
  EXPECT_EQ(emulation::counts().registered_bytes, host.size());
  EXPECT_EQ(emulation::counts().registrations, 10u);  // of 64 GiB, the last of 24
}

// The page tables of pinned memory, as the emulated driver has them, fit into what is set aside for them.
TEST(PinnedMemory, PageTablesTakeNoMoreThanIsSetAside) {
  for (const uint64_t bytes : {kPage, uint64_t{1} << 30, uint64_t{110} << 30, uint64_t{600} << 30}) {
    emulation::set_up({});
    const auto device = make_cuda_device(0);
    const uint64_t before = emulation::counts().held;
    const auto pinned = device->accelerator()->pin({reinterpret_cast<std::byte*>(uintptr_t{1} << 45), bytes});
    const uint64_t taken = emulation::counts().held - before;
    EXPECT_GE(taken, bytes / 512);
    EXPECT_LE(taken, page_table_bytes(bytes));
    EXPECT_LE(page_table_bytes(bytes), bytes / 500 + kAcceleratorGranule) << "waste";
  }
}

// The host arena of a session, where the firmware says that the GPU is attached to node 0.
TEST(PinnedMemory, LiesAtTheNodeOfTheGpu) {
  emulation::set_up({});
  const DriveDirectory directory;
  const std::string card = directory / "sys/bus/pci/devices/0000:e0:00.0";
  std::filesystem::create_directories(card);
  write_bytes(card + "/numa_node", "0\n");
  TestRun run;
  run.options = short_run(directory, "gpt2:layers=1,width=32,heads=2,vocab=256,context=32", "");
  run.options.memory.device = {DeviceKind::cuda};
  run.options.batch.sequence = 32;
  run.arenas = {uint64_t{64} << 20, kRoomy, std::nullopt};
  const auto device = make_device(run.options.memory, run.threads);
  const Plan plan = plan_or_throw(request_of(run, *device), budgets_of(run));
  SessionOptions options;
  options.system_root = directory / "";
  Session session(plan, *device, options);
  const std::optional<std::string> policy =
      memory_policy(session.runner().ring_slot(plan.lowering.scalars, 0));
  if (!policy) GTEST_SKIP() << "the kernel does not show memory policies";
  EXPECT_TRUE(policy->starts_with("prefer") && policy->find(":0 ") != std::string::npos) << *policy;
}

}  // namespace
}  // namespace sluice
