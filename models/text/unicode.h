// Code points of UTF-8 strings.
//
// Strings are valid UTF-8 unless a function says otherwise. Callers: templates and tokenizers.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice {

// Bytes of the well-formed sequence at text[at]; 0 if there is none (RFC 3629).
size_t sequence_length(std::string_view text, size_t at);
bool is_utf8(std::string_view text);

// The code point at text[at]; moves `at` behind it.
char32_t next_code_point(std::string_view text, size_t& at);
void append_code_point(std::string& to, char32_t c);
size_t count_code_points(std::string_view text);
// The byte at which code point `index` starts; text.size() if there are fewer.
size_t byte_of(std::string_view text, size_t index);

bool is_white_space(char32_t c);  // Unicode's property White_Space

}  // namespace sluice
