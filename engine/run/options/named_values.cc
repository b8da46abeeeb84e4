#include "engine/run/options/named_values.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/base/error.h"
#include "engine/base/strict_json.h"

namespace sluice {

std::pair<std::string, std::string> split_at_equals(const std::string& text, const char* option) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == text.npos || equals + 1 == text.size())
    throw Error(ExitCode::usage, fmt::format("`{}` for --{} is no NAME=VALUE.", printable(text), option),
                fmt::format("See `sluice prepare --help`."));
  return {text.substr(0, equals), text.substr(equals + 1)};
}

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

}  // namespace sluice
