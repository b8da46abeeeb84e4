// What plans say of resources and work: names, ties, and where lines break. cli_test.cc has the figures.
#include "tools/plan/facts.h"

#include <gtest/gtest.h>

#include "tests/support/unit_machine.h"
#include "tools/command/wrap.h"

namespace sluice {
namespace {

TEST(PlanFacts, TheBottleneckHasMostWork) {
  using Kind = Bottleneck::Kind;
  const auto found = [](const Loads& loads) {
    const Bottleneck b = bottleneck_of(loads);
    return std::tuple(b.kind, b.index, b.seconds);
  };
  EXPECT_EQ(found({{1, 3, 2}, {2, 2}, {2}}), std::tuple(Kind::lane, 1, 3));
  EXPECT_EQ(found({{1, 3, 2}, {2, 4}, {2}}), std::tuple(Kind::pool, 1, 4));
  EXPECT_EQ(found({{1, 3, 2}, {2, 4}, {2, 5}}), std::tuple(Kind::drive, 1, 5));
  // When one lane alone fills a pool, the lane is named. The pool's sum may differ from the lane's time by
  // rounding errors.
  EXPECT_EQ(found({{1, 3, 2}, {3 * (1 + 1e-15)}, {}}), std::tuple(Kind::lane, 1, 3));
}

TEST(PlanFacts, DrivesAreNumberedWhereThereAreSeveral) {
  const Program p = testing::program("", "");
  MachineRates r = testing::unit_rates();
  r.pools = {{"cores", 1}, {"memory\n", 1}};
  r.drives = {{"nvme", 1, 1, 1}};
  const auto name = [&](Bottleneck::Kind kind, size_t index) {
    return bottleneck_name(p, r, {kind, index, 1});
  };
  EXPECT_EQ(name(Bottleneck::Kind::lane, 2), "c");
  EXPECT_EQ(name(Bottleneck::Kind::pool, 1), "memory\\x0a");
  EXPECT_EQ(name(Bottleneck::Kind::drive, 0), "nvme");
  r.drives = {{"nvme", 1, 1, 1}, {"other", 1, 1, 1}, {"nvme", 1, 1, 1}};
  EXPECT_EQ(name(Bottleneck::Kind::drive, 0), "nvme 1");
  EXPECT_EQ(name(Bottleneck::Kind::drive, 1), "other");
  EXPECT_EQ(name(Bottleneck::Kind::drive, 2), "nvme 2");
}

TEST(PlanFacts, ListsBreakBetweenItems) {
  std::string out;
  append_list(out, "  head", {}, 8);
  EXPECT_EQ(out, "  head  \n");
  out.clear();
  const std::string long_one(60, 'x'), rest(31, 'y');
  append_list(out, "  head", {long_one, rest}, 8);  // 8 + 60 + 2 + 31 are 101 columns
  EXPECT_EQ(out, "  head  " + long_one + ",\n        " + rest + "\n");
  out.clear();
  append_list(out, "  head", {long_one, rest.substr(1)}, 8);
  EXPECT_EQ(out, "  head  " + long_one + ", " + rest.substr(1) + "\n");
}

// 1 TB in 1000 s are 86.4 TB a day.
TEST(PlanFacts, WearIsToldOfDrivesThatWouldNotLastAYear) {
  PlanFacts f;
  f.seconds = f.saving.step_seconds = 1000;
  f.bytes_written = 1'000'000'000'000;
  EXPECT_EQ(
      short_wear_text(f, 60),
      "  drive wear: 931 GiB written a step, 86.4 TB a day; 600 TBW last 6.94 days; 60 steps take 16h40m "
      "and write 60 TB, 10 % of 600 TBW\n");
  f.bytes_written = 18'900'000'000;  // 367 days
  EXPECT_EQ(short_wear_text(f, 60), "");
  f.bytes_written = 0;
  EXPECT_EQ(short_wear_text(f, 60), "");
}

}  // namespace
}  // namespace sluice
