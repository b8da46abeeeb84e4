// Tables of code points from U+0080 on, ascending, for unicode.cc alone, which needs no table for ASCII.
//
// Written by tools/fixtures/unicode_tables.py.
#pragma once

#include <vector>

namespace sluice::jinja {

struct CodePointRange {
  char32_t first, last;
};

// Every `step`-th code point from first to last changes by `distance`.
struct CaseRun {
  char32_t first, last;
  int step, distance;
};

// A code point that becomes several. In kTitle, also a code point whose title case differs from its upper
// case.
struct CaseExpansion {
  char32_t from;
  const char* to;
};

extern const std::vector<CodePointRange> kUnprintable, kCased;
extern const std::vector<CaseRun> kLower, kUpper;
extern const std::vector<CaseExpansion> kLowerExpansions, kUpperExpansions, kTitle;

}  // namespace sluice::jinja
