// How memory options become budgets, and what those leave to arenas.
#include "engine/run/start/budgets.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "offload/io/backends.h"
#include "tests/support/units.h"

namespace sluice {
namespace {

MemoryLimits limits_of(uint64_t total, uint64_t available) {
  MemoryLimits limits;
  limits.total = total;
  limits.available = available;
  return limits;
}

Size percent(double value) { return {.kind = Size::Kind::percent, .percent = value}; }
Size bytes(uint64_t value) { return {.kind = Size::Kind::bytes, .bytes = value}; }

// As --help says, a percentage is of what is free, not of what the machine has. The cpu device's arena comes
// out of the same memory.
TEST(Budgets, PercentIsOfWhatIsFree) {
  MemoryOptions options;
  options.threads = 2;
  options.gpu = percent(25);
  options.host = percent(50);
  const Budgets b = resolve_budgets(options, limits_of(4000 * kMiB, 1000 * kMiB), true);
  EXPECT_EQ(b.device->limit, 250 * kMiB);
  EXPECT_EQ(b.device->arena, 250 * kMiB);
  EXPECT_EQ(b.host.limit, 375 * kMiB);
  EXPECT_EQ(b.host.reserve, 66 * kMiB);
  EXPECT_EQ(b.host.arena, 309 * kMiB);
  EXPECT_EQ(b.limits_for({250 * kMiB, 309 * kMiB}), (std::vector<uint64_t>{250 * kMiB, 375 * kMiB}));
  EXPECT_FALSE(b.nvme);
}

// `auto` leaves a quarter where that is less than 512 MiB, so that `auto` works in a small container.
TEST(Budgets, LittleMemoryIsNotAllLeftToOthers) {
  MemoryOptions options;
  options.threads = 2;
  const auto host = [&](uint64_t free) {
    return resolve_budgets(options, limits_of(free * kMiB, free * kMiB), true).host;
  };
  EXPECT_EQ(host(256).limit, 192 * kMiB);
  EXPECT_EQ(host(256).arena, 126 * kMiB);
  EXPECT_EQ(host(2048).limit, 1536 * kMiB);
  EXPECT_EQ(host(4096).limit, 3584 * kMiB);
  EXPECT_EQ(host(20480).limit, 19456 * kMiB);
}

// The names and places of a Hugging Face directory take 10 MiB, of which the reserve already has 1 MiB.
TEST(Budgets, TablesOfWeightsComeOutOfTheArena) {
  MemoryOptions options;
  options.threads = 2;
  options.host = bytes(200 * kMiB);
  Budgets b = resolve_budgets(options, limits_of(4000 * kMiB, 4000 * kMiB), true);
  b.reserve_table(10 * kMiB);
  EXPECT_EQ(b.host.arena, (200 - 66 - 9) * kMiB);
  EXPECT_EQ(b.limits_for({125 * kMiB}), std::vector<uint64_t>{200 * kMiB});
}

// With an nvme tier, io_uring takes 16 bytes for each 4 KiB of the arena, on each of two lanes. The reserve
// already has 8 MiB for that.
TEST(Budgets, RegisteringTheArenaForFilesIsPartOfTheLimit) {
  MemoryOptions options;
  options.threads = 2;
  options.nvme = bytes(4000 * kMiB);
  const auto host = [&](uint64_t limit) {
    options.host = bytes(limit);
    return resolve_budgets(options, limits_of(800'000 * kMiB, 800'000 * kMiB), false).host;
  };
  constexpr uint64_t kPages = 100'000 * 256, kReserve = 66 * kMiB;  // of an arena of 100,000 MiB
  constexpr uint64_t kLimit = 100'000 * kMiB + kPages * 2 * 16 - 8 * kMiB + kReserve;
  EXPECT_EQ(host(kLimit).arena, 100'000 * kMiB);
  EXPECT_EQ(host(1024 * kMiB + kReserve).arena, 1024 * kMiB);  // its registration is in the reserve
  EXPECT_EQ(host(1 * kMiB).arena, 0u);
  for (const uint64_t arena :
       {uint64_t{1}, 1024 * kMiB, 1024 * kMiB + 1, 3000 * kMiB + 4095, 100'000 * kMiB}) {
    const uint64_t limit = host(kLimit).limit_for(arena);
    EXPECT_EQ(host(limit).arena, arena);
    EXPECT_EQ(host(limit - 1).arena < arena, true) << arena;
  }
  options.io = &kThreadBackend;  // registers nothing
  EXPECT_EQ(host(kLimit).arena, kLimit - kReserve);
  options.io = nullptr;
  options.nvme = {};  // no nvme tier
  EXPECT_EQ(host(kLimit).arena, kLimit - kReserve);
}

TEST(Budgets, MoreThanIsFreeIsAnErrorOfTheEnvironmentUnlessOnlyPlanned) {
  MemoryOptions options;
  options.threads = 1;
  options.host = bytes(1001 * kMiB);
  const MemoryLimits limits = limits_of(4000 * kMiB, 1000 * kMiB);
  try {
    resolve_budgets(options, limits, true);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::environment);
    EXPECT_STREQ(error.what(), "--host-mem asks for 1001 MiB, but only 1000 MiB are free.");
  }
  EXPECT_EQ(resolve_budgets(options, limits, false).host.limit, 1001 * kMiB);
}

// If a run goes on where less memory is free, the budgets kept with the run give way. Budgets of the command
// do not.
TEST(Budgets, ThoseOfTheRunGiveWay) {
  MemoryOptions options;
  options.threads = 1;
  options.host = bytes(20000 * kMiB);
  options.host.of_run = true;
  options.gpu = bytes(20001 * kMiB);
  options.gpu.of_run = true;
  const MemoryLimits limits = limits_of(40000 * kMiB, 16000 * kMiB);
  const Budgets b = resolve_budgets(options, limits, true);
  EXPECT_FALSE(b.device);
  EXPECT_EQ(b.host.limit, 15200 * kMiB);
  EXPECT_EQ(b.notes,
            (std::vector<std::string>{
                "--gpu-mem of the run is 20001 MiB, but only 16000 MiB are free: it is left out.",
                "--host-mem of the run is 20000 MiB, but only 16000 MiB are free: auto holds instead.",
                "--host-mem auto: 15200 MiB, which leaves 800 MiB of what is free."}));
  options.host = bytes(10000 * kMiB);  // those that fit stay
  options.host.of_run = true;
  options.gpu = {};
  EXPECT_EQ(resolve_budgets(options, limits, true).host.limit, 10000 * kMiB);
}

// 100 MiB of the 1024 MiB of addresses are in use. Libraries will take 224 MiB more, and one thread 72 MiB.
TEST(Budgets, WhatMayNotBeMappedIsNotFree) {
  MemoryOptions options;
  options.threads = 1;
  options.host = bytes(629 * kMiB);
  MemoryLimits limits = limits_of(4000 * kMiB, 1000 * kMiB);
  limits.address_space = 1024 * kMiB;
  limits.address_space_used = 100 * kMiB;
  try {
    resolve_budgets(options, limits, true);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::environment);
    EXPECT_STREQ(error.what(), "--host-mem asks for 629 MiB, but only 628 MiB are free.");
    EXPECT_EQ(error.remedy(), "Give a smaller --host-mem, or raise the limit on address space (ulimit -v).");
  }
}

// The page tables of 100 GiB of pinned memory take 8 bytes for each 4 KiB, and a 512th of that again. An
// arena's memory comes in granules of 2 MiB.
TEST(Budgets, AnAcceleratorsArenaLeavesRoomForPageTablesAndIsWholeGranules) {
  MemoryOptions options;
  options.threads = 2;
  options.gpu = bytes(1500 * kMiB + 1);
  options.host = bytes(102400 * kMiB);
  const AcceleratorUse use{{2000 * kMiB, 301 * kMiB}, 0, false};
  const Budgets b = resolve_budgets(options, limits_of(204800 * kMiB, 200000 * kMiB), false, use);
  EXPECT_EQ(b.device->reserve, 301 * kMiB + kLibraryKernelBytes + 202 * kMiB);
  EXPECT_EQ(b.device->limit, 1500 * kMiB + 1);
  EXPECT_EQ(b.device->arena, 804 * kMiB);  // of 805 MiB and a byte
}

// Advice with another host limit counts the page tables of that limit.
TEST(Budgets, LimitsForArenasHoldWhatLiesBesideThem) {
  Budgets b;
  b.device = {.tier = "device", .option = "gpu-mem", .limit = 1000 * kMiB};
  b.device->reserve = 412 * kMiB + 100 * kMiB;  // 100 MiB of page tables
  b.device->granule = kAcceleratorGranule;
  b.host.limit = 51100 * kMiB;
  b.host.reserve = 100 * kMiB;
  b.device->driver = b.host.driver = true;
  EXPECT_EQ(b.device->limit_for(3 * kMiB), 4 * kMiB + 512 * kMiB + 4 * kMiB);  // a 128th as margin
  EXPECT_EQ(b.limits_for({3 * kMiB, 102000 * kMiB}),
            (std::vector<uint64_t>{4 * kMiB + 612 * kMiB + 612 * kMiB / 128,
                                   102000 * kMiB + 100 * kMiB + 100 * kMiB / 128}));
  // If the host limit suffices for the host's least arena, the device limit counts only the page tables for
  // that arena. Otherwise it counts all page tables.
  const std::vector<std::optional<uint64_t>> alone = {3 * kMiB, std::nullopt};
  EXPECT_EQ(b.limits_alone(alone, {3 * kMiB, 10220 * kMiB})[0], b.limits_for({3 * kMiB, 10220 * kMiB})[0]);
  EXPECT_LT(b.limits_alone(alone, {3 * kMiB, 10220 * kMiB})[0], b.device->limit_for(3 * kMiB));
  EXPECT_EQ(b.limits_alone(alone, {3 * kMiB, 102000 * kMiB}),
            (std::vector<std::optional<uint64_t>>{b.device->limit_for(3 * kMiB), std::nullopt}));
}

}  // namespace
}  // namespace sluice
