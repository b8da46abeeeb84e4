#include "tools/generate/line_reader.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/units.h"

namespace sluice {

// A signal that comes just before poll() does not interrupt it. So poll() ends now and then.
bool LineReader::read_more() {
  constexpr int kMilliseconds = 100;
  while (!stop_) {
    pollfd waited{.fd = descriptor_, .events = POLLIN, .revents = 0};
    const int ready = poll(&waited, 1, kMilliseconds);
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    std::array<char, 4096> bytes{};
    const ssize_t count = ready < 0 ? -1 : read(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      throw Error(ExitCode::io, std::string("Cannot read standard input: ") + std::strerror(errno) + ".",
                  "Give --prompt or --prompts where there is no standard input.");
    buffer_.append(bytes.data(), static_cast<size_t>(count));
    return count > 0;
  }
  return false;
}

std::optional<std::string> LineReader::next() {
  size_t end = 0, searched = 0;
  while ((end = buffer_.find('\n', searched)) == std::string::npos && !ended_) {
    searched = buffer_.size();
    if (searched > longest_ && longest_ < kLineBytesMax)
      throw Error(ExitCode::infeasible,
                  fmt::format("A message is longer than {}, and --host-mem has memory for no more.",
                              format_size(longest_)),
                  "Shorten it, or give more --host-mem.");
    if (searched > kLineBytesMax)
      throw Error(ExitCode::malformed_file,
                  fmt::format("A message has more than {}.", format_size(kLineBytesMax)), "Shorten it.");
    if (!read_more()) ended_ = true;
  }
  if (stop_ || (ended_ && buffer_.empty())) return std::nullopt;
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end == std::string::npos ? end : end + 1);
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

}  // namespace sluice
