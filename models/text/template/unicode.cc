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

bool is_space(char32_t c) { return (c >= 0x1C && c <= 0x1F) || is_white_space(c); }

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
