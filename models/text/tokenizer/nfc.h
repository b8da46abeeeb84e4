// Unicode's normal form C (UAX #15), with the places that the characters came from.
//
// As Hugging Face tokenizers have it: their tables are those of Unicode 9, so what combines since later
// versions stays as it is. Caller: the normalizer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

// Replaces `text`, valid UTF-8, by its normal form. `origin` is as in PieceText: a composed character has the
// origin of the first character that it replaces, an added one that of the character before.
void normalize_nfc(std::string& text, std::vector<uint32_t>& origin);

}  // namespace sluice
