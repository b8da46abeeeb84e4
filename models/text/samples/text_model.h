// What a model directory says about text: tokenizer, chat template, control tokens by name, end tokens.
//
// Files: those of the tokenizer; tokenizer_config.json (chat_template); chat_template.jinja and
// additional_chat_templates/; generation_config.json and config.json (eos_token_id).
// Sources: transformers 5.23, tokenization_utils_base.py.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/text/template/chat_template.h"
#include "models/text/tokenizer/tokenizer.h"

namespace sluice {

struct TextModel {
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat = {};
  std::string chat_source = {};                 // the template's text; empty: there is none
  std::optional<ChatTemplate> tools_chat = {};  // for conversations with tools, where there is one
  std::string tools_chat_source = {};
  std::vector<std::string> template_names = {};      // of all templates, where they have names
  std::map<std::string, std::string> controls = {};  // "bos_token" -> "<s>": variables of the template
  std::vector<uint32_t> ends = {};                   // ids that end an answer
  std::optional<uint32_t> end = {};                  // id of eos_token, which ends a text
  std::string no_end = {};                           // why `end` is not set, as a clause; empty: it is
};

bool has_tokenizer(const std::string& directory);

// Bytes as tokens (Tokenizer::of_bytes), and the chat template of `template_file`; empty: none. Throws as
// open_text_model().
TextModel text_model_of_bytes(const std::string& template_file);

// `chat_template`: the template for all conversations, as a file or the name of one of the directory's
// templates. Empty: the template that is named default or has no name; conversations with tools use the one
// that is named tool_use, if there is one. Throws Error(usage, malformed_file).
TextModel open_text_model(const std::string& directory, const std::string& chat_template);

// Throws what open_text_model() would throw for this template.
void check_chat_template(const std::string& directory, const std::string& chat_template);

// Makes `token` the only end of answers, and of texts. Throws Error(usage) where the tokenizer has no such
// token.
void set_end_token(TextModel& model, const std::string& token);

}  // namespace sluice
