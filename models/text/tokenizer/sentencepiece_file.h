// Reader of tokenizer.model, SentencePiece's file, for directories that have no tokenizer.json.
//
// It reads models of type BPE that do not normalize the text, as Llama's and Mistral's, and refuses others by
// name. The result is what transformers 5.23 makes of such a file (convert_slow_tokenizer.py,
// LlamaTokenizer).
#pragma once

#include <string>

#include "models/text/tokenizer/parts.h"

namespace sluice {

// Also reads the files beside `path` that add tokens (token_additions.h), and add_bos_token and
// add_eos_token of tokenizer_config.json. Throws as read_tokenizer_file does.
TokenizerParts read_sentencepiece_file(const std::string& path);

}  // namespace sluice
