// What a tokenizer is made of. The readers of files make one; Tokenizer and Encoder use it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/text/tokenizer/added_tokens.h"
#include "models/text/tokenizer/bpe.h"
#include "models/text/tokenizer/normalizer.h"
#include "models/text/tokenizer/pre_tokenizer.h"
#include "models/text/tokenizer/token_decoder.h"

namespace sluice {

struct TokenizerParts {
  std::vector<Normalizer> normalizers;
  std::vector<PreTokenizer> pre_tokenizers;
  Bpe bpe;
  AddedTokens added;
  TokenDecoder decoder;
  std::vector<uint32_t> prefix, suffix;
  std::map<std::string, std::string> controls;  // by name: "eos_token"
};

}  // namespace sluice
