// The drives of a machine description: their shares of a tier, and the directories that each is matched with.
#include "engine/rates/drives.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/test_directory.h"

namespace sluice {
namespace {

// A drive {read, write, mixed} that reads a byte and writes a byte: {4, 2, 2} does both at a byte a second,
// in 1 s. {1, 2, 4} has written after 0.5 s and needs another 0.5 s to read the rest. {2, 2, 4} takes 0.5 s.
// {4, 1, 4} has read after 1/3 s and needs another 2/3 s to write the rest.
TEST(Drives, WeighWhatTheyMoveBothWays) {
  EXPECT_DOUBLE_EQ(drive_weight({"nvme", 4, 2, 2}), 2);
  EXPECT_DOUBLE_EQ(drive_weight({"nvme", 1, 2, 4}), 2);
  EXPECT_DOUBLE_EQ(drive_weight({"nvme", 2, 2, 4}), 4);
  EXPECT_DOUBLE_EQ(drive_weight({"nvme", 4, 1, 4}), 2);
  EXPECT_DOUBLE_EQ(drive_weight({"nvme", 2.4e9, 6.5e9, 2.5e9}), 2.5e9);  // half of the mixed rate each way
  const std::vector<DrivePart> parts =
      drive_parts({{"nvme", 1, 2, 4}, {"other", 9, 9, 9}, {"nvme", 2, 2, 4}, {"nvme", 4, 4, 6}}, "nvme");
  ASSERT_EQ(parts.size(), 3u);
  const std::pair<uint32_t, double> expected[] = {{0, 2 / 12.0}, {2, 4 / 12.0}, {3, 6 / 12.0}};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(parts[i].drive, expected[i].first);
    EXPECT_DOUBLE_EQ(parts[i].part, expected[i].second);
  }
  EXPECT_TRUE(drive_parts({{"other", 9, 9, 9}}, "nvme").empty());
}

std::vector<double> matched_reads(const std::vector<DriveRates>& drives,
                                  const std::vector<std::string>& directories) {
  std::vector<double> reads;
  for (const DriveRates& d : match_drives(drives, "nvme", directories)) reads.push_back(d.read);
  return reads;
}

// Drives are told apart by their read rates.
TEST(Drives, AreFoundForDirectories) {
  using Reads = std::vector<double>;
  const TestDirectory place;
  std::filesystem::create_directories(place / "a/real");
  std::filesystem::create_directory_symlink(place / "a/real", place / "link");
  const std::string a = place / "a/real", link = place / "link";
  const std::vector<DriveRates> one{{"nvme", 1, 9, 9}};
  EXPECT_EQ(matched_reads(one, {"x", "y", "z"}), (Reads{1, 1, 1}));  // one row stands for every directory
  const std::vector<DriveRates> plain{{"nvme", 1, 9, 9}, {"other", 5, 9, 9}, {"nvme", 2, 9, 9}};
  EXPECT_EQ(matched_reads(plain, {"x"}), Reads{1});  // more drives than directories
  EXPECT_EQ(matched_reads(plain, {"x", "y", "z"}), (Reads{1, 2, 1}));
  const std::vector<DriveRates> named{
      {"nvme", 1, 9, 9, "/mnt/b"}, {"nvme", 2, 9, 9, a}, {"nvme", 3, 9, 9}, {"nvme", 4, 9, 9, "/mnt/d/"}};
  EXPECT_EQ(matched_reads(named, {a}), Reads{2});
  EXPECT_EQ(matched_reads(named, {link, "/mnt/x/../b"}), (Reads{2, 1}));
  EXPECT_EQ(matched_reads(named, {"x", "/mnt/d", "y", "/mnt/b"}), (Reads{2, 4, 3, 1}));  // others in order
  EXPECT_EQ(matched_reads(named, {link, a}), (Reads{2, 1}));  // a row belongs to one directory
  EXPECT_TRUE(matched_reads({{"other", 5, 9, 9}}, {"x"}).empty());
}

}  // namespace
}  // namespace sluice
