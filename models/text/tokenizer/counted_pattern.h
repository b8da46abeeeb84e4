// Rewrites a regular expression so that all work of Oniguruma's is counted.
//
// Oniguruma matches by backtracking, and bounds the backtracks. Some loops run without any: of atomic groups,
// of possessive quantifiers, inside of look-around, and loops that Oniguruma makes possessive by itself, as
// [a-z]+ in front of 1. Where such a pattern fails at each place of a long word, time is quadratic and
// nothing is counted. Callouts (?{...}) change both: one behind a loop keeps Oniguruma from making it
// possessive, one inside of a loop is called in each round. Neither changes what is matched. Caller: Pattern.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

// `source`: of Oniguruma's own syntax. Throws std::invalid_argument with what the pattern uses that cannot be
// counted, as "back-references". What is no regular expression stays none.
std::string counted_pattern(std::string_view source);

}  // namespace sluice
