// Lines of a conversation, as they are typed. Caller: the verb generate.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

namespace sluice {

constexpr uint64_t kLineBytesMax = uint64_t{16} << 20;  // of a message

class LineReader {
 public:
  // Reads from the descriptor until `stop` is set. `longest`: bytes of a line for which there is memory.
  LineReader(int descriptor, const std::atomic<bool>& stop, uint64_t longest = kLineBytesMax)
      : descriptor_(descriptor), stop_(stop), longest_(std::min(longest, kLineBytesMax)) {}

  // The next line, without its end; none: there are no more lines, or `stop` is set. Throws Error(io), and
  // Error(malformed_file) for a line of more than kLineBytesMax, Error(infeasible) for one above `longest`.
  std::optional<std::string> next();

 private:
  bool read_more();

  int descriptor_;
  const std::atomic<bool>& stop_;
  uint64_t longest_;
  std::string buffer_;  // read and not given yet
  bool ended_ = false;
};

}  // namespace sluice
