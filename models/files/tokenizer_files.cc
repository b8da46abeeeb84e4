#include "models/files/tokenizer_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/file.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;
constexpr uint64_t kCopyBytes = 1 << 20;
constexpr const char* kTemplates = "additional_chat_templates";
constexpr const char* kDefault = "default";
constexpr const char* kOfTools = "tool_use";  // transformers takes it where a conversation has tools

// tokenizer.model.v3, vocab.txt, tokenization_qwen.py, spiece.model, tekken.json, qwen.tiktoken, ...
bool is_tokenizer_file(const std::string& name) {
  constexpr const char* kBegins[] = {
      "tokenizer",    "tokenization_", "vocab",   "merges.",         "special_tokens_",
      "added_tokens", "chat_template", "spiece.", "sentencepiece",   "tekken.",
      "source.spm",   "target.spm",    "bpe.",    "normalizer.json", "generation_config.json"};
  constexpr const char* kEnds[] = {".json", ".txt", ".jinja", ".model", ".py", ".spm", ".codes"};
  if (name.ends_with(".tiktoken")) return true;
  const bool begins = std::ranges::any_of(kBegins, [&](const char* b) { return name.starts_with(b); });
  return begins && (name.starts_with("tokenizer.model") ||
                    std::ranges::any_of(kEnds, [&](const char* end) { return name.ends_with(end); }));
}

void copy_whole(const fs::path& from, const fs::path& to) {
  const InputFile input(from.string());
  OutputFile output(to.string());
  std::vector<std::byte> piece(std::min(kCopyBytes, input.bytes()));
  while (output.written() < input.bytes()) {
    const uint64_t n = std::min<uint64_t>(piece.size(), input.bytes() - output.written());
    input.read(output.written(), piece.data(), n);
    output.write(piece.data(), n);
  }
  output.commit();
}

// Copies the regular files whose names `belongs` accepts. In place of a link, its target is copied.
template <class Belongs>
size_t copy_files(const fs::path& from, const fs::path& to, const Belongs& belongs) {
  size_t copied = 0;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(from, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!belongs(name) || !entry.is_regular_file(ignored)) continue;
    fs::create_directories(to, ignored);
    copy_whole(entry.path(), to / name);
    ++copied;
  }
  return copied;
}

// `object`: all of tokenizer_config.json or chat_template.json. Returns whether it had a template.
bool replace_in(nlohmann::ordered_json& object, const std::string& text) {
  if (!object.is_object() || !object.contains("chat_template")) return false;
  nlohmann::ordered_json& given = object["chat_template"];
  if (!given.is_array()) {
    given = text;
    return true;
  }
  nlohmann::ordered_json named = nlohmann::ordered_json::array();
  named.push_back({{"name", kDefault}, {"template", text}});
  for (const nlohmann::ordered_json& one : given) {
    const auto name = one.is_object() ? one.find("name") : one.end();
    if (name != one.end() && *name != kDefault && *name != kOfTools) named.push_back(one);
  }
  given = named;
  return true;
}

// Whether tokenizer_config.json has a list of templates. transformers 5 takes this list only where there is
// no chat_template.jinja.
bool has_list(const nlohmann::ordered_json& config) {
  return config.is_object() && config.contains("chat_template") && config["chat_template"].is_array();
}

}  // namespace

size_t copy_tokenizer(const std::string& from, const std::string& to) {
  if (from.empty()) return 0;
  const size_t copied = copy_files(from, to, is_tokenizer_file);
  return copied + copy_files(fs::path(from) / kTemplates, fs::path(to) / kTemplates,
                             [](const std::string& name) { return name.ends_with(".jinja"); });
}

void replace_chat_template(const std::string& directory, const std::string& text) {
  const fs::path in(directory), beside = in / "chat_template.jinja";
  std::error_code ignored;
  bool listed = false;
  for (const char* name : {"tokenizer_config.json", "chat_template.json"}) {
    const std::string path = (in / name).string();
    if (!fs::exists(path, ignored)) continue;
    nlohmann::ordered_json object =
        nlohmann::ordered_json::parse(read_text_file(path, kTokenizerConfigBytesMax), nullptr, false);
    if (!replace_in(object, text)) continue;
    write_text_file(path, object.dump(2) + "\n");
    listed |= has_list(object);
  }
  if (!listed || fs::exists(beside, ignored)) write_text_file(beside.string(), text);
  fs::remove(in / kTemplates / (std::string(kOfTools) + ".jinja"), ignored);
}

void replace_ends(const std::string& directory, const std::vector<uint32_t>& ids,
                  const std::map<std::string, std::string>& others) {
  const std::string path = (fs::path(directory) / "generation_config.json").string();
  std::error_code ignored;
  nlohmann::ordered_json settings = nlohmann::ordered_json::object();
  if (fs::exists(path, ignored))
    settings = nlohmann::ordered_json::parse(read_text_file(path, kTokenizerConfigBytesMax), nullptr, false);
  else
    for (const auto& [key, value] : others) settings[key] = nlohmann::ordered_json::parse(value);
  if (!settings.is_object()) settings = nlohmann::ordered_json::object();
  settings["eos_token_id"] = ids;
  if (ids.size() == 1) settings["eos_token_id"] = ids.front();
  write_text_file(path, settings.dump(2) + "\n");
}

void write_text_file(const std::string& path, const std::string& text) {
  OutputFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace sluice
