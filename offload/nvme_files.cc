#include "offload/nvme_files.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "engine/base/error.h"

namespace sluice {
namespace {

// Used where the system does not report the alignment: before Linux 6.1, and on many file systems.
constexpr uint32_t kDefaultAlignment = 4096;

Error environment(const std::string& what, const std::string& remedy) {
  return Error(ExitCode::environment, what, remedy);
}

std::string system_text(int error) { return std::string(std::strerror(error)) + "."; }

void check_directory(const std::string& path) {
  const std::string name = printable(path);
  struct stat status;
  if (stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT)
      throw environment("The NVMe directory " + name + " does not exist.",
                        "Create it, or give another --nvme-dir.");
    throw environment("The NVMe directory " + name + " cannot be looked at: " + system_text(errno),
                      "Check its path and permissions, or give another --nvme-dir.");
  }
  if (!S_ISDIR(status.st_mode))
    throw environment("The NVMe directory " + name + " is not a directory.",
                      "Give a directory with --nvme-dir.");
}

bool is_memory(const std::string& path) {
  struct statfs status;
  if (statfs(path.c_str(), &status) != 0)
    throw environment("The file system of " + printable(path) + " cannot be looked at: " + system_text(errno),
                      "Give another --nvme-dir.");
  const auto type = static_cast<unsigned long>(status.f_type);
  return type == TMPFS_MAGIC || type == RAMFS_MAGIC;
}

Error memory_refused(const std::string& path) {
  return environment(
      "The NVMe directory " + printable(path) + " is on a file system in memory, not on a drive.",
      "Give a directory on a drive with --nvme-dir.");
}

Error too_small(const std::string& path, uint64_t needed, uint64_t available) {
  return environment("The NVMe directory " + printable(path) + " is too small: " + std::to_string(needed) +
                         " bytes are needed, " + std::to_string(available) + " are free.",
                     "Free space there, give another --nvme-dir, or lower --nvme-mem.");
}

// A new file without a name in `path`, open for direct reads and writes.
int open_nameless(const std::string& path) {
  constexpr int kFlags = O_RDWR | O_DIRECT | O_CLOEXEC;
  int fd = open(path.c_str(), kFlags | O_TMPFILE, 0600);
  if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT)) {  // no O_TMPFILE here
    std::string name = path + "/.sluice-XXXXXX";
    fd = mkostemp(name.data(), O_DIRECT | O_CLOEXEC);
    if (fd >= 0) unlink(name.c_str());
  }
  if (fd >= 0) return fd;
  const int error = errno;
  if (error == EROFS || error == EACCES || error == EPERM)
    throw environment(
        "The NVMe directory " + printable(path) + " cannot be written to: " + system_text(error),
        "Change its permissions, or give another --nvme-dir.");
  if (error == EINVAL)
    throw environment("The file system of " + printable(path) + " does not support direct I/O (O_DIRECT).",
                      "Give a directory on a local drive (ext4, XFS) with --nvme-dir.");
  throw environment(
      "A file in the NVMe directory " + printable(path) + " cannot be made: " + system_text(error),
      "Give another --nvme-dir.");
}

uint32_t direct_alignment(int fd) {
#ifdef STATX_DIOALIGN
  struct statx status;
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 && (status.stx_mask & STATX_DIOALIGN) &&
      status.stx_dio_offset_align > 0)
    return std::max(status.stx_dio_mem_align, status.stx_dio_offset_align);
#else
  (void)fd;
#endif
  return kDefaultAlignment;
}

// Allocates space by writing zeros, for file systems that cannot preallocate. Returns 0 or an errno.
int write_zeros(int fd, uint64_t bytes) {
  const std::unique_ptr<void, decltype(&std::free)> zeros(std::aligned_alloc(kDefaultAlignment, kStripeBytes),
                                                          &std::free);
  if (!zeros) return ENOMEM;
  std::memset(zeros.get(), 0, kStripeBytes);
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t n = pwrite(fd, zeros.get(), kStripeBytes, static_cast<off_t>(done));
    if (n < 0 && errno != EINTR) return errno;
    if (n >= 0 && static_cast<uint64_t>(n) < kStripeBytes) return ENOSPC;
    if (n >= 0) done += kStripeBytes;
  }
  return 0;
}

int preallocate(int fd, uint64_t bytes) {
  int result;
  do {
    result = fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (result == EINTR);
  return result == EOPNOTSUPP || result == ENOSYS ? write_zeros(fd, bytes) : result;
}

}  // namespace

namespace {

struct statvfs file_system_of(const std::string& directory) {
  check_directory(directory);
  struct statvfs status;
  if (statvfs(directory.c_str(), &status) != 0)
    throw environment(
        "The free space of " + printable(directory) + " cannot be found out: " + system_text(errno),
        "Give another directory.");
  if (status.f_blocks == 0)  // /proc, /sys
    throw environment("The file system of " + printable(directory) + " holds no files of users.",
                      "Give a directory on a drive.");
  return status;
}

}  // namespace

uint64_t free_bytes(const std::string& directory) {
  const struct statvfs status = file_system_of(directory);
  return static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
}

uint64_t free_files(const std::string& directory) {
  const struct statvfs status = file_system_of(directory);
  return status.f_files == 0 ? UINT64_MAX : static_cast<uint64_t>(status.f_favail);
}

uint64_t file_system_id(const std::string& directory) {
  check_directory(directory);
  struct stat status;
  if (stat(directory.c_str(), &status) != 0)
    throw environment(
        "The file system of " + printable(directory) + " cannot be looked at: " + system_text(errno),
        "Give another directory.");
  return status.st_dev;
}

TierRoom room_for(const Stripes& stripes, std::span<const FreeSpace> places) {
  constexpr uint64_t kStripesMost = 1ull << 40;  // 2^60 bytes
  TierRoom room{kStripesMost * kStripeBytes, 0};
  for (const FreeSpace& place : places) {
    uint64_t fit = 0, least_not = kStripesMost + 1;
    while (fit + 1 < least_not) {
      const uint64_t middle = fit + (least_not - fit) / 2;
      uint64_t held = 0;
      for (const uint32_t file : place.files) held += stripes.held(file, middle);
      (held <= place.bytes / kStripeBytes ? fit : least_not) = middle;
    }
    if (fit * kStripeBytes < room.bytes)
      room = {fit * kStripeBytes, static_cast<size_t>(&place - places.data())};
  }
  return room;
}

Stripes stripes_of(const std::vector<NvmeDirectory>& directories) {
  std::vector<double> parts;
  for (const NvmeDirectory& directory : directories) parts.push_back(directory.part);
  return Stripes(parts);
}

NvmeProbe probe_nvme_directory(const std::string& directory) {
  NvmeProbe probe;
  try {
    probe.free_bytes = free_bytes(directory);
    probe.directory = true;
    probe.writable = access(directory.c_str(), W_OK | X_OK) == 0;
    probe.memory = is_memory(directory);
    const NvmeFiles files({{directory}}, 0, {.tmpfs_allowed = true});
    probe.direct_io = true;
    probe.alignment = files.alignment();
    if (probe.memory) throw memory_refused(directory);
  } catch (const Error& error) {
    const Error first = probe.memory ? memory_refused(directory) : error;
    probe.reason = first.what();
    probe.remedy = first.remedy();
  }
  return probe;
}

NvmeFiles::NvmeFiles(const std::vector<NvmeDirectory>& directories, uint64_t bytes,
                     const NvmeOptions& options)
    : stripes_(stripes_of(directories)), bytes_((bytes + kStripeBytes - 1) / kStripeBytes * kStripeBytes) {
  try {
    for (uint32_t f = 0; f < directories.size(); ++f)
      open_file(directories[f].path, stripes_.held(f, bytes_ / kStripeBytes) * kStripeBytes, options);
  } catch (...) {
    close_files();
    throw;
  }
}

NvmeFiles::~NvmeFiles() { close_files(); }

void NvmeFiles::open_file(const std::string& directory, uint64_t bytes, const NvmeOptions& options) {
  check_directory(directory);
  if (!options.tmpfs_allowed && is_memory(directory)) throw memory_refused(directory);
  const uint64_t available = free_bytes(directory);
  if (bytes > available) throw too_small(directory, bytes, available);
  const int fd = open_nameless(directory);
  files_.push_back({"the NVMe scratch file in " + directory, fd, bytes});
  const uint32_t alignment = direct_alignment(fd);
  if (alignment > options.alignment_max)
    throw environment("Direct I/O in " + printable(directory) + " must be aligned to " +
                          std::to_string(alignment) + " bytes, more than the " +
                          std::to_string(options.alignment_max) + " that are supported.",
                      "Give a directory on another drive with --nvme-dir.");
  alignment_ = std::max(alignment_, alignment);
  if (bytes == 0) return;
  const int error = preallocate(fd, bytes);
  if (error == ENOSPC || error == EDQUOT) throw too_small(directory, bytes, available);
  if (error == EFBIG)
    throw environment("A file of " + std::to_string(bytes) + " bytes in the NVMe directory " +
                          printable(directory) + " is above a limit on file sizes.",
                      "Raise it (ulimit -f unlimited), give another --nvme-dir, or lower --nvme-mem.");
  if (error != 0)
    throw environment(
        "Space in the NVMe directory " + printable(directory) + " cannot be allocated: " + system_text(error),
        "Give another --nvme-dir.");
}

void NvmeFiles::close_files() {
  for (const File& file : files_) close(file.fd);
  files_.clear();
}

NvmeFiles::Location NvmeFiles::locate(uint64_t address, uint64_t bytes) const {
  const uint64_t offset = address % kStripeBytes;
  CHECK(bytes <= kStripeBytes - offset, "a range of the nvme tier leaves its stripe");
  CHECK(address < bytes_, "a range of the nvme tier is outside its files");
  const Stripes::Place place = stripes_.locate(address / kStripeBytes);
  return {&files_[place.file], place.index * kStripeBytes + offset};
}

}  // namespace sluice
