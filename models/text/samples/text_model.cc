#include "models/text/samples/text_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/strict_json.h"
#include "models/files/file.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr uint64_t kConfigBytesMax = uint64_t{64} << 20;  // tokenizer_config.json lists all added tokens
constexpr uint64_t kTemplateBytesMax = uint64_t{4} << 20;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// null where there is no such file.
Json read_json(const std::string& directory, const char* name) {
  const std::string path = (fs::path(directory) / name).string();
  if (!is_there(path)) return nullptr;
  try {
    return parse_strict_json(read_text_file(path, kConfigBytesMax));
  } catch (const std::invalid_argument& error) {
    throw Error(ExitCode::malformed_file, fmt::format("{}: {}.", printable(path), error.what()),
                "Copy the model's directory anew.");
  }
}

// A control token is a string, or an object with its content.
std::optional<std::string> content_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string())
    return value["content"].get<std::string>();
  return std::nullopt;
}

std::map<std::string, std::string> controls_of(const Json& config, const Json& map) {
  std::map<std::string, std::string> controls;
  for (const Json* file : {&map, &config}) {
    if (!file->is_object()) continue;
    for (const auto& [key, value] : file->items())
      if (key.ends_with("_token"))
        if (const auto content = content_of(value)) controls[key] = *content;
  }
  return controls;
}

// A string of an object; empty if it has none of that name.
std::string text_at(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// "chat_template" of tokenizer_config.json: a string, or a list of named ones.
std::string template_of(const Json& config) {
  if (!config.is_object() || !config.contains("chat_template")) return "";
  const Json& given = config["chat_template"];
  if (given.is_string()) return given.get<std::string>();
  if (!given.is_array()) return "";
  for (const Json& one : given)
    if (one.is_object() && text_at(one, "name") == "default") return text_at(one, "template");
  return "";
}

void add_ids(const Json& file, std::vector<uint32_t>& ids) {
  if (!file.is_object() || !file.contains("eos_token_id")) return;
  const Json& given = file["eos_token_id"];
  for (const Json& id : given.is_array() ? given : Json::array({given}))
    if (id.is_number_unsigned() && id.get<uint64_t>() <= UINT32_MAX &&
        std::find(ids.begin(), ids.end(), id.get<uint32_t>()) == ids.end())
      ids.push_back(id.get<uint32_t>());
}

// `where`: the file with the template's text, for messages. Without a text the model has no template.
void set_chat(TextModel& model, std::string source, const std::string& where) {
  model.chat_source = std::move(source);
  if (!model.chat_source.empty()) try {
      model.chat.emplace(model.chat_source);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("The chat template of {}: {}", printable(where), error.what()),
                  error.remedy());
    }
}

}  // namespace

bool has_tokenizer(const std::string& directory) {
  return !directory.empty() && (is_there(fs::path(directory) / "tokenizer.json") ||
                                is_there(fs::path(directory) / "tokenizer.model"));
}

TextModel text_model_of_bytes(const std::string& template_file) {
  TextModel model{.tokenizer = Tokenizer::of_bytes()};
  if (!template_file.empty())
    set_chat(model, read_text_file(template_file, kTemplateBytesMax), template_file);
  return model;
}

TextModel open_text_model(const std::string& directory, const std::string& template_file) {
  TextModel model{.tokenizer = Tokenizer::open(directory)};
  const Json config = read_json(directory, "tokenizer_config.json");
  model.controls = controls_of(config, read_json(directory, "special_tokens_map.json"));
  const std::string beside = (fs::path(directory) / "chat_template.jinja").string();
  if (!template_file.empty() || is_there(beside)) {
    const std::string& where = template_file.empty() ? beside : template_file;
    set_chat(model, read_text_file(where, kTemplateBytesMax), where);
  } else {
    set_chat(model, template_of(config), (fs::path(directory) / "tokenizer_config.json").string());
  }
  if (const auto eos = model.controls.find("eos_token"); eos != model.controls.end())
    model.end = model.tokenizer.id_of(eos->second);
  add_ids(read_json(directory, "generation_config.json"), model.ends);
  if (model.ends.empty()) add_ids(read_json(directory, "config.json"), model.ends);
  if (model.end && std::find(model.ends.begin(), model.ends.end(), *model.end) == model.ends.end())
    model.ends.push_back(*model.end);
  return model;
}

}  // namespace sluice
