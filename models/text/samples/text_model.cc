#include "models/text/samples/text_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/strict_json.h"
#include "models/files/tokenizer_files.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;
constexpr const char* kDefault = "default";
constexpr const char* kForTools = "tool_use";

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Returns null if there is no such file.
nlohmann::json read_json(const std::string& directory, const char* name) {
  const std::string path = (fs::path(directory) / name).string();
  if (!is_there(path)) return nullptr;
  try {
    return parse_strict_json(read_text_file(path, kTokenizerConfigBytesMax));
  } catch (const std::invalid_argument& error) {
    throw Error(ExitCode::malformed_file, fmt::format("{}: {}.", printable(path), error.what()),
                "Copy the model's directory anew.");
  }
}

// A string of an object; empty if it has none of that name.
std::string text_at(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

struct NamedTemplate {
  std::string source, place;  // the file that it stands in
};
// Templates by name. A template without a name is "default".
using Templates = std::map<std::string, NamedTemplate>;

// "chat_template" of tokenizer_config.json: a string, or a list of named ones.
void add_templates_of_config(const nlohmann::json& config, const std::string& place, Templates& to) {
  if (!config.is_object() || !config.contains("chat_template")) return;
  const nlohmann::json& given = config["chat_template"];
  if (given.is_string()) to[kDefault] = {given.get<std::string>(), place};
  if (!given.is_array()) return;
  for (const nlohmann::json& one : given)
    if (one.is_object() && !text_at(one, "name").empty() && !text_at(one, "template").empty())
      to[text_at(one, "name")] = {text_at(one, "template"), place};
}

// chat_template.jinja and additional_chat_templates/NAME.jinja.
void add_templates_of_files(const std::string& directory, Templates& to) {
  const auto add = [&](const fs::path& path, const std::string& name) {
    to[name] = {read_text_file(path.string(), kTemplateBytesMax), path.string()};
  };
  if (const fs::path beside = fs::path(directory) / "chat_template.jinja"; is_there(beside))
    add(beside, kDefault);
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(fs::path(directory) / "additional_chat_templates", missing))
    if (entry.path().extension() == ".jinja") add(entry.path(), entry.path().stem().string());
}

// Templates in files take the place of all templates in tokenizer_config.json.
Templates templates_of(const std::string& directory, const nlohmann::json& config) {
  Templates templates;
  add_templates_of_files(directory, templates);
  if (templates.empty())
    add_templates_of_config(config, (fs::path(directory) / "tokenizer_config.json").string(), templates);
  return templates;
}

void add_ids(const nlohmann::json& file, std::vector<uint32_t>& ids) {
  if (!file.is_object() || !file.contains("eos_token_id")) return;
  const nlohmann::json& given = file["eos_token_id"];
  for (const nlohmann::json& id : given.is_array() ? given : nlohmann::json::array({given}))
    if (id.is_number_unsigned() && id.get<uint64_t>() <= UINT32_MAX &&
        std::find(ids.begin(), ids.end(), id.get<uint32_t>()) == ids.end())
      ids.push_back(id.get<uint32_t>());
}

ChatTemplate chat_of(const NamedTemplate& named) {
  try {
    return ChatTemplate(named.source);
  } catch (const Error& error) {
    throw Error(error.code(),
                fmt::format("The chat template of {}: {}", printable(named.place), error.what()),
                error.remedy());
  }
}

// Without a text the model has no template.
void set_chat(TextModel& model, const NamedTemplate& named) {
  model.chat_source = named.source;
  if (!named.source.empty()) model.chat = chat_of(named);
}

NamedTemplate template_in(const std::string& file) { return {read_text_file(file, kTemplateBytesMax), file}; }

// `chosen`: the file or the name of a template.
NamedTemplate template_of(const Templates& templates, const std::string& chosen) {
  std::error_code ignored;
  if (fs::is_regular_file(chosen, ignored)) return template_in(chosen);
  if (const auto named = templates.find(chosen); named != templates.end()) return named->second;
  std::vector<std::string> names;
  for (const auto& [name, named] : templates) names.push_back(printable(name));
  throw Error(
      ExitCode::usage,
      fmt::format("--chat-template {} is neither a file nor a template of the tokenizer.", printable(chosen)),
      names.empty()
          ? "Give a file with a Jinja template."
          : fmt::format("Give a file with a Jinja template, or one of: {}.", fmt::join(names, ", ")));
}

// `chosen`: what open_text_model() calls `chat_template`.
void choose_chat(TextModel& model, const Templates& templates, const std::string& chosen) {
  if (!chosen.empty()) return set_chat(model, template_of(templates, chosen));
  if (const auto plain = templates.find(kDefault); plain != templates.end()) set_chat(model, plain->second);
  if (const auto tools = templates.find(kForTools); tools != templates.end()) {
    model.tools_chat_source = tools->second.source;
    model.tools_chat = chat_of(tools->second);
  }
  for (const auto& [name, named] : templates)
    if (name != kDefault) model.template_names.push_back(name);
}

void set_end(TextModel& model) {
  const auto eos = model.controls.find("eos_token");
  if (eos != model.controls.end()) model.end = model.tokenizer.id_of(eos->second);
  if (model.end && model.tokenizer.is_numbered(*model.end)) return;
  model.end.reset();  // the model has never seen it
  model.no_end = eos == model.controls.end()
                     ? "tokenizer_config.json names no eos_token"
                     : fmt::format("the eos_token of tokenizer_config.json, {}, is no token of the tokenizer",
                                   printable(eos->second));
}

}  // namespace

bool has_tokenizer(const std::string& directory) {
  return !directory.empty() && (is_there(fs::path(directory) / "tokenizer.json") ||
                                is_there(fs::path(directory) / "tokenizer.model"));
}

TextModel text_model_of_bytes(const std::string& template_file) {
  TextModel model{.tokenizer = Tokenizer::of_bytes()};
  if (!template_file.empty()) set_chat(model, template_of({}, template_file));
  model.no_end = "bytes have none";
  return model;
}

TextModel open_text_model(const std::string& directory, const std::string& chat_template) {
  TextModel model{.tokenizer = Tokenizer::open(directory)};
  const nlohmann::json config = read_json(directory, "tokenizer_config.json");
  model.controls = model.tokenizer.controls();
  choose_chat(model, templates_of(directory, config), chat_template);
  set_end(model);
  add_ids(read_json(directory, "generation_config.json"), model.ends);
  if (model.ends.empty()) add_ids(read_json(directory, "config.json"), model.ends);
  if (model.end && std::find(model.ends.begin(), model.ends.end(), *model.end) == model.ends.end())
    model.ends.push_back(*model.end);
  return model;
}

void check_chat_template(const std::string& directory, const std::string& chat_template) {
  const bool has_directory = has_tokenizer(directory);
  chat_of(template_of(
      has_directory ? templates_of(directory, read_json(directory, "tokenizer_config.json")) : Templates(),
      chat_template));
}

void set_end_token(TextModel& model, const std::string& token) {
  const std::optional<uint32_t> id = model.tokenizer.id_of(token);
  if (!id)
    throw Error(ExitCode::usage,
                fmt::format("--eos-token {} is no token of the tokenizer.", printable(token)),
                "Give one that tokenizer.json lists, as <|im_end|>.");
  model.controls["eos_token"] = token;
  model.end = id;
  model.ends = {*id};
  model.no_end.clear();
}

}  // namespace sluice
