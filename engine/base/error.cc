#include "engine/base/error.h"

#include <cstdio>
#include <cstdlib>

namespace sluice {

Error Error::with_clause(const std::string& clause) const {
  std::string text = what();
  if (text.ends_with('.')) text.pop_back();
  Error error(code_, text + ", " + clause + ".", remedy_);
  error.in_step_ = in_step_;
  return error;
}

void check_failed(const char* condition, const char* file, int line, const std::string& detail) {
  std::fprintf(stderr, "sluice: internal error: %s (%s:%d) %s\n", condition, file, line, detail.c_str());
  std::_Exit(static_cast<int>(ExitCode::bug));
}

namespace {

// Length in bytes of the well-formed UTF-8 sequence that starts at text[i]; 0 if there is none (RFC 3629).
size_t utf8_length(const std::string& text, size_t i) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned char c = byte(i);
  const size_t n = c < 0x80                ? 1
                   : c >= 0xC2 && c < 0xE0 ? 2
                   : c >= 0xE0 && c < 0xF0 ? 3
                   : c >= 0xF0 && c < 0xF5 ? 4
                                           : 0;
  if (n == 0 || i + n > text.size()) return 0;
  for (size_t k = 1; k < n; ++k)
    if ((byte(i + k) & 0xC0) != 0x80) return 0;
  if ((c == 0xE0 && byte(i + 1) < 0xA0) || (c == 0xED && byte(i + 1) > 0x9F)) return 0;
  if ((c == 0xF0 && byte(i + 1) < 0x90) || (c == 0xF4 && byte(i + 1) > 0x8F)) return 0;
  return n;
}

}  // namespace

std::string printable(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t n = utf8_length(text, i);
    const auto c = static_cast<unsigned char>(text[i]);
    const bool c1_control = n == 2 && c == 0xC2 && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (n == 0 || c < 0x20 || c == 0x7F || c1_control) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", c);
      out += escaped;
      ++i;
    } else {
      out.append(text, i, n);
      i += n;
    }
  }
  return out;
}

}  // namespace sluice
