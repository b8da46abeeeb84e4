// The alphabet of byte-level tokenizers: a printable character for each byte, so that tokens are strings.
//
// Bytes that are printable in Latin-1 stand for themselves, the other 68 are U+0100 and on, in order
// (bytes_to_unicode of https://github.com/openai/gpt-2/blob/master/src/encoder.py).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace sluice {

// The character of a byte, in UTF-8: one or two bytes.
std::string_view character_of(uint8_t byte);
std::optional<uint8_t> byte_of_character(char32_t c);

}  // namespace sluice
