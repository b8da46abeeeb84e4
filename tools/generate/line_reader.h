// Lines of a conversation, as they are typed. Caller: the verb generate.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

namespace sluice {

constexpr uint64_t kLineBytesMax = uint64_t{16} << 20;  // of a message

class LineReader {
 public:
  // Reads from the descriptor until `stop` is set.
  LineReader(int descriptor, const std::atomic<bool>& stop) : descriptor_(descriptor), stop_(stop) {}

  // The next line, without its end; none: there are no more, or it was stopped. Throws Error(io), and
  // Error(malformed_file) for a line of more than kLineBytesMax.
  std::optional<std::string> next();

 private:
  bool read_more();

  int descriptor_;
  const std::atomic<bool>& stop_;
  std::string buffer_;  // read and not given yet
  bool ended_ = false;
};

}  // namespace sluice
