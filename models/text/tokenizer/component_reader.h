// Readers of the components in a tokenizer.json, each a JSON object with its "type".
//
// Every function throws Error(malformed_file) that names file and component. Caller: tokenizer_file.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/text/tokenizer/normalizer.h"
#include "models/text/tokenizer/pre_tokenizer.h"
#include "models/text/tokenizer/token_decoder.h"

namespace sluice {

// A JSON object of the file, and how messages name it: "tokenizer.json: model".
class Component {
 public:
  Component(const nlohmann::json& value, std::string where);  // throws unless it is an object

  bool has(const char* key) const;  // null counts as missing
  const nlohmann::json& at(const char* key) const;
  Component object(const char* key) const;
  std::vector<Component> objects(const char* key) const;  // a list of objects
  std::string text(const char* key) const;
  std::string text_or(const char* key, const char* otherwise) const;
  bool flag(const char* key) const;
  bool flag_or(const char* key, bool otherwise) const;
  uint32_t number(const char* key) const;
  const nlohmann::json& json() const { return value_; }

  // Throws "WHERE: CLAUSE.", and says that the file is damaged.
  [[noreturn]] void damaged(const std::string& clause) const;
  // Throws "WHERE: WHAT is not supported."
  [[noreturn]] void unsupported(const std::string& what) const;

 private:
  const nlohmann::json& value_;
  std::string where_;
};

std::vector<Normalizer> read_normalizers(const Component& component);
std::vector<PreTokenizer> read_pre_tokenizers(const Component& component);
std::vector<DecoderStep> read_decoders(const Component& component);

// The ids that a post-processor adds in front of and behind the tokens of a text.
struct AddedIds {
  std::vector<uint32_t> prefix, suffix;
};
AddedIds read_post_processor(const Component& component);

}  // namespace sluice
