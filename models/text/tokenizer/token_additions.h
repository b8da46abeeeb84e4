// What the files beside a tokenizer's own file say of its tokens: which tokens they add, with which flags,
// and which control tokens have a name, as "eos_token".
//
// Files: tokenizer_config.json, and where it has no added_tokens_decoder also special_tokens_map.json and
// added_tokens.json. Tokens, order and flags are those of transformers 5.23 (tokenization_utils_base.py,
// _from_pretrained; tokenization_utils_tokenizers.py, TokenizersBackend). In transformers, a new token gets
// the next free id, whatever its file says. A file that says otherwise is refused here, since other ids than
// its author meant would be trained. Callers: the readers of tokenizers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/text/tokenizer/added_tokens.h"
#include "models/text/tokenizer/vocabulary.h"

namespace sluice {

// Added tokens on their way to AddedTokens, with the ids that Hugging Face tokenizers 0.23.3 give them.
class AddedTokenList {
 public:
  explicit AddedTokenList(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  bool contains(const std::string& content) const { return places_.contains(content); }
  // Empty if `id` is the token's id, or the one that add() would give the token; else a clause that names the
  // other id.
  std::string contradiction(const std::string& content, uint32_t id) const;
  // Adds the token with its id in the vocabulary, or else the next free id. If the list has the token
  // already, its flags are replaced, but a special token stays special.
  void add(AddedToken token);

  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  const Vocabulary& vocabulary_;
  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, size_t> places_;  // by content
  uint32_t beyond_vocabulary_ = 0;                  // tokens that the vocabulary lacks
};

// A token as these files give it.
struct GivenToken {
  std::string content;
  std::optional<uint32_t> id = {};
  bool single_word = false, lstrip = false, rstrip = false, special = false;
  std::optional<bool> normalized = {};  // nothing: true unless the token is special
};

struct TokenAdditions {
  std::string where;                 // the file of `numbered`, for messages
  std::vector<GivenToken> numbered;  // added_tokens_decoder, or added_tokens.json; ids ascend
  bool has_decoder = false;          // `numbered` is of added_tokens_decoder
  std::vector<std::pair<std::string, GivenToken>> named;  // in the order in which new tokens get ids
  std::vector<GivenToken> extra;                          // additional_special_tokens
  std::optional<bool> add_bos, add_eos;
};

// Files that the directory lacks say nothing. Throws Error(malformed_file).
TokenAdditions read_token_additions(const std::string& directory);
// Adds to what the tokenizer's own file has. Throws Error(malformed_file).
void add_tokens(const TokenAdditions& additions, AddedTokenList& list);
// Contents by name: {"eos_token", "</s>"}.
std::map<std::string, std::string> controls_of(const TokenAdditions& additions);

}  // namespace sluice
