// A part of the input on its way to tokens: its normalized text, cut into pieces.
//
// `origin` maps each byte of `text` to the first byte of the input's character that it came from. Pieces are
// ascending, disjoint, and none is empty. Every step of a tokenizer maps one PieceText to the next. Callers:
// steps, added tokens, the encoder; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// The largest input, and the largest text that a step starts from. A step makes at most four bytes of one
// byte, so offsets fit 32 bits. A Replace may make more, but it checks the size after each match.
constexpr size_t kTextBytesMax = size_t{512} << 20;
void check_size(std::string_view text);  // throws Error(malformed_file)

struct Piece {
  uint32_t begin = 0, end = 0;      // [begin, end) in text
  std::optional<uint32_t> id = {};  // an added token, which no step changes any more
};

struct PieceText {
  std::string text;              // UTF-8
  std::vector<uint32_t> origin;  // as many as text has bytes, and not descending
  std::vector<Piece> pieces;

  std::string_view of(const Piece& piece) const {
    return std::string_view(text).substr(piece.begin, piece.end - piece.begin);
  }
};

}  // namespace sluice
