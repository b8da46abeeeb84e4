#include "models/text/tokenizer/token_additions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/strict_json.h"
#include "models/text/tokenizer/component_reader.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Named = std::vector<std::pair<std::string, GivenToken>>;

constexpr uint64_t kConfigBytesMax = uint64_t{64} << 20;  // tokenizer_config.json may list all added tokens
// Names that every tokenizer has, in the order in which their tokens are added.
constexpr std::array<const char*, 7> kNames = {"bos_token", "eos_token", "unk_token", "sep_token",
                                               "pad_token", "cls_token", "mask_token"};

constexpr const char* kExtra = "extra_special_tokens";
constexpr const char* kOlderExtra = "additional_special_tokens";

// Returns null if there is no such file.
nlohmann::ordered_json read_json(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return nullptr;
  try {
    nlohmann::ordered_json json = parse_strict_json_in_order(read_text_file(path, kConfigBytesMax));
    if (!json.is_object()) throw std::invalid_argument("it is not an object");
    return json;
  } catch (const std::invalid_argument& error) {
    throw Error(ExitCode::malformed_file, fmt::format("{}: {}.", printable(path), error.what()),
                "Copy the model's directory anew.");
  }
}

GivenToken token_of(const Component& entry) {
  GivenToken token{.content = entry.text("content")};
  token.single_word = entry.flag_or("single_word", false);
  token.lstrip = entry.flag_or("lstrip", false);
  token.rstrip = entry.flag_or("rstrip", false);
  token.special = entry.flag_or("special", false);
  if (entry.has("normalized")) token.normalized = entry.flag("normalized");
  return token;
}

// The token of a string, which is a control token, or of an object. Nothing where the value is neither, or
// empty.
std::optional<GivenToken> token_of(const nlohmann::ordered_json& value, const std::string& where) {
  GivenToken token;
  if (value.is_string()) {
    token = {.content = value.get<std::string>(), .special = true};
  } else if (value.is_object() && value.contains("content")) {
    const nlohmann::json object = value;
    token = token_of(Component(object, where));
  }
  return token.content.empty() ? std::nullopt : std::optional(std::move(token));
}

std::vector<GivenToken> list_of(const nlohmann::ordered_json& values, const std::string& where) {
  std::vector<GivenToken> tokens;
  for (const nlohmann::ordered_json& value : values)
    if (auto token = token_of(value, where)) tokens.push_back(std::move(*token));
  return tokens;
}

void set_named(Named& named, const std::string& name, GivenToken token) {
  const auto is_it = [&](const auto& one) { return one.first == name; };
  if (const auto found = std::find_if(named.begin(), named.end(), is_it); found != named.end())
    found->second = std::move(token);
  else
    named.emplace_back(name, std::move(token));
}

bool is_general(const std::string& name) {
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

// Returns the tokens of an object that have a name, in the object's order.
Named named_of(const nlohmann::ordered_json& file, const std::string& where, bool general) {
  Named named;
  for (const auto& [name, value] : file.items())
    if (name.ends_with("_token") && is_general(name) == general)
      if (auto token = token_of(value, where + ", " + name)) named.emplace_back(name, std::move(*token));
  return named;
}

// Adds the list of tokens, or the named tokens of an object, under a key.
void add_extra(const nlohmann::ordered_json& file, const char* key, const std::string& where,
               TokenAdditions& additions, Named& own_names) {
  const auto found = file.find(key);
  if (found == file.end()) return;
  const std::string place = fmt::format("{}, {}", where, key);
  if (found->is_array()) {
    for (GivenToken& token : list_of(*found, place)) additions.extra.push_back(std::move(token));
  } else if (found->is_object()) {
    for (const auto& [name, value] : found->items())
      if (auto token = token_of(value, place)) set_named(own_names, name, std::move(*token));
  }
}

uint32_t id_of(const std::string& text, const std::string& where) {
  uint32_t id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id > kIdMax)
    throw Error(ExitCode::malformed_file,
                fmt::format("{}: \"{}\" is not an id from 0 to {}.", where, printable(text), kIdMax),
                "Copy the model's directory anew.");
  return id;
}

void read_decoder(const Component& decoder, TokenAdditions& additions) {
  additions.has_decoder = true;
  for (const auto& [id, value] : decoder.json().items()) {
    GivenToken token = token_of(decoder.object(id.c_str()));
    token.id = id_of(id, additions.where);
    if (!token.content.empty()) additions.numbered.push_back(std::move(token));
  }
}

// added_tokens.json says contents and ids.
void read_added(const nlohmann::ordered_json& file, const std::set<std::string>& controls,
                TokenAdditions& additions) {
  for (const auto& [content, id] : file.items()) {
    GivenToken token{.content = content, .special = controls.contains(content)};
    token.id = id_of(id.is_number_unsigned() ? id.dump() : "", additions.where);
    token.normalized = !token.special;
    if (!content.empty()) additions.numbered.push_back(std::move(token));
  }
}

struct Files {
  std::string config_where, map_where;
  nlohmann::ordered_json config, map;
};

// Contents that are control tokens if added_tokens.json has them: those with a name of kNames, and extra
// ones. transformers passes over tokens that tokenizer_config.json has as objects.
std::set<std::string> control_tokens(const Files& files) {
  std::set<std::string> controls;
  const auto add = [&](const nlohmann::ordered_json& file, const char* key, bool objects) {
    const auto found = file.find(key);
    if (found == file.end()) return false;
    for (const nlohmann::ordered_json& value :
         found->is_array() ? *found : nlohmann::ordered_json::array({*found}))
      if (value.is_string() || (objects && value.is_object()))
        if (const auto token = token_of(value, key)) controls.insert(token->content);
    return !found->empty();
  };
  for (const char* name : kNames)
    if (!add(files.map, name, true)) add(files.config, name, false);
  if (!add(files.config, kExtra, false)) add(files.config, kOlderExtra, false);
  add(files.map, kExtra, true);
  return controls;
}

// Reads named control tokens, and extra ones. For names that every tokenizer has, special_tokens_map.json
// overrides tokenizer_config.json. For other names, tokenizer_config.json overrides special_tokens_map.json.
void read_names(const Files& files, TokenAdditions& additions) {
  Named general = named_of(files.config, files.config_where, true);
  Named own = named_of(files.map, files.map_where, false);
  for (auto& [name, token] : named_of(files.map, files.map_where, true))
    set_named(general, name, std::move(token));
  for (auto& [name, token] : named_of(files.config, files.config_where, false))
    set_named(own, name, std::move(token));
  // The older key counts where the other is missing, or is an object of names.
  const auto given = files.config.find(kExtra);
  const bool has_extra = given != files.config.end() && !given->empty();
  const bool has_names = has_extra && given->is_object();
  const bool has_list =
      (!has_names && (files.config.contains(kExtra) || files.config.contains(kOlderExtra))) ||
      (files.map.contains(kExtra) && files.map[kExtra].is_array());
  add_extra(files.config, has_extra ? kExtra : kOlderExtra, files.config_where, additions, own);
  add_extra(files.map, kExtra, files.map_where, additions, own);
  if (!has_list && files.map.contains(kOlderExtra))
    add_extra(files.map, kOlderExtra, files.map_where, additions, own);
  else if (!has_list)
    add_extra(files.config, kOlderExtra, files.config_where, additions, own);
  for (const char* name : kNames)
    for (auto& entry : general)
      if (entry.first == name) additions.named.push_back(std::move(entry));
  for (auto& entry : own) additions.named.push_back(std::move(entry));
}

AddedToken added_token(const GivenToken& given, bool special, bool numbered) {
  return {.content = given.content,
          .single_word = given.single_word,
          .lstrip = given.lstrip,
          .rstrip = given.rstrip,
          .normalized = given.normalized.value_or(!special),
          .special = special,
          .numbered = numbered};
}

}  // namespace

std::string AddedTokenList::contradiction(const std::string& content, uint32_t id) const {
  const auto in_list = places_.find(content);
  const auto in_model = vocabulary_.id_of(content);
  const uint32_t own = in_list != places_.end() ? tokens_[in_list->second].id
                       : in_model               ? *in_model
                                  : static_cast<uint32_t>(vocabulary_.size()) + beyond_vocabulary_;
  if (id == own) return "";
  return fmt::format("token \"{}\" has id {}, but {} is {}", printable(content), id,
                     in_list != places_.end() ? "the tokenizer's"
                     : in_model               ? "the model's"
                                              : "the next that is free",
                     own);
}

void AddedTokenList::add(AddedToken token) {
  if (const auto found = places_.find(token.content); found != places_.end()) {
    AddedToken& known = tokens_[found->second];
    token.id = known.id;
    token.special |= known.special;
    token.numbered |= known.numbered;
    known = std::move(token);
    return;
  }
  const auto in_model = vocabulary_.id_of(token.content);
  token.id = in_model ? *in_model : static_cast<uint32_t>(vocabulary_.size()) + beyond_vocabulary_++;
  token.numbered |= in_model.has_value();
  places_.emplace(token.content, tokens_.size());
  tokens_.push_back(std::move(token));
}

TokenAdditions read_token_additions(const std::string& directory) {
  const auto path_of = [&](const char* name) { return (fs::path(directory) / name).string(); };
  const auto object_of = [](nlohmann::ordered_json json) {
    return json.is_null() ? nlohmann::ordered_json::object() : std::move(json);
  };
  const std::string config = path_of("tokenizer_config.json"), map = path_of("special_tokens_map.json");
  Files files{printable(config), printable(map), object_of(read_json(config)),
              nlohmann::ordered_json::object()};
  TokenAdditions additions;
  const nlohmann::json plain = files.config;
  const Component settings(plain, files.config_where);
  if (settings.has("add_bos_token")) additions.add_bos = settings.flag("add_bos_token");
  if (settings.has("add_eos_token")) additions.add_eos = settings.flag("add_eos_token");
  if (settings.has("added_tokens_decoder")) {
    additions.where = files.config_where + ", added_tokens_decoder";
    read_decoder(settings.object("added_tokens_decoder"), additions);
    read_names(files, additions);
  } else {
    const std::string added = path_of("added_tokens.json");
    additions.where = printable(added);
    files.map = object_of(read_json(map));
    read_names(files, additions);
    read_added(object_of(read_json(added)), control_tokens(files), additions);
  }
  std::stable_sort(additions.numbered.begin(), additions.numbered.end(),
                   [](const GivenToken& a, const GivenToken& b) { return *a.id < *b.id; });
  return additions;
}

void add_tokens(const TokenAdditions& additions, AddedTokenList& list) {
  std::set<std::string> names;
  for (const auto& [name, token] : additions.named) names.insert(token.content);
  if (!additions.has_decoder) {  // then the tokenizer's own tokens that have a name become special
    const std::vector<AddedToken> own = list.tokens();
    for (AddedToken token : own)
      if (names.contains(token.content)) {
        token.special = true;
        list.add(std::move(token));
      }
  }
  for (const GivenToken& given : additions.numbered) {
    if (const std::string clause = list.contradiction(given.content, *given.id); !clause.empty())
      throw Error(ExitCode::malformed_file, fmt::format("{}: {}.", additions.where, clause),
                  "Take the tokenizer's files of the model's release, all of them.");
    // added_tokens.json has no flags, so those of tokenizer.json stay.
    if (!additions.has_decoder && list.contains(given.content)) continue;
    list.add(added_token(given, given.special || names.contains(given.content), true));
  }
  std::set<std::string> known;  // if a new token has several names, the last says the flags
  for (const AddedToken& token : list.tokens()) known.insert(token.content);
  for (const auto& [name, given] : additions.named)
    if (!known.contains(given.content)) list.add(added_token(given, true, false));
  for (const GivenToken& given : additions.extra)
    if (!known.contains(given.content)) list.add(added_token(given, given.special, false));
}

std::map<std::string, std::string> controls_of(const TokenAdditions& additions) {
  std::map<std::string, std::string> controls;
  for (const auto& [name, token] : additions.named) controls[name] = token.content;
  return controls;
}

}  // namespace sluice
