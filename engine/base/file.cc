#include "engine/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "engine/base/error.h"

namespace sluice {

namespace {

// Linux transfers at most 0x7ffff000 bytes a call; a round figure below that keeps every request
// page-aligned in length.
constexpr uint64_t kTransferBytesMax = uint64_t{1} << 30;

std::string reason(int error_number) { return std::strerror(error_number); }

void sync_directory(const std::string& directory) {
  const FileDescriptor fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 || fsync(fd.get()) != 0)
    throw Error(ExitCode::io,
                fmt::format("Cannot sync directory {}: {}.", printable(directory), reason(errno)),
                "Check the drive, then write the file again.");
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

int FileDescriptor::release() { return std::exchange(fd_, -1); }

InputFile::InputFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: opening a pipe that has no writer must not hang; it changes nothing for regular files.
  fd_ = FileDescriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd_.get() < 0) {
    const int error_number = errno;
    const bool absent = error_number == ENOENT || error_number == ENOTDIR || error_number == ELOOP;
    throw Error(absent ? ExitCode::usage : ExitCode::environment,
                fmt::format("Cannot open {}: {}.", printable(path), reason(error_number)),
                absent                   ? "Check the path."
                : error_number == EMFILE ? "Raise the limit on open files (ulimit -n)."
                                         : "Make the file readable for this user.");
  }
  struct stat status;
  if (fstat(fd_.get(), &status) != 0)
    throw Error(ExitCode::io, fmt::format("Cannot read the size of {}: {}.", printable(path), reason(errno)),
                "Check the drive.");
  if (!S_ISREG(status.st_mode))
    throw Error(ExitCode::malformed_file, fmt::format("{} is not a regular file.", printable(path)),
                "Give the path of a file.");
  bytes_ = static_cast<uint64_t>(status.st_size);
  written_ = status.st_mtim;
}

bool InputFile::has_changed() const {
  struct stat status;
  return fstat(fd_.get(), &status) == 0 &&
         (static_cast<uint64_t>(status.st_size) != bytes_ || status.st_mtim.tv_sec != written_.tv_sec ||
          status.st_mtim.tv_nsec != written_.tv_nsec);
}

void InputFile::read(uint64_t offset, void* out, uint64_t bytes) const {
  CHECK(offset <= bytes_ && bytes <= bytes_ - offset, "read outside of " + printable(path_));
  auto* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t n = pread(fd_.get(), to, std::min(bytes, kTransferBytesMax), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      throw Error(ExitCode::io,
                  fmt::format("reading {} at byte {} failed: {}.", printable(path_), offset, reason(errno)),
                  "Check the drive.");
    if (n == 0)
      throw Error(ExitCode::io,
                  fmt::format("{} became shorter while it was read: it ends at byte {} now and had {}.",
                              printable(path_), offset, bytes_),
                  "Restore the file, and leave it alone while it is in use.");
    to += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<uint64_t>(n);
  }
}

OutputFile::OutputFile(const std::string& path) : path_(path), temporary_(path + ".tmp") {
  // O_TRUNC: a temporary that a killed process left behind is overwritten. O_NOFOLLOW: a planted link is not
  // followed.
  fd_ = FileDescriptor(open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
                            S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH));
  if (fd_.get() >= 0) return;
  const int error_number = errno;
  const bool environment = error_number == ENOENT || error_number == ENOTDIR || error_number == EACCES ||
                           error_number == EPERM || error_number == EROFS || error_number == EISDIR ||
                           error_number == ENAMETOOLONG;
  throw Error(environment ? ExitCode::environment : ExitCode::io,
              fmt::format("Cannot create {}: {}.", printable(temporary_), reason(error_number)),
              error_number == ENAMETOOLONG ? "Give a shorter name."
              : environment                ? "Give a directory that exists and can be written."
                                           : "Check the drive and its free space.");
}

OutputFile::~OutputFile() {
  if (!renamed_) unlink(temporary_.c_str());
}

void OutputFile::fail(const char* action, int error_number) const {
  throw Error(ExitCode::io, fmt::format("Cannot {} {}: {}.", action, printable(path_), reason(error_number)),
              error_number == ENOSPC || error_number == EDQUOT ? "Free some space and try again."
              : error_number == EFBIG ? "Raise the limit on the size of files (ulimit -f) and try again."
                                      : "Check the drive and try again.");
}

void OutputFile::write(const void* data, uint64_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n =
        pwrite(fd_.get(), from, std::min(bytes, kTransferBytesMax), static_cast<off_t>(written_));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write", errno);
    if (n == 0) fail("write", EIO);
    from += n;
    written_ += static_cast<uint64_t>(n);
    bytes -= static_cast<uint64_t>(n);
  }
}

void OutputFile::commit() {
  CHECK(!renamed_ && fd_.get() >= 0, "committed twice: " + printable(path_));
  if (fsync(fd_.get()) != 0) fail("sync", errno);
  if (close(fd_.release()) != 0) fail("close", errno);
  if (rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename the temporary of", errno);
  renamed_ = true;
  const std::string parent = std::filesystem::path(path_).parent_path().string();
  sync_directory(parent.empty() ? "." : parent);
}

std::string read_text_file(const std::string& path, uint64_t bytes_max) {
  const InputFile file(path);
  if (file.bytes() > bytes_max)
    throw Error(
        ExitCode::malformed_file,
        fmt::format("{} has {} bytes; at most {} make sense.", printable(path), file.bytes(), bytes_max),
        "Check that this is the right file.");
  std::string text(file.bytes(), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

}  // namespace sluice
