// Which tests a filter of googletest chooses: POSITIVE[-NEGATIVE], each a list of patterns that colons
// separate. (googletest's own matcher is not public.)
#pragma once

#include <fnmatch.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace sluice {

// Whether one of the patterns matches the name.
inline bool any_matches(std::string_view patterns, const std::string& name) {
  while (!patterns.empty()) {
    const std::string pattern(patterns.substr(0, patterns.find(':')));
    patterns.remove_prefix(std::min(patterns.size(), pattern.size() + 1));
    if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return true;
  }
  return false;
}

inline bool chooses(const std::string& filter, const std::string& name) {
  const size_t minus = filter.find('-');
  const std::string_view negative =
      minus == std::string::npos ? std::string_view() : std::string_view(filter).substr(minus + 1);
  return (minus == 0 || any_matches(filter.substr(0, minus), name)) && !any_matches(negative, name);
}

}  // namespace sluice
