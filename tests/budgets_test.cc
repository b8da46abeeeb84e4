#include "engine/run/budgets.h"

#include <gtest/gtest.h>

#include "engine/error.h"

namespace sluice {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

MemoryLimits limits_of(uint64_t total, uint64_t available) {
  MemoryLimits limits;
  limits.total = total;
  limits.available = available;
  return limits;
}

Size percent(double value) { return {.kind = Size::Kind::percent, .percent = value}; }
Size bytes(uint64_t value) { return {.kind = Size::Kind::bytes, .bytes = value}; }

// As --help says: of what is free, not of what the machine has; the cpu device's arena comes out of the same
// memory.
TEST(Budgets, PercentIsOfWhatIsFree) {
  MemoryOptions options;
  options.threads = 2;
  options.gpu = percent(25);
  options.host = percent(50);
  const Budgets b = resolve_budgets(options, limits_of(4000 * kMiB, 1000 * kMiB), true);
  EXPECT_EQ(b.limits.device, 250 * kMiB);
  EXPECT_EQ(b.limits.host, 375 * kMiB);
  EXPECT_EQ(b.runtime_reserve, 66 * kMiB);
  EXPECT_EQ(b.arenas.device, 250 * kMiB);
  EXPECT_EQ(b.arenas.host, 309 * kMiB);
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
  EXPECT_EQ(resolve_budgets(options, limits, false).limits.host, 1001 * kMiB);
}

// Of 1024 MiB of addresses, 100 are taken, and 224 + 72 will be by libraries and one thread.
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

}  // namespace
}  // namespace sluice
