#include "engine/run/train/growing_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/clock.h"
#include "engine/base/error.h"

namespace sluice {
namespace {

constexpr size_t kWaitingMax = 16 << 20;  // bytes; with more, older records are dropped

}  // namespace

void GrowingFile::follow_path() {
  struct stat own, there;
  if (::fstat(file_.get(), &own) != 0 || !S_ISREG(own.st_mode)) return;
  if (::stat(path_.c_str(), &there) == 0 && there.st_dev == own.st_dev && there.st_ino == own.st_ino) return;
  FileDescriptor anew(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666));
  if (anew.get() < 0) return;  // for example, the directory was moved, and the file with it
  // If another process writes the file that is there now, records of two runs would be mixed.
  if (::flock(anew.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return;
  file_ = std::move(anew);
  is_new_ = true;
}

void GrowingFile::append(std::string_view record) {
  follow_path();
  waiting_ += record;
  sizes_.push_back(record.size());
  flush();
}

void GrowingFile::flush() {
  size_t done = 0;
  int error = 0;
  while (done < waiting_.size() && error == 0) {
    const ssize_t n = ::write(file_.get(), waiting_.data() + done, waiting_.size() - done);
    if (n >= 0)
      done += static_cast<size_t>(n);
    else if (errno != EINTR)
      error = errno;
  }
  waiting_.erase(0, done);
  size_t whole = 0;
  for (; whole < sizes_.size() && sizes_[whole] <= done; ++whole) done -= sizes_[whole];
  sizes_.erase(sizes_.begin(), sizes_.begin() + static_cast<std::ptrdiff_t>(whole));
  if (done > 0) sizes_.front() -= done;
  if (waiting_.size() > kWaitingMax) shorten();
  if (error == 0) is_told_ = false;
  error_ = error;
}

// A part of the first record may be in the file already, so its rest stays.
void GrowingFile::shorten() {
  size_t bytes = 0, end = 1;
  while (end < sizes_.size() && waiting_.size() - bytes > kWaitingMax / 2) bytes += sizes_[end++];
  waiting_.erase(sizes_.front(), bytes);
  sizes_.erase(sizes_.begin() + 1, sizes_.begin() + static_cast<std::ptrdiff_t>(end));
}

void GrowingFile::finish() {
  flush();
  const double end = steady_seconds() + 1;
  pollfd reader{file_.get(), POLLOUT, 0};
  while (error_ == EAGAIN && steady_seconds() < end) {
    ::poll(&reader, 1, 50);
    flush();
  }
}

std::optional<std::string> GrowingFile::trouble() {
  if (std::exchange(is_new_, false))
    return fmt::format("`{}` was moved or removed: it is made anew, and its earlier {} are where it went.",
                       printable(path_), records_);
  if (error_ == 0 || std::exchange(is_told_, true)) return std::nullopt;
  return fmt::format("Writing `{}` failed: {}. The run goes on; its {} are kept and tried again.",
                     printable(path_), error_ == EAGAIN ? "its reader does not read" : std::strerror(error_),
                     records_);
}

}  // namespace sluice
