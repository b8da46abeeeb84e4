// The nvme tier's files: nothing stays behind, addresses, and every refusal.
#include "offload/nvme_files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "engine/error.h"
#include "offload/arena.h"
#include "tests/offload_test_support.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMiB = 1 << 20;

class NvmeFilesTest : public testing::Test {
 protected:
  // The sentence of the environment error that these directories give; empty if there is none.
  static std::string refusal(const std::vector<NvmeDirectory>& directories,
                             const NvmeOptions& options = {}) {
    try {
      NvmeFiles files(directories, options);
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
  const NvmeFiles files({{directory_, 3 * kMiB + 1}});
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

TEST_F(NvmeFilesTest, AddressesRunThroughTheTable) {
  const NvmeFiles files({{directory_, 2 * kMiB}, {directory_, kMiB}});
  EXPECT_EQ(files.bytes(), 3 * kMiB);
  EXPECT_EQ(files.locate(0, 2 * kMiB).file, &files.files()[0]);
  EXPECT_EQ(files.locate(kMiB, 5).offset, kMiB);
  EXPECT_EQ(files.locate(2 * kMiB, kMiB).file, &files.files()[1]);
  EXPECT_EQ(files.locate(2 * kMiB, kMiB).offset, 0u);
  EXPECT_NE(files.files()[0].fd, files.files()[1].fd);
  EXPECT_DEATH(files.locate(2 * kMiB - 1, 2), "leaves its file");
  EXPECT_DEATH(files.locate(3 * kMiB, 1), "outside its files");

  Arena memory(kMiB);
  fill_pattern(memory.span(), 3);
  const auto place = files.locate(2 * kMiB, kMiB);
  ASSERT_EQ(pwrite(place.file->fd, memory.data(), kMiB, static_cast<off_t>(place.offset)),
            static_cast<ssize_t>(kMiB));
  fill_pattern(memory.span(), 4);
  ASSERT_EQ(pread(place.file->fd, memory.data(), kMiB, static_cast<off_t>(place.offset)),
            static_cast<ssize_t>(kMiB));
  EXPECT_EQ(pattern_end(memory.span(), 3), kMiB);
}

TEST_F(NvmeFilesTest, NoBytesMakeAnEmptyTier) {
  EXPECT_EQ(NvmeFiles({}).bytes(), 0u);
  EXPECT_EQ(NvmeFiles({{directory_, 0}}).bytes(), 0u);
}

TEST_F(NvmeFilesTest, MissingDirectory) {
  EXPECT_EQ(refusal({{directory_ + "/none", kMiB}}),
            "The NVMe directory " + directory_ + "/none does not exist.");
  EXPECT_EQ(refusal({{directory_ + "/a\nb", kMiB}}),
            "The NVMe directory " + directory_ + "/a\\x0ab does not exist.");
}

TEST_F(NvmeFilesTest, NotADirectory) {
  const std::string file = directory_ + "/file";
  std::ofstream(file) << "x";
  EXPECT_EQ(refusal({{file, kMiB}}), "The NVMe directory " + file + " is not a directory.");
  EXPECT_NE(refusal({{file + "/below", kMiB}}), "");
}

TEST_F(NvmeFilesTest, ALimitOnFileSizesIsNamed) {
  const auto old_action = std::signal(SIGXFSZ, SIG_IGN);  // as the command does
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1 << 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string text = refusal({{directory_, 8 * kMiB}});
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_action);
  EXPECT_NE(text.find("above a limit on file sizes"), std::string::npos) << text;
}

TEST_F(NvmeFilesTest, TooSmallStatesNeededAndFree) {
  const std::string text = refusal({{directory_, uint64_t{1} << 60}});
  EXPECT_EQ(text.find("The NVMe directory " + directory_ +
                      " is too small: 1152921504606846976 bytes are needed, "),
            0u);
  EXPECT_NE(text.find(" are free."), std::string::npos);
  EXPECT_NE(refusal({{directory_, kMiB}, {directory_, UINT64_MAX}}), "");
  EXPECT_TRUE(fs::is_empty(directory_));
}

TEST_F(NvmeFilesTest, ReadOnlyDirectory) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write to every directory";
  ASSERT_EQ(chmod(directory_.c_str(), 0500), 0);
  const std::string text = refusal({{directory_, kMiB}});
  ASSERT_EQ(chmod(directory_.c_str(), 0700), 0);
  EXPECT_EQ(text, "The NVMe directory " + directory_ + " cannot be written to: Permission denied.");
}

// The same for root: in a child process that gives its rights up.
[[noreturn]] void expect_read_only(const std::string& directory) {
  if (setresuid(65534, 65534, 65534) != 0) std::_Exit(77);
  const NvmeProbe probe = probe_nvme_directory(directory);
  if (!probe.directory || probe.writable || probe.direct_io) std::_Exit(3);
  try {
    NvmeFiles files({{directory, kMiB}});
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
  EXPECT_EQ(good.alignment, NvmeFiles({{directory_, 0}}).alignment());
  EXPECT_TRUE(fs::is_empty(directory_));

  const NvmeProbe none = probe_nvme_directory(directory_ + "/none");
  EXPECT_FALSE(none.directory || none.writable || none.direct_io);
  EXPECT_EQ(none.reason, "The NVMe directory " + directory_ + "/none does not exist.");
  EXPECT_NE(none.remedy, "");

  if (!is_memory("/dev/shm")) GTEST_SKIP() << "/dev/shm is not tmpfs here";
  const NvmeProbe memory = probe_nvme_directory("/dev/shm");
  EXPECT_TRUE(memory.directory && memory.memory);
  EXPECT_EQ(memory.reason, refusal({{"/dev/shm", kMiB}}));
}

TEST_F(NvmeFilesTest, TmpfsIsMemory) {
  if (!is_memory("/dev/shm")) GTEST_SKIP() << "/dev/shm is not tmpfs here";
  EXPECT_EQ(refusal({{"/dev/shm", kMiB}}),
            "The NVMe directory /dev/shm is on tmpfs, which is memory, not a drive.");
}

TEST_F(NvmeFilesTest, AlignmentAboveTheTiers) {
  NvmeOptions options;
  options.alignment_max = 256;  // less than any file system asks for
  const std::string text = refusal({{directory_, kMiB}}, options);
  EXPECT_EQ(text.find("Direct I/O in " + directory_ + " must be aligned to "), 0u);
  EXPECT_NE(text.find(", more than the 256 that are supported."), std::string::npos);
}

TEST_F(NvmeFilesTest, FreeBytes) {
  EXPECT_GT(free_bytes(directory_), kMiB);
  EXPECT_THROW(free_bytes(directory_ + "/none"), Error);
}

}  // namespace
}  // namespace sluice
