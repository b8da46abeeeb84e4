// Code points of UTF-8 strings, and the properties of them that Python's strings ask for.
//
// Strings are valid UTF-8 unless a function says otherwise. Properties are those of Unicode 14, as in Python
// 3.11: a later version has more letters, so output for those may differ from a later Python's.
// Callers: the lexer, strings of values.
#pragma once

#include <string>
#include <string_view>

namespace sluice::jinja {

// Bytes of the well-formed sequence at text[at]; 0 if there is none (RFC 3629).
size_t sequence_length(std::string_view text, size_t at);
bool is_utf8(std::string_view text);

// The code point at text[at]; moves `at` behind it.
char32_t next_code_point(std::string_view text, size_t& at);
void append_code_point(std::string& to, char32_t c);
size_t count_code_points(std::string_view text);
// The byte at which code point `index` starts; text.size() if there are fewer.
size_t byte_of(std::string_view text, size_t index);

bool is_space(char32_t c);      // str.isspace
bool is_printable(char32_t c);  // str.isprintable
bool is_cased(char32_t c);      // a letter that has a case

// str.lower, upper, title and capitalize.
std::string lower(std::string_view text);
std::string upper(std::string_view text);
std::string title(std::string_view text);
std::string capitalize(std::string_view text);

// Bytes of white space at the start and at the end of a text.
size_t leading_space(std::string_view text);
size_t trailing_space(std::string_view text);

}  // namespace sluice::jinja
