#include "tools/command/config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "engine/base/error.h"
#include "engine/base/file.h"

namespace sluice {
namespace {

// Reads from left to right; `at_` never passes the end.
class ConfigParser {
 public:
  ConfigParser(const std::string& text, const std::string& name) : text_(text), name_(name) {}

  std::vector<ConfigEntry> parse() {
    std::vector<ConfigEntry> entries;
    for (skip_blank(true); at_ < text_.size(); skip_blank(true)) {
      ConfigEntry entry = parse_entry();
      for (const ConfigEntry& other : entries)
        if (other.key == entry.key)
          fail(fmt::format("gives `{}` again (first on line {})", entry.key, other.line));
      entries.push_back(std::move(entry));
      skip_blank(false);
      if (at_ < text_.size() && text_[at_] != '\n') fail("has more text after the value");
    }
    return entries;
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw Error(ExitCode::malformed_file, fmt::format("Line {} of `{}` {}.", line_, printable(name_), reason),
                "Write one `key = value` a line, text in quotes: host-mem = \"3GiB\".");
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  // Skips spaces and comments, with `lines` also ends of lines.
  void skip_blank(bool lines) {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == '\n' && lines) {
        ++line_;
        ++at_;
      } else if (c == ' ' || c == '\t' || (c == '\r' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n')) {
        ++at_;
      } else {
        return;
      }
    }
  }

  ConfigEntry parse_entry() {
    if (peek() == '[') fail("begins a section; options are written without sections");
    ConfigEntry entry;
    entry.line = line_;
    while (std::isalnum(static_cast<unsigned char>(peek())) || peek() == '-' || peek() == '_')
      entry.key += text_[at_++];
    if (entry.key.empty()) fail("does not begin with a key");
    skip_blank(false);
    if (peek() != '=') fail(fmt::format("has no `=` after `{}`", entry.key));
    ++at_;
    skip_blank(false);
    if (peek() != '[') {
      entry.values.push_back(parse_scalar());
      return entry;
    }
    ++at_;
    for (skip_blank(true); peek() != ']'; skip_blank(true)) {
      entry.values.push_back(parse_scalar());
      skip_blank(true);
      if (peek() == ',') {
        ++at_;
      } else if (peek() != ']') {
        fail("has an array without `,` or `]` after a value");
      }
    }
    ++at_;
    return entry;
  }

  std::string parse_scalar() {
    const char quote = peek();
    if (quote == '"' || quote == '\'') return parse_string(quote);
    std::string word;
    while (std::isalnum(static_cast<unsigned char>(peek())) || std::string("+-._").find(peek()) < 4)
      word += text_[at_++];
    const bool number = !word.empty() && (std::isdigit(static_cast<unsigned char>(word.back())) != 0) &&
                        word.find_first_not_of("0123456789+-._eE") == std::string::npos;
    if (!number && word != "true" && word != "false")
      fail("has a value that is no number, not true or false, and not in quotes");
    std::erase(word, '_');  // 1_000
    if (word.front() == '+') word.erase(word.begin());
    return word;
  }

  std::string parse_string(char quote) {
    ++at_;
    std::string value;
    while (peek() != quote || at_ == text_.size()) {
      if (at_ == text_.size() || text_[at_] == '\n') fail("has a text without its closing quote");
      if (quote == '"' && text_[at_] == '\\') {
        ++at_;
        value += parse_escape();
      } else {
        value += text_[at_++];
      }
    }
    ++at_;
    return value;
  }

  char parse_escape() {
    constexpr char kFrom[] = "\"\\tnr", kTo[] = "\"\\\t\n\r";
    for (int i = 0; kFrom[i] != '\0'; ++i) {
      if (peek() != kFrom[i]) continue;
      ++at_;
      return kTo[i];
    }
    fail("has an unknown escape in a text; '...' takes backslashes as they are");
  }

  const std::string& text_;
  const std::string& name_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

std::vector<ConfigEntry> parse_config(const std::string& text, const std::string& name) {
  return ConfigParser(text, name).parse();
}

std::vector<ConfigEntry> read_config(const std::string& path) {
  constexpr uint64_t kBytesMax = 64 << 20;  // thousands of files that --data names
  return parse_config(read_text_file(path, kBytesMax), path);
}

}  // namespace sluice
