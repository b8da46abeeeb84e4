#include "models/text/tokenizer/byte_alphabet.h"

#include <array>
#include <string>

#include "models/text/unicode.h"

namespace sluice {
namespace {

constexpr char32_t kFirstMoved = 0x100;
constexpr size_t kMoved = 68;

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<uint8_t, kFirstMoved + kMoved> bytes{};
  std::array<bool, kFirstMoved + kMoved> in_use{};
};

Alphabet make_alphabet() {
  Alphabet alphabet;
  char32_t next = kFirstMoved;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const char32_t c = printable ? byte : next++;
    append_code_point(alphabet.characters[byte], c);
    alphabet.bytes[c] = static_cast<uint8_t>(byte);
    alphabet.in_use[c] = true;
  }
  return alphabet;
}

const Alphabet& alphabet() {
  static const Alphabet made = make_alphabet();
  return made;
}

}  // namespace

std::string_view character_of(uint8_t byte) { return alphabet().characters[byte]; }

std::optional<uint8_t> byte_of_character(char32_t c) {
  if (c >= kFirstMoved + kMoved || !alphabet().in_use[c]) return std::nullopt;
  return alphabet().bytes[c];
}

}  // namespace sluice
