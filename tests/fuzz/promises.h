// What the targets share: promises that a reader makes of any input, and inputs as files and parts.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "tests/fuzz/targets.h"

namespace sluice::fuzzing {

// A promise that does not hold is a bug of the product.
inline void demand(bool holds, const std::string& promise) {
  if (!holds) throw std::logic_error("broken promise: " + promise);
}

// False where `read` throws an Error, which must be one that a user can act on.
template <typename Read>
bool is_taken(const Read& read) {
  try {
    read();
    return true;
  } catch (const Error& error) {
    const std::string what = error.what();
    demand(error.code() == ExitCode::malformed_file || error.code() == ExitCode::usage,
           "the file is to blame: " + what);
    demand(printable(what) == what, "an error is printable: " + printable(what));
    demand(what.ends_with('.'), "an error is a sentence: " + what);
    demand(!error.remedy().empty(), "an error has a remedy: " + what);
    return false;
  }
}

inline std::string_view text_of(Input input) {
  return {reinterpret_cast<const char*>(input.data()), input.size()};
}

struct Parts {
  std::string_view first, second;
  bool is_divided = false;  // else all is in `first`
};

// What stands in front of the last zero byte, and behind it.
inline Parts divided(std::string_view text) {
  const size_t zero = text.rfind('\0');
  if (zero == std::string_view::npos) return {text, {}, false};
  return {text.substr(0, zero), text.substr(zero + 1), true};
}

// A file that is in memory only, for readers that take a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : file_(memfd_create("input", MFD_CLOEXEC)) {
    if (file_.get() < 0 ||
        ::write(file_.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
      throw std::runtime_error("a file in memory cannot be made");
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_.get()); }

 private:
  FileDescriptor file_;
};

}  // namespace sluice::fuzzing
