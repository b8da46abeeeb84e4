#include "tools/prepare/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/base/error.h"
#include "engine/base/strict_json.h"

namespace sluice {

namespace {

constexpr std::array kNames = {"messages", "role",   "content", "conversations", "from",      "value",
                               "tools",    "system", "prompt",  "completion",    "text",      "instruction",
                               "input",    "output", "history", "user",          "assistant", "tool"};

std::pair<std::string, std::string> split_at_equals(const std::string& text, const char* option) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == text.npos || equals + 1 == text.size())
    throw Error(ExitCode::usage, fmt::format("`{}` for --{} is no NAME=VALUE.", printable(text), option),
                fmt::format("See `sluice prepare --help`."));
  return {text.substr(0, equals), text.substr(equals + 1)};
}

NameMap names_of(const std::vector<std::string>& given) {
  NameMap names;
  for (const std::string& one : given) {
    const auto [name, key] = split_at_equals(one, "data-keys");
    if (std::find(kNames.begin(), kNames.end(), name) == kNames.end())
      throw Error(ExitCode::usage,
                  fmt::format("`{}` of --data-keys is no key that is known.", printable(name)),
                  fmt::format("Known are {}.", fmt::join(kNames, ", ")));
    names[name] = key;
  }
  return names;
}

}  // namespace

std::string template_values_json(const std::vector<std::string>& given) {
  nlohmann::ordered_json values = nlohmann::ordered_json::object();
  for (const std::string& one : given) {
    const auto [name, json] = split_at_equals(one, "template-values");
    try {
      values[name] = parse_strict_json_line(json);
    } catch (const std::invalid_argument& error) {
      throw Error(
          ExitCode::usage,
          fmt::format("The value of {} in --template-values is no JSON: {}.", printable(name), error.what()),
          "Write a string with its quotes, as in 'date_string=\"26 Jul 2024\"'.");
    }
  }
  return values.dump();
}

namespace {

// \n, \t and \\ as in C.
std::string unescaped(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    const bool escapes = text[i] == '\\' && (next == 'n' || next == 't' || next == '\\');
    out += !escapes ? text[i] : next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
    i += escapes;
  }
  return out;
}

}  // namespace

PrepareRequest prepare_request(const Options& options, const std::vector<std::string>& files,
                               const std::string& tokenizer, int64_t vocabulary) {
  const TextOptions& text = options.text;
  PrepareRequest request{.files = files,
                         .tokenizer = tokenizer,
                         .chat_template = text.chat_template,
                         .form = text.form,
                         .names = names_of(text.keys),
                         .separator = unescaped(text.separator),
                         .skips_bad = text.bad_records == BadRecords::skipped,
                         .vocabulary = vocabulary};
  request.choices = {text.train_on, text.control_tokens, template_values_json(text.template_values)};
  return request;
}

std::string cache_directory(const Options& options) {
  if (!options.text.cache.empty()) return options.text.cache;
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  if (cache && *cache) return (std::filesystem::path(cache) / "sluice").string();
  if (home && *home) return (std::filesystem::path(home) / ".cache" / "sluice").string();
  throw Error(ExitCode::usage, "There is no home directory to keep prepared data in.", "Give --cache DIR.");
}

}  // namespace sluice
