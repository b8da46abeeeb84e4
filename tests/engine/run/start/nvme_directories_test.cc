// What --nvme-dir means: the directories' shares of the nvme tier, room on file systems, and the budgets that
// follow.
#include "engine/run/start/nvme_directories.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "engine/base/error.h"
#include "engine/run/start/budgets.h"
#include "engine/run/start/devices.h"
#include "tests/support/offload_test_support.h"
#include "tests/support/units.h"

namespace sluice {
namespace {

void write_machine(const std::string& path, const std::string& drives, const std::string& memory = "") {
  std::ofstream(path) << R"({"format": "sluice-machine-1", "name": "mine", )" << memory << R"("drives": [)"
                      << drives << "]}";
}

class NvmeDirectories : public ::testing::Test {
 protected:
  NvmeDirectories() { options_.machine = place_ / "machine.json"; }

  std::vector<double> parts() const {
    const Stripes stripes = stripes_of(nvme_directories(options_));
    std::vector<double> parts;
    for (uint32_t i = 0; i < stripes.files(); ++i) parts.push_back(stripes.share(i));
    return parts;
  }

  const DriveDirectory place_;
  MemoryOptions options_;
};

TEST_F(NvmeDirectories, WeighWhatTheirDrivesDo) {
  write_machine(options_.machine,
                R"({"tier": "nvme", "read": 6e9, "write": 4e9, "mixed": 5e9, "directory": "/mnt/b"},
                   {"tier": "nvme", "read": 3e9, "write": 3e9, "mixed": 2.5e9},
                   {"tier": "other", "read": 1, "write": 1, "mixed": 1})");
  options_.nvme_directories = {"/mnt/a", "/mnt/b"};
  EXPECT_EQ(parts(), (std::vector<double>{1 / 3.0, 2 / 3.0}));
  EXPECT_EQ(
      describe_directories(options_, nvme_directories(options_)),
      "By the drives of machine description mine, the nvme tier lies 33.3 % in /mnt/a (3 GB/s read, 3 "
      "written, 2.5 both at once) and 66.7 % in /mnt/b (taken for /mnt/b: 6 GB/s read, 4 written, 5 both "
      "at once).");
  options_.nvme_directories = {"/mnt/a"};
  EXPECT_EQ(parts(), std::vector<double>{1});
}

TEST_F(NvmeDirectories, WeighTheSameWithoutDrives) {
  write_machine(options_.machine, "");
  options_.nvme_directories = {"/mnt/a", "/mnt/b"};
  EXPECT_EQ(parts(), (std::vector<double>{0.5, 0.5}));
  EXPECT_EQ(
      describe_directories(options_, nvme_directories(options_)),
      "By equal parts, for want of drives in machine description mine, the nvme tier lies 50 % in /mnt/a "
      "and 50 % in /mnt/b.");
}

// Of the 3 TB of a described machine, a drive of 5 GB/s holds 2 TB and one of 2.5 GB/s 1 TB.
TEST_F(NvmeDirectories, HoldWhatTheirDrivesHold) {
  const auto described = [&](const std::vector<std::string>& directories) {
    options_.nvme_directories = directories;
    return described_machine(options_)->memory->nvme;
  };
  const std::string rows = R"({"tier": "nvme", "read": 6e9, "write": 4e9, "mixed": 5e9},
                   {"tier": "nvme", "read": 3e9, "write": 3e9, "mixed": 2.5e9, "directory": "/mnt/b"},
                   {"tier": "other", "read": 1, "write": 1, "mixed": 1})";
  write_machine(options_.machine, rows, R"("memory": {"host": 8e9, "nvme": 3e12}, )");
  EXPECT_EQ(described({}), 3'000'000'000'000u);
  EXPECT_EQ(described({"/mnt/a"}), 2'000'000'000'000u);
  EXPECT_EQ(described({"/mnt/b"}), 1'000'000'000'000u);
  EXPECT_EQ(described({"/mnt/a", "/mnt/b"}), 3'000'000'000'000u);
  EXPECT_EQ(described({"/mnt/a", "/mnt/b", "/mnt/c"}), 5'000'000'000'000u);
  write_machine(options_.machine, rows, R"("memory": {"host": 8e9, "nvme": 1e18}, )");
  EXPECT_EQ(described({"/mnt/a", "/mnt/b", "/mnt/c"}), 1'000'000'000'000'000'000u) << "the most of a tier";
  write_machine(options_.machine, rows, R"("memory": {"host": 8e9}, )");
  EXPECT_FALSE(described({"/mnt/a"}));
  write_machine(options_.machine, "", R"("memory": {"host": 8e9, "nvme": 3e12}, )");
  EXPECT_EQ(described({"/mnt/a", "/mnt/b"}), 3'000'000'000'000u) << "no drives: nothing says what each holds";
}

// Whether `a` equals `b`, but for what other processes write and remove meanwhile.
bool is_about(uint64_t a, uint64_t b) { return a < b + 256 * kMiB && b < a + 256 * kMiB; }

// Directories on one file system share its room. Each of two ranks finds half of this room.
TEST_F(NvmeDirectories, ShareTheRoomOfAFileSystem) {
  const DriveDirectory a, b;
  const auto margin = [](uint64_t) { return 10 * kMiB; };
  const NvmeRoom one = nvme_room({{a.path()}}, 1, margin);
  EXPECT_EQ(one.full, a.path());
  EXPECT_TRUE(one.notes.empty());
  EXPECT_TRUE(is_about(one.free, free_bytes(a.path())));
  const NvmeRoom two = nvme_room({{a.path(), 1}, {b.path(), 3}}, 2, margin);
  EXPECT_TRUE(is_about(two.free, one.free / 2)) << two.free << " of " << one.free;
  EXPECT_EQ(two.free - two.after_margin, 10 * kMiB);
  EXPECT_EQ(two.full, a.path() + " and " + b.path());
  EXPECT_EQ(two.notes, std::vector<std::string>{two.full + " are on one file system: they share its "
                                                           "space and its speed."});
  EXPECT_THROW(nvme_room({{a.path()}, {b.path() + "/none"}}, 1, margin), Error);
}

// On two file systems, directories fill by their shares, so the file system that is full first bounds both.
TEST_F(NvmeDirectories, TheFirstToBeFullBoundsAll) {
  if (!is_memory("/dev/shm")) GTEST_SKIP() << "/dev/shm is not a file system of its own here";
  const uint64_t disk = free_bytes(place_.path()), memory = free_bytes("/dev/shm");
  if (disk < 100 * kMiB || memory < 100 * kMiB) GTEST_SKIP() << "less than 100 MiB are free";
  const auto margin = [](uint64_t free) { return free / 2; };
  const double enough = 4 * static_cast<double>(disk) / static_cast<double>(memory);
  const NvmeRoom room = nvme_room({{place_.path(), 3}, {"/dev/shm", 1}}, 1, margin);
  const uint64_t bound = std::min(disk / 3, memory) * 4;
  EXPECT_NEAR(static_cast<double>(room.free), static_cast<double>(bound), 0.1 * static_cast<double>(bound));
  EXPECT_NEAR(static_cast<double>(room.after_margin), static_cast<double>(room.free) / 2, 8.0 * kMiB);
  EXPECT_TRUE(room.notes.empty());
  EXPECT_EQ(room.full, disk / 3 < memory ? place_.path() : "/dev/shm");
  EXPECT_EQ(nvme_room({{place_.path(), enough}, {"/dev/shm", 1}}, 1, margin).full, place_.path());
}

// One budget is for all directories together. The refusal of a larger one names the directory that is full
// first.
TEST_F(NvmeDirectories, BoundTheBudget) {
  const DriveDirectory a, b;
  write_machine(options_.machine, "");
  options_.threads = 1;
  options_.nvme_directories = {a.path(), b.path()};
  options_.nvme = {.kind = Size::Kind::bytes, .bytes = 10 * kMiB + 5};
  MemoryLimits limits;
  limits.total = limits.available = 4000 * kMiB;
  const Budgets budgets = resolve_budgets(options_, limits, true);
  EXPECT_EQ(budgets.nvme->arena, 10 * kMiB);
  options_.nvme.bytes = uint64_t{1} << 50;
  try {
    resolve_budgets(options_, limits, true);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::environment);
    EXPECT_EQ(std::string(error.what()).find("--nvme-mem asks for 1073741824 MiB, but only "), 0u)
        << error.what();
    EXPECT_NE(
        std::string(error.what()).find(" MiB are free until it is full in " + a.path() + " and " + b.path()),
        std::string::npos)
        << error.what();
  }
  EXPECT_EQ(resolve_budgets(options_, limits, false).nvme->limit, options_.nvme.bytes);
  options_.nvme_directories.clear();  // only `plan` gets here
  EXPECT_EQ(resolve_budgets(options_, limits, false).nvme->limit, options_.nvme.bytes);
  EXPECT_FALSE(resolve_budgets(MemoryOptions{}, limits, false).nvme);
}

}  // namespace
}  // namespace sluice
