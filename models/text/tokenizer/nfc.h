// Unicode's normal form C (UAX #15), with the places that the characters came from.
//
// The result is that of Hugging Face tokenizers, whose tables are of Unicode 9: characters that combine only
// since later versions stay as they are. Caller: the normalizer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

// Replaces `text`, valid UTF-8, by its normal form. `origin` is as in PieceText: a composed character has the
// origin of the first character that it replaces, an added character the origin of the character before.
void normalize_nfc(std::string& text, std::vector<uint32_t>& origin);

}  // namespace sluice
