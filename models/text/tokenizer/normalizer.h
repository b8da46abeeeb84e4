// Normalizers: the first change of a text, before it is cut. Only normalizers that tokenizers of text
// generation use are supported.
//
// Callers: the encoder, and added tokens that match normalized text.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace sluice {

struct NfcNormalizer {};
struct ReplaceNormalizer {
  std::string pattern;  // a string, not empty
  std::string content;
};
struct PrependNormalizer {
  std::string prefix;
};
using Normalizer = std::variant<NfcNormalizer, ReplaceNormalizer, PrependNormalizer>;

// Changes text and origin (PieceText).
void normalize(const std::vector<Normalizer>& steps, std::string& text, std::vector<uint32_t>& origin);

// Puts `prefix` in front of a text that is not empty; it has the origin of the text's first character.
void prepend(const std::string& prefix, std::string& text, std::vector<uint32_t>& origin);

}  // namespace sluice
