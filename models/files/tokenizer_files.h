// The files of a model directory that belong to its tokenizer: copied whole, and changed where a run has
// another template or other end tokens.
//
// Sources: transformers 5.23, tokenization_utils_base.py and utils/chat_template_utils.py; conversions to
// GGUF prefer the template of tokenizer_config.json to chat_template.jinja. Callers: export, train.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace sluice {

// The largest chat_template.jinja, and the largest tokenizer_config.json, which lists all added tokens.
constexpr uint64_t kTemplateBytesMax = uint64_t{4} << 20, kTokenizerConfigBytesMax = uint64_t{64} << 20;

// Copies the tokenizer's files, chat templates (named ones too) and generation settings that are in `from`;
// makes `to` if there are such files. Returns how many there are. Throws Error(io) when writing fails.
size_t copy_tokenizer(const std::string& from, const std::string& to);

// Writes `text` in place of the directory's chat template and of its template for conversations with tools,
// in every file that has them. Other named templates stay. Throws Error(io), Error(malformed_file).
void replace_chat_template(const std::string& directory, const std::string& text);

// Makes `ids` the eos_token_id of generation_config.json. Where there is no such file, one is made that also
// has `others`: bos_token_id and the like, as JSON text. Throws as replace_chat_template().
void replace_ends(const std::string& directory, const std::vector<uint32_t>& ids,
                  const std::map<std::string, std::string>& others);

// Writes a small file durably.
void write_text_file(const std::string& path, const std::string& text);

}  // namespace sluice
