// Pre-tokenizers: the steps that cut a normalized text into pieces, each of which becomes tokens by itself.
//
// They cut as those of Hugging Face tokenizers 0.23 do. Callers: the encoder; a step never changes.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "models/text/tokenizer/pattern.h"
#include "models/text/tokenizer/piece.h"

namespace sluice {

// What becomes of the matches of a Split, in this order: pieces of their own; nothing; the end of the piece
// before; the start of the piece behind; a piece for each run of adjacent matches.
enum class SplitBehavior : uint8_t { isolated, removed, merged_with_previous, merged_with_next, contiguous };

struct SplitStep {
  std::variant<std::string, Pattern> pattern;  // a string is not empty
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // the matches are what the pattern does not match
};

// Cuts by `split`, GPT-2's pattern, if it is set. Then writes each byte as a character (byte_alphabet.h).
struct ByteLevelStep {
  bool add_prefix_space = false;
  std::optional<SplitStep> split;
};

enum class PrependScheme : uint8_t { first, never, always };

// Writes blanks as `replacement`. Puts a `replacement` in front of a piece that does not begin with one, as
// the scheme says (`first`: only of the piece with which the input begins). If `split`, cuts before each.
struct MetaspaceStep {
  std::string replacement;
  PrependScheme prepend = PrependScheme::always;
  bool split = true;
};

using PreTokenizer = std::variant<SplitStep, ByteLevelStep, MetaspaceStep>;

// GPT-2's pattern, and Digits as a Split.
SplitStep gpt2_split();
SplitStep digits_split(bool individual);

// Memory of one thread for pre_tokenize.
struct CutMemory {
  struct Cut {
    uint32_t begin, end;
    bool is_match;
  };
  Matcher matcher;
  std::vector<Cut> cuts;
  PieceText next;
};

// Changes `text`; pieces with an id stay.
void pre_tokenize(const std::vector<PreTokenizer>& steps, PieceText& text, CutMemory& memory);

}  // namespace sluice
