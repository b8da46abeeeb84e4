// Added tokens: strings that are found in the text before it is normalized and cut, and become one id each.
//
// They are found from left to right, the longest at each place, in two rounds. The first round finds tokens
// with normalized=false in the input. The second finds the other tokens, by their normalized content, in the
// normalized text between the tokens of the first round. A special token is a control token: it is not found
// in text that a caller declares plain, as text of users. Source: added_vocabulary.rs of Hugging Face
// tokenizers. An AddedTokens never changes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "models/text/byte_range.h"
#include "models/text/tokenizer/flat_table.h"
#include "models/text/tokenizer/normalizer.h"
#include "models/text/tokenizer/pattern.h"
#include "models/text/tokenizer/piece.h"

namespace sluice {

struct AddedToken {
  std::string content;
  uint32_t id = 0;
  bool single_word = false;  // only where no letter or digit touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space behind it
  bool normalized = false;
  bool special = false;
  bool numbered = true;  // a file or the vocabulary gives its id; false: a file only names it
};

// The bytes of a text in which special tokens are not found. `origin` is as in PieceText; empty: the text is
// the input itself.
struct UserText {
  std::span<const ByteRange> ranges;  // of the input, ascending, not overlapping
  std::span<const uint32_t> origin;
};

class AddedTokens {
 public:
  // Throws std::invalid_argument with a clause when two tokens have one content, id or normalized content, or
  // a content is empty.
  AddedTokens(std::vector<AddedToken> tokens, const std::vector<Normalizer>& normalizers);

  // Appends pieces that cover `text` from `begin` on: added tokens, and what lies between them. `begin` lies
  // inside no token. Returns where spellings of special tokens begin inside plain text, ascending.
  std::vector<size_t> find(bool normalized, std::string_view text, size_t begin, const UserText& plain,
                           std::vector<Piece>& to) const;
  // Bytes of the longest content that is found in the input.
  size_t longest_content() const { return longest_content_; }

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  const AddedToken* by_content(std::string_view content) const;  // nullptr if there is none
  const AddedToken* by_id(uint32_t id) const;
  // What the decoder sees: the normalized content if the token is found by it, else the content.
  const std::string& decoded(const AddedToken& token) const;
  bool is_special(std::string_view decoded) const { return specials_.contains(std::string(decoded)); }
  uint32_t id_end() const;  // above every id; 0 if there is none

 private:
  class Trie {
   public:
    bool add(std::string_view content, uint32_t token);  // false if it is there already
    // Calls visit(end, token) for each content that begins at `begin`, shortest first.
    template <typename Visit>
    void at(std::string_view text, size_t begin, const Visit& visit) const;
    bool may_begin(char byte) const { return begins_[static_cast<uint8_t>(byte)]; }

   private:
    FlatTable<uint32_t> children_;                 // by node and byte; node 0 is the root
    std::vector<uint32_t> tokens_ = {UINT32_MAX};  // by node: the token whose content ends there
    std::array<bool, 256> begins_{};
  };
  struct Found {
    size_t end;
    uint32_t token;
    bool counts;
  };

  std::optional<Found> longest(const Trie& trie, std::string_view text, size_t begin,
                               const UserText& plain) const;
  bool stands_alone(std::string_view text, size_t begin, size_t end) const;

  std::vector<AddedToken> tokens_;
  std::vector<std::string> decoded_;  // by token
  std::unordered_map<std::string_view, uint32_t> by_content_;
  std::unordered_map<uint32_t, uint32_t> by_id_;
  std::unordered_set<std::string> specials_;
  size_t longest_content_ = 0;
  Trie raw_, normalized_;
  std::optional<Pattern> word_;  // a character of a word; set if a token is single_word
};

}  // namespace sluice
