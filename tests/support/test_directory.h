// A new directory for a test, removed with everything in it when the test ends.
#pragma once

#include <gtest/gtest.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/statfs.h>

#include <filesystem>
#include <string>

namespace sluice {

class TestDirectory {
 public:
  explicit TestDirectory(const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string path = (std::filesystem::absolute(parent) / "sluice-test-XXXXXX").lexically_normal().string();
    EXPECT_NE(mkdtemp(path.data()), nullptr) << path;
    path_ = path;
  }
  ~TestDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline bool is_memory(const std::string& directory) {
  struct statfs status;
  return statfs(directory.c_str(), &status) == 0 && static_cast<unsigned long>(status.f_type) == TMPFS_MAGIC;
}

// The system's temporary directory. If that is a tmpfs, the working directory.
inline std::string drive_directory() { return is_memory(::testing::TempDir()) ? "." : ::testing::TempDir(); }

// A directory of its own for each test, on a drive.
struct DriveDirectory : TestDirectory {
  DriveDirectory() : TestDirectory(drive_directory()) {}
};

}  // namespace sluice
