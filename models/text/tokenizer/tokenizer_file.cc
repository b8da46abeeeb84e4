#include "models/text/tokenizer/tokenizer_file.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/strict_json.h"
#include "models/text/tokenizer/component_reader.h"
#include "models/text/tokenizer/token_additions.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kFileBytesMax = uint64_t{256} << 20;  // published files have up to 35 MB

// The two parts of a file that have hundreds of thousands of entries; they are read while the file is parsed.
// A wrong entry is told only once the model is known to be supported.
struct Lists {
  Vocabulary vocabulary;
  std::vector<Bpe::Merge> merges;
  std::string failure;  // a clause about the first wrong entry
};

// Adds a token. Returns a clause if the token is wrong, else an empty string.
std::string add_token(std::string&& content, const Json& id, Vocabulary& vocabulary) {
  if (!id.is_number_unsigned() || id.get<uint64_t>() > kIdMax)
    return fmt::format("token \"{}\" has no id from 0 to {}", printable(content), kIdMax);
  if (!vocabulary.add(content, id.get<uint32_t>()))
    return fmt::format("token \"{}\" is given twice, or has the id of another", printable(content));
  return "";
}

// Adds a merge, which is "a b", or ["a", "b"] where tokens may have blanks. Returns a clause if the entry is
// neither, else an empty string.
std::string add_merge(Json& entry, std::vector<Bpe::Merge>& merges) {
  if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
    merges.emplace_back(std::move(entry[0].get_ref<std::string&>()),
                        std::move(entry[1].get_ref<std::string&>()));
    return "";
  }
  const std::string text = entry.is_string() ? entry.get<std::string>() : "";
  if (text.starts_with("#version")) return "";
  const size_t blank = text.find(' ');
  if (blank == std::string::npos || text.find(' ', blank + 1) != std::string::npos)
    return fmt::format("merge {} is not a pair of tokens", merges.size() + 1);
  merges.emplace_back(text.substr(0, blank), text.substr(blank + 1));
  return "";
}

Json parse(const std::string& path, Lists& lists) {
  const auto take_token = [&](std::string&& key, Json&& value) {
    if (lists.failure.empty()) lists.failure = add_token(std::move(key), value, lists.vocabulary);
  };
  const auto take_merge = [&](std::string&&, Json&& value) {
    if (lists.failure.empty()) lists.failure = add_merge(value, lists.merges);
  };
  const std::vector<JsonEntries> taken = {{"model.vocab", take_token}, {"model.merges", take_merge}};
  try {
    return parse_strict_json(read_text_file(path, kFileBytesMax), taken);
  } catch (const std::invalid_argument& error) {
    throw Error(ExitCode::malformed_file, fmt::format("{}: {}.", printable(path), error.what()),
                "Copy the file again from the model's release.");
  }
}

Bpe read_model(const Component& model, Lists&& lists) {
  if (const std::string type = model.text_or("type", "BPE"); type != "BPE")
    model.unsupported(fmt::format("model \"{}\"", printable(type)));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!model.text_or(key, "").empty()) model.unsupported(key);
  if (model.has("dropout") && model.at("dropout") != 0) model.unsupported("dropout");
  model.object("vocab");
  model.objects("merges");
  if (!lists.failure.empty()) model.damaged(lists.failure);
  BpeOptions options;
  options.ignore_merges = model.flag_or("ignore_merges", false);
  options.byte_fallback = model.flag_or("byte_fallback", false);
  options.fuse_unknown = model.flag_or("fuse_unk", false);
  if (model.has("unk_token")) options.unknown = model.text("unk_token");
  try {
    return Bpe(std::move(lists.vocabulary), lists.merges, options);
  } catch (const std::invalid_argument& error) {
    model.damaged(error.what());
  }
}

void read_added_tokens(const Component& file, AddedTokenList& list) {
  if (!file.has("added_tokens")) return;
  for (const Component& entry : file.objects("added_tokens")) {
    AddedToken token;
    token.content = entry.text("content");
    const uint32_t id = entry.number("id");
    token.single_word = entry.flag("single_word");
    token.lstrip = entry.flag("lstrip");
    token.rstrip = entry.flag("rstrip");
    token.normalized = entry.flag("normalized");
    token.special = entry.flag("special");
    if (list.contains(token.content))
      entry.damaged(fmt::format("added token \"{}\" is given twice", printable(token.content)));
    if (const std::string clause = list.contradiction(token.content, id); !clause.empty())
      entry.damaged(clause);
    list.add(std::move(token));
  }
}

}  // namespace

TokenizerParts read_tokenizer_file(const std::string& path) {
  Lists lists;
  const Json json = parse(path, lists);
  const Component file(json, printable(path));
  if (const std::string version = file.text_or("version", "1.0"); version != "1.0")
    file.unsupported(fmt::format("version \"{}\"", printable(version)));
  std::vector<Normalizer> normalizers;
  if (file.has("normalizer")) normalizers = read_normalizers(file.object("normalizer"));
  std::vector<PreTokenizer> pre_tokenizers;
  if (file.has("pre_tokenizer")) pre_tokenizers = read_pre_tokenizers(file.object("pre_tokenizer"));
  TokenDecoder decoder;
  decoder.joins_with_blanks = !file.has("decoder");
  if (file.has("decoder")) decoder.steps = read_decoders(file.object("decoder"));
  AddedIds ids;
  if (file.has("post_processor")) ids = read_post_processor(file.object("post_processor"));
  Bpe bpe = read_model(file.object("model"), std::move(lists));
  AddedTokenList tokens(bpe.vocabulary());
  read_added_tokens(file, tokens);
  const TokenAdditions additions = read_token_additions(std::filesystem::path(path).parent_path());
  add_tokens(additions, tokens);
  try {
    AddedTokens added(tokens.tokens(), normalizers);
    for (const auto& list : {ids.prefix, ids.suffix})
      for (const uint32_t id : list)
        if (added.by_id(id) == nullptr && bpe.vocabulary().content_of(id) == nullptr)
          file.damaged(fmt::format("post_processor adds id {}, which no token has", id));
    return {std::move(normalizers), std::move(pre_tokenizers), std::move(bpe),        std::move(added),
            std::move(decoder),     std::move(ids.prefix),     std::move(ids.suffix), controls_of(additions)};
  } catch (const std::invalid_argument& error) {
    file.damaged(error.what());
  }
}

}  // namespace sluice
