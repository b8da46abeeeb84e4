#include "models/text/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/error.h"
#include "models/text/tokenizer/byte_alphabet.h"
#include "models/text/tokenizer/parts.h"
#include "models/text/tokenizer/sentencepiece_file.h"
#include "models/text/tokenizer/tokenizer_file.h"

namespace sluice {

Tokenizer Tokenizer::open(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path given(path);
  const bool is_model = given.extension() == ".model";
  std::error_code ignored;
  if (!fs::is_directory(given, ignored))
    return Tokenizer(is_model ? read_sentencepiece_file(path) : read_tokenizer_file(path));
  if (const fs::path file = given / "tokenizer.json"; fs::exists(file, ignored))
    return Tokenizer(read_tokenizer_file(file.string()));
  if (const fs::path file = given / "tokenizer.model"; fs::exists(file, ignored))
    return Tokenizer(read_sentencepiece_file(file.string()));
  throw Error(ExitCode::usage,
              fmt::format("{} has neither tokenizer.json nor tokenizer.model.", printable(path)),
              "Copy the tokenizer's files of the model's release into the directory.");
}

Tokenizer Tokenizer::of_bytes() {
  Vocabulary vocabulary;
  for (uint32_t byte = 0; byte < 256; ++byte)
    vocabulary.add(std::string(character_of(static_cast<uint8_t>(byte))), byte);
  std::vector<PreTokenizer> steps;
  steps.emplace_back(ByteLevelStep{});
  return Tokenizer({.normalizers = {},
                    .pre_tokenizers = std::move(steps),
                    .bpe = Bpe(std::move(vocabulary), {}, {}),
                    .added = AddedTokens({}, {}),
                    .decoder = {.steps = {ByteLevelDecoder{}}},
                    .prefix = {},
                    .suffix = {},
                    .controls = {}});
}

Tokenizer::Tokenizer(TokenizerParts parts)
    : parts_(std::make_unique<const TokenizerParts>(std::move(parts))) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

uint32_t Tokenizer::id_end() const {
  return std::max(parts_->bpe.vocabulary().id_end(), parts_->added.id_end());
}

std::optional<uint32_t> Tokenizer::id_of(std::string_view content) const {
  if (const AddedToken* token = parts_->added.by_content(content)) return token->id;
  return parts_->bpe.vocabulary().id_of(content);
}

std::optional<std::string> Tokenizer::content_of(uint32_t id) const {
  if (const AddedToken* token = parts_->added.by_id(id)) return token->content;
  const std::string* content = parts_->bpe.vocabulary().content_of(id);
  return content == nullptr ? std::nullopt : std::optional(*content);
}

bool Tokenizer::is_special(uint32_t id) const {
  const AddedToken* token = parts_->added.by_id(id);
  return token != nullptr && token->special;
}

bool Tokenizer::is_numbered(uint32_t id) const {
  const AddedToken* token = parts_->added.by_id(id);
  return token == nullptr || token->numbered;
}

const std::vector<AddedToken>& Tokenizer::added() const { return parts_->added.tokens(); }
const std::map<std::string, std::string>& Tokenizer::controls() const { return parts_->controls; }
const std::vector<uint32_t>& Tokenizer::prefix() const { return parts_->prefix; }
const std::vector<uint32_t>& Tokenizer::suffix() const { return parts_->suffix; }

void Tokenizer::decode(uint32_t id, bool skip_special, TextDecoder& decoder, std::string& to) const {
  const AddedToken* added = parts_->added.by_id(id);
  const std::string* token =
      added != nullptr ? &parts_->added.decoded(*added) : parts_->bpe.vocabulary().content_of(id);
  if (token != nullptr && !(skip_special && parts_->added.is_special(*token))) decoder.push(*token, to);
}

std::string Tokenizer::decode(std::span<const uint32_t> ids, bool skip_special) const {
  TextDecoder decoder(parts_->decoder);
  std::string text;
  for (const uint32_t id : ids) decode(id, skip_special, decoder, text);
  decoder.finish(text);
  return text;
}

TextStream::TextStream(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(tokenizer),
      skip_special_(skip_special),
      decoder_(std::make_unique<TextDecoder>(tokenizer.parts_->decoder)) {}
TextStream::~TextStream() = default;
TextStream::TextStream(TextStream&&) noexcept = default;

std::string TextStream::push(uint32_t id) {
  std::string text;
  tokenizer_.decode(id, skip_special_, *decoder_, text);
  return text;
}

std::string TextStream::finish() {
  std::string text;
  decoder_->finish(text);
  return text;
}

}  // namespace sluice
