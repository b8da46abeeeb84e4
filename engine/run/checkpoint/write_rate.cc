#include "engine/run/checkpoint/write_rate.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <utility>

#include "engine/base/clock.h"
#include "engine/base/file.h"

namespace sluice {

double write_rate(const std::string& directory, uint64_t checkpoint_bytes) {
  constexpr uint64_t kPiece = 4 << 20, kMost = 64 << 20;
  constexpr double kSeconds = 0.4;
  if (checkpoint_bytes < kMost) return 0;
  std::string path = directory + "/.rate-XXXXXX";
  const FileDescriptor fd(mkostemp(path.data(), O_CLOEXEC));
  if (fd.get() < 0) return 0;
  unlink(path.c_str());  // whatever ends the process, nothing is left
  // Random words, which no file system or drive can compress. They are part of the budget's reserve.
  void* const words = mmap(nullptr, kPiece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (words == MAP_FAILED) return 0;
  const std::unique_ptr<void, void (*)(void*)> unmap(words, [](void* p) { munmap(p, kPiece); });
  std::generate_n(static_cast<uint64_t*>(words), kPiece / sizeof(uint64_t), std::mt19937_64());
  const int flags = fcntl(fd.get(), F_GETFL);
  bool is_direct = fcntl(fd.get(), F_SETFL, flags | O_DIRECT) == 0;
  if (fallocate(fd.get(), 0, 0, kMost) != 0 && ftruncate(fd.get(), kMost) != 0) return 0;
  const double begin = steady_seconds();
  uint64_t written = 0;
  while (written < kMost && steady_seconds() - begin < kSeconds) {
    const ssize_t n = pwrite(fd.get(), words, std::min(kPiece, kMost - written), static_cast<off_t>(written));
    if (n > 0) {
      written += static_cast<uint64_t>(n);
    } else if (n < 0 && std::exchange(is_direct, false)) {
      fcntl(fd.get(), F_SETFL, flags);
    } else {
      return 0;
    }
  }
  if (fdatasync(fd.get()) != 0) return 0;
  return static_cast<double>(written) / std::max(steady_seconds() - begin, 1e-6);
}

}  // namespace sluice
