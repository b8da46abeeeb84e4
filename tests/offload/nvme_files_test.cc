// The nvme tier's files: nothing stays behind, addresses, and every refusal.
#include "offload/nvme_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "engine/base/error.h"
#include "offload/arena.h"
#include "tests/support/offload_test_support.h"
#include "tests/support/units.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

class NvmeFilesTest : public ::testing::Test {
 protected:
  // The sentence with which these directories are refused; empty if they are not.
  static std::string refusal(const std::vector<NvmeDirectory>& directories, uint64_t bytes = kMiB,
                             const NvmeOptions& options = {}) {
    try {
      NvmeFiles files(directories, bytes, options);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::environment);
      EXPECT_NE(e.remedy(), "");
      return e.what();
    }
    return "";
  }
  const DriveDirectory drive_;
  const std::string directory_ = drive_.path();
};

TEST_F(NvmeFilesTest, SpaceIsAllocatedAndTheDirectoryStaysEmpty) {
  const NvmeFiles files({{directory_}}, 3 * kMiB + 1);
  EXPECT_TRUE(fs::is_empty(directory_));
  EXPECT_EQ(files.bytes(), 4 * kMiB);
  ASSERT_EQ(files.files().size(), 1u);
  struct stat status;
  ASSERT_EQ(fstat(files.files()[0].fd, &status), 0);
  EXPECT_EQ(status.st_nlink, 0u);
  EXPECT_EQ(static_cast<uint64_t>(status.st_size), 4 * kMiB);
  EXPECT_GE(static_cast<uint64_t>(status.st_blocks) * 512, 4 * kMiB);
  EXPECT_NE(fcntl(files.files()[0].fd, F_GETFL) & O_DIRECT, 0);
  EXPECT_LE(files.alignment(), 4096u);
  EXPECT_GE(files.alignment(), 512u);
}

// Directories with drive shares 2 and 1 take turns 0 1 0.
TEST_F(NvmeFilesTest, AddressesAreDealtInStripes) {
  const DriveDirectory other;
  const NvmeFiles files({{directory_, 2}, {other.path(), 1}}, 7 * kMiB);
  EXPECT_EQ(files.bytes(), 7 * kMiB);
  ASSERT_EQ(files.files().size(), 2u);
  EXPECT_NE(files.files()[0].fd, files.files()[1].fd);
  EXPECT_EQ(files.files()[0].name, "the NVMe scratch file in " + directory_);
  EXPECT_EQ(files.files()[1].name, "the NVMe scratch file in " + other.path());
  EXPECT_EQ(files.files()[0].bytes, 5 * kMiB);
  EXPECT_EQ(files.files()[1].bytes, 2 * kMiB);
  const std::pair<size_t, uint64_t> expected[] = {{0, 0}, {1, 0}, {0, 1}, {0, 2}, {1, 1}, {0, 3}, {0, 4}};
  for (uint64_t stripe = 0; stripe < 7; ++stripe) {
    const NvmeFiles::Location at = files.locate(stripe * kMiB + 5, kMiB - 5);
    EXPECT_EQ(at.file, &files.files()[expected[stripe].first]) << stripe;
    EXPECT_EQ(at.offset, expected[stripe].second * kMiB + 5) << stripe;
  }
  EXPECT_DEATH(files.locate(2 * kMiB - 1, 2), "leaves its stripe");
  EXPECT_DEATH(files.locate(7 * kMiB, 1), "outside its files");
  EXPECT_TRUE(fs::is_empty(directory_) && fs::is_empty(other.path()));
}

TEST_F(NvmeFilesTest, NoBytesMakeAnEmptyTier) {
  EXPECT_EQ(NvmeFiles({{directory_}}, 0).bytes(), 0u);
  const DriveDirectory other;
  const NvmeFiles files({{directory_}, {other.path()}}, 1);  // of one stripe the second file gets nothing
  EXPECT_EQ(files.bytes(), kMiB);
  EXPECT_EQ(files.files()[1].bytes, 0u);
}

// If only one of several directories has a fault, the error names it, and nothing stays open in the others.
TEST_F(NvmeFilesTest, OneOfSeveralIsNamed) {
  const DriveDirectory other;
  const auto open_files = [] {
    const fs::directory_iterator fds("/proc/self/fd");
    return std::distance(begin(fds), end(fds));
  };
  const auto before = open_files();
  const std::string missing = other.path() + "/none";
  EXPECT_EQ(refusal({{directory_}, {other.path()}, {missing}}),
            "The NVMe directory " + missing + " does not exist.");
  const std::string text = refusal({{directory_, 1e-3}, {other.path(), 1}}, uint64_t{1} << 60);
  EXPECT_EQ(text.find("The NVMe directory " + directory_ + " is too small: "), 0u) << text;
  EXPECT_EQ(open_files(), before);
  EXPECT_TRUE(fs::is_empty(directory_) && fs::is_empty(other.path()));
}

// The tier is full when one of its file systems is. Files on one file system share its room.
TEST_F(NvmeFilesTest, RoomIsWhereAllFit) {
  const Stripes stripes(std::vector<double>{2, 1, 1});  // a period of 4
  const auto room = [&](std::vector<FreeSpace> places) { return room_for(stripes, places); };
  // Turns 0 1 2 0: 10 stripes of the first file are five periods.
  TierRoom r = room({{10 * kMiB, {0}}, {100 * kMiB, {1}}, {100 * kMiB, {2}}});
  EXPECT_EQ(r.bytes, 20 * kMiB);
  EXPECT_EQ(r.full, 0u);
  // The third file has room for 3 stripes. That is three periods and the stripes before the file's next turn.
  r = room({{10 * kMiB, {0}}, {100 * kMiB, {1}}, {4 * kMiB - 1, {2}}});
  EXPECT_EQ(r.bytes, 14 * kMiB);
  EXPECT_EQ(r.full, 2u);
  // The other two files share room for 4 stripes: two periods, and one stripe.
  r = room({{10 * kMiB, {0}}, {4 * kMiB, {1, 2}}});
  EXPECT_EQ(r.bytes, 9 * kMiB);
  EXPECT_EQ(r.full, 1u);
  EXPECT_EQ(room({{0, {0, 1, 2}}}).bytes, 0u);
  EXPECT_EQ(room({{7 * kMiB, {0, 1, 2}}}).bytes, 7 * kMiB);
}

TEST_F(NvmeFilesTest, MissingDirectory) {
  EXPECT_EQ(refusal({{directory_ + "/none"}}), "The NVMe directory " + directory_ + "/none does not exist.");
  EXPECT_EQ(refusal({{directory_ + "/a\nb"}}),
            "The NVMe directory " + directory_ + "/a\\x0ab does not exist.");
}

TEST_F(NvmeFilesTest, NotADirectory) {
  const std::string file = directory_ + "/file";
  std::ofstream(file) << "x";
  EXPECT_EQ(refusal({{file}}), "The NVMe directory " + file + " is not a directory.");
  EXPECT_NE(refusal({{file + "/below"}}), "");
}

TEST_F(NvmeFilesTest, ALimitOnFileSizesIsNamed) {
  const auto old_action = std::signal(SIGXFSZ, SIG_IGN);  // as the command does
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1 << 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string text = refusal({{directory_}}, 8 * kMiB);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_action);
  EXPECT_NE(text.find("above a limit on file sizes"), std::string::npos) << text;
}

TEST_F(NvmeFilesTest, TooSmallStatesNeededAndFree) {
  const std::string text = refusal({{directory_}}, uint64_t{1} << 60);
  EXPECT_EQ(
      text.find("The NVMe directory " + directory_ + " is too small: 1152921504606846976 bytes are needed, "),
      0u);
  EXPECT_NE(text.find(" are free."), std::string::npos);
  EXPECT_TRUE(fs::is_empty(directory_));
}

TEST_F(NvmeFilesTest, ReadOnlyDirectory) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write to every directory";
  ASSERT_EQ(chmod(directory_.c_str(), 0500), 0);
  const std::string text = refusal({{directory_}});
  ASSERT_EQ(chmod(directory_.c_str(), 0700), 0);
  EXPECT_EQ(text, "The NVMe directory " + directory_ + " cannot be written to: Permission denied.");
}

// Checks the same refusal where the tests run as root, in a child process that gives up its rights.
[[noreturn]] void expect_read_only(const std::string& directory) {
  if (setresuid(65534, 65534, 65534) != 0) std::_Exit(77);
  const NvmeProbe probe = probe_nvme_directory(directory);
  if (!probe.directory || probe.writable || probe.direct_io) std::_Exit(3);
  try {
    NvmeFiles files({{directory}}, kMiB);
  } catch (const Error& e) {
    const std::string expected =
        "The NVMe directory " + directory + " cannot be written to: Permission denied.";
    std::_Exit(e.what() == expected && e.code() == ExitCode::environment ? 0 : 1);
  }
  std::_Exit(2);
}

TEST_F(NvmeFilesTest, AnotherUsersDirectory) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  ASSERT_EQ(chmod(directory_.c_str(), 0555), 0);
  EXPECT_EXIT(expect_read_only(directory_), testing::ExitedWithCode(0), "");
}

TEST_F(NvmeFilesTest, AProbeTellsWhatADirectoryOffers) {
  const NvmeProbe good = probe_nvme_directory(directory_);
  EXPECT_TRUE(good.directory && good.writable && good.direct_io && !good.memory);
  EXPECT_EQ(good.reason + good.remedy, "");
  EXPECT_GT(good.free_bytes, kMiB);
  EXPECT_EQ(good.alignment, NvmeFiles({{directory_}}, 0).alignment());
  EXPECT_TRUE(fs::is_empty(directory_));

  const NvmeProbe none = probe_nvme_directory(directory_ + "/none");
  EXPECT_FALSE(none.directory || none.writable || none.direct_io);
  EXPECT_EQ(none.reason, "The NVMe directory " + directory_ + "/none does not exist.");
  EXPECT_NE(none.remedy, "");

  if (!is_memory("/dev/shm")) GTEST_SKIP() << "/dev/shm is not tmpfs here";
  const NvmeProbe memory = probe_nvme_directory("/dev/shm");
  EXPECT_TRUE(memory.directory && memory.memory);
  EXPECT_EQ(memory.reason, refusal({{"/dev/shm"}}));
}

TEST_F(NvmeFilesTest, TmpfsIsMemory) {
  if (!is_memory("/dev/shm")) GTEST_SKIP() << "/dev/shm is not tmpfs here";
  const std::string text = "The NVMe directory /dev/shm is on a file system in memory, not on a drive.";
  EXPECT_EQ(refusal({{"/dev/shm"}}), text);
  EXPECT_EQ(refusal({{directory_}, {"/dev/shm"}}), text);
}

TEST_F(NvmeFilesTest, AlignmentAboveTheTiers) {
  NvmeOptions options;
  options.alignment_max = 256;  // less than any file system needs
  const std::string text = refusal({{directory_}}, kMiB, options);
  EXPECT_EQ(text.find("Direct I/O in " + directory_ + " must be aligned to "), 0u);
  EXPECT_NE(text.find(", more than the 256 that are supported."), std::string::npos);
}

TEST_F(NvmeFilesTest, FreeBytes) {
  EXPECT_GT(free_bytes(directory_), kMiB);
  EXPECT_THROW(free_bytes(directory_ + "/none"), Error);
}

}  // namespace
}  // namespace sluice
