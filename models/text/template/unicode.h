// Properties of code points that Python's strings ask for.
//
// Strings are valid UTF-8 unless a function says otherwise. Properties are those of Unicode 14, as in Python
// 3.11: a later version has more letters, so output for those may differ from a later Python's.
// Callers: the lexer, strings of values.
#pragma once

#include <string>
#include <string_view>

#include "models/text/unicode.h"

namespace sluice::jinja {

bool is_space(char32_t c);      // str.isspace
bool is_printable(char32_t c);  // str.isprintable
bool is_cased(char32_t c);      // a letter that has a case

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }  // of ASCII

// str.lower, upper, title and capitalize.
std::string lower(std::string_view text);
std::string upper(std::string_view text);
std::string title(std::string_view text);
std::string capitalize(std::string_view text);

// Bytes of white space at the start and at the end of a text.
size_t leading_space(std::string_view text);
size_t trailing_space(std::string_view text);

}  // namespace sluice::jinja
