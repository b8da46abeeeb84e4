// Rewrites a regular expression so that all of Oniguruma's work is counted.
//
// Oniguruma matches by backtracking, and bounds the backtracks. Some loops run without backtracks: those of
// atomic groups and of possessive quantifiers, those inside of look-around, and those that Oniguruma makes
// possessive by itself, as [a-z]+ in front of 1. Where such a pattern fails at each place of a long word,
// time is quadratic and nothing is counted. Callouts (?{...}) help: one behind a loop keeps Oniguruma from
// making the loop possessive, one inside of a loop is called, and counted, in each round. Neither changes
// what is matched. Caller: Pattern.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

// `source`: of Oniguruma's own syntax. Throws std::invalid_argument with what the pattern uses that cannot be
// counted, as "back-references". A malformed expression stays malformed.
std::string counted_pattern(std::string_view source);

}  // namespace sluice
