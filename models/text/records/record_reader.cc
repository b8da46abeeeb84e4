#include "models/text/records/record_reader.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/base/error.h"

namespace sluice {

namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& value, const std::string& key) {
  if (!value.is_string()) malformed("\"{}\" is no string", printable(key));
  return value.get<std::string>();
}

std::string lower_of(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace

bool is_empty(const Json& value) {
  return value.is_null() || (value.is_structured() && value.empty()) ||
         (value.is_string() && value.get_ref<const std::string&>().empty());
}

std::string role_of(const std::string& given, const NameMap& names) {
  static constexpr std::array<std::array<const char*, 2>, 19> kElsewhere = {{
      {"human", "user"},
      {"prompter", "user"},
      {"gpt", "assistant"},
      {"bot", "assistant"},
      {"chatbot", "assistant"},
      {"model", "assistant"},
      {"chatgpt", "assistant"},
      {"bing", "assistant"},
      {"bard", "assistant"},
      {"ai", "assistant"},
      {"user", "user"},
      {"assistant", "assistant"},
      {"system", "system"},
      {"tool", "tool"},
      {"function_call", "assistant"},
      {"tool_call", "assistant"},
      {"tool_calls", "assistant"},
      {"observation", "tool"},
      {"tool_response", "tool"},
  }};
  for (const char* known : {"user", "assistant", "system", "tool"})
    for (auto [named, end] = names.equal_range(known); named != end; ++named)
      if (named->second == given) return known;
  const std::string lower = lower_of(given);
  for (const auto& [other, known] : kElsewhere)
    if (lower == other) return known;
  return given;
}

bool is_call_role(const std::string& given, const NameMap& names) {
  for (const auto& [known, named] : names)
    if (named == given) return false;
  const std::string lower = lower_of(given);
  return lower == "function_call" || lower == "tool_call" || lower == "tool_calls";
}

std::string shell_word(const std::string& text) {
  const bool is_plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || c >= 0x80 ||
           std::string_view("_-.,=/:@+").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (is_plain) return printable(text);
  std::string quoted = "'";
  for (const char c : printable(text)) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::string data_keys_option(const NameMap& given, const std::string& added) {
  std::string all;
  for (const auto& [known, name] : given) all += known + "=" + name + ",";
  return "--data-keys " + shell_word(all + added);
}

std::string RecordReader::name(const char* known) const {
  const auto [first, end] = names_.equal_range(known);
  if (first == end) return known;
  const auto found = std::find_if(first, end, [&](const auto& named) {
    const auto value = object_.find(named.second);
    return value != object_.end() && !value->is_null();
  });
  return found == end ? first->second : found->second;
}

bool RecordReader::is_named(const std::string& key) const {
  return std::any_of(names_.begin(), names_.end(), [&](const auto& named) { return named.second == key; });
}

const Json* RecordReader::peek(const char* known) const {
  const auto found = object_.find(name(known));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool RecordReader::is_null(const char* known) const {
  const auto found = object_.find(name(known));
  return found != object_.end() && found->is_null();
}

const Json* RecordReader::find(const char* known) const {
  const Json* value = peek(known);
  if (value) read_.push_back(value);
  return value;
}

const Json& RecordReader::at(const char* known) const {
  if (const Json* value = find(known)) return *value;
  malformed("\"{}\" is missing", printable(name(known)));
}

std::string RecordReader::text(const char* known) const { return text_of(at(known), name(known)); }

std::string RecordReader::text_or_empty(const char* known) const {
  const Json* value = find(known);
  return value ? text_of(*value, name(known)) : "";
}

const Json& RecordReader::list(const char* known) const {
  const Json& value = at(known);
  const std::string key = printable(name(known));
  if (value.is_string() && value.get_ref<const std::string&>().starts_with('['))
    throw RefusedRecord(fmt::format("\"{}\" is no list, but a string", key),
                        "If that is JSON, convert the file", fmt::format(".[\"{}\"] |= fromjson", key));
  if (!value.is_array()) malformed("\"{}\" is no list", key);
  return value;
}

std::string RecordReader::keys() const {
  constexpr size_t kNamed = 12, kBytes = 40;
  std::vector<std::string> named;
  for (const auto& [key, value] : object_.items())
    if (named.size() < kNamed) named.push_back(printable(key.substr(0, kBytes)));
  if (object_.size() > kNamed) named.push_back("others");
  return named.empty() ? "no key" : fmt::format("{}", fmt::join(named, ", "));
}

std::vector<std::string> RecordReader::unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_.items())
    if (!is_empty(value) && std::find(read_.begin(), read_.end(), &value) == read_.end()) keys.push_back(key);
  return keys;
}

}  // namespace sluice
