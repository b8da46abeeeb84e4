#include "models/text/template/unicode.h"

#include <algorithm>
#include <vector>

#include "models/text/template/fault.h"
#include "models/text/template/unicode_tables.h"

namespace sluice::jinja {
namespace {

constexpr char32_t kCapitalSigma = 0x3A3;

bool in_ranges(const std::vector<CodePointRange>& ranges, char32_t c) {
  const auto range =
      std::partition_point(ranges.begin(), ranges.end(), [&](const CodePointRange& r) { return r.last < c; });
  return range != ranges.end() && range->first <= c;
}

const char* expansion_of(const std::vector<CaseExpansion>& expansions, char32_t c) {
  const auto found = std::partition_point(expansions.begin(), expansions.end(),
                                          [&](const CaseExpansion& e) { return e.from < c; });
  return found != expansions.end() && found->from == c ? found->to : nullptr;
}

char32_t moved(const std::vector<CaseRun>& runs, char32_t c) {
  const auto run =
      std::partition_point(runs.begin(), runs.end(), [&](const CaseRun& r) { return r.last < c; });
  if (run == runs.end() || run->first > c || (c - run->first) % static_cast<char32_t>(run->step) != 0)
    return c;
  return static_cast<char32_t>(static_cast<int64_t>(c) + run->distance);
}

void append_lower(std::string& to, char32_t c) {
  if (c < 0x80) {
    to += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  } else if (c == kCapitalSigma) {  // its lower case depends on the letters around it
    throw refusal("lower case of a Greek capital sigma");
  } else if (const char* expansion = expansion_of(kLowerExpansions, c)) {
    to += expansion;
  } else {
    append_code_point(to, moved(kLower, c));
  }
}

void append_upper(std::string& to, char32_t c) {
  if (c < 0x80)
    to += static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  else if (const char* expansion = expansion_of(kUpperExpansions, c))
    to += expansion;
  else
    append_code_point(to, moved(kUpper, c));
}

void append_title(std::string& to, char32_t c) {
  if (const char* expansion = expansion_of(kTitle, c))
    to += expansion;
  else
    append_upper(to, c);
}

}  // namespace

size_t sequence_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[at + k]); };
  const unsigned char first = byte(0);
  const size_t n = first < 0x80                    ? 1
                   : first >= 0xC2 && first < 0xE0 ? 2
                   : first >= 0xE0 && first < 0xF0 ? 3
                   : first >= 0xF0 && first < 0xF5 ? 4
                                                   : 0;
  if (n == 0 || at + n > text.size()) return 0;
  for (size_t k = 1; k < n; ++k)
    if ((byte(k) & 0xC0) != 0x80) return 0;
  if ((first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) > 0x9F)) return 0;
  if ((first == 0xF0 && byte(1) < 0x90) || (first == 0xF4 && byte(1) > 0x8F)) return 0;
  return n;
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t n = sequence_length(text, at);
    if (n == 0) return false;
    at += n;
  }
  return true;
}

char32_t next_code_point(std::string_view text, size_t& at) {
  const auto first = static_cast<unsigned char>(text[at]);
  const size_t n = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  char32_t c = n == 1 ? first : first & (0x7Fu >> n);
  for (size_t k = 1; k < n; ++k) c = c << 6 | (static_cast<unsigned char>(text[at + k]) & 0x3Fu);
  at += n;
  return c;
}

void append_code_point(std::string& to, char32_t c) {
  const auto tail = [&](int shift) { to += static_cast<char>(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) {
    to += static_cast<char>(c);
  } else if (c < 0x800) {
    to += static_cast<char>(0xC0 | c >> 6);
    tail(0);
  } else if (c < 0x10000) {
    to += static_cast<char>(0xE0 | c >> 12);
    tail(6);
    tail(0);
  } else {
    to += static_cast<char>(0xF0 | c >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

size_t count_code_points(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

size_t byte_of(std::string_view text, size_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) next_code_point(text, at);
  return at;
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_printable(char32_t c) { return c < 0x80 ? c >= 0x20 && c < 0x7F : !in_ranges(kUnprintable, c); }

bool is_cased(char32_t c) {
  return c < 0x80 ? (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') : in_ranges(kCased, c);
}

std::string lower(std::string_view text) {
  std::string to;
  for (size_t at = 0; at < text.size();) append_lower(to, next_code_point(text, at));
  return to;
}

std::string upper(std::string_view text) {
  std::string to;
  for (size_t at = 0; at < text.size();) append_upper(to, next_code_point(text, at));
  return to;
}

std::string title(std::string_view text) {
  std::string to;
  bool behind_cased = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    behind_cased ? append_lower(to, c) : append_title(to, c);
    behind_cased = is_cased(c);
  }
  return to;
}

std::string capitalize(std::string_view text) {
  std::string to;
  size_t at = 0;
  if (!text.empty()) append_title(to, next_code_point(text, at));
  return to + lower(text.substr(at));
}

size_t leading_space(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (!is_space(next_code_point(text, at))) return begin;
  }
  return text.size();
}

size_t trailing_space(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while ((text[begin] & 0xC0) == 0x80) --begin;
    size_t at = begin;
    if (!is_space(next_code_point(text, at))) break;
    end = begin;
  }
  return text.size() - end;
}

}  // namespace sluice::jinja
