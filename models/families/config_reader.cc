#include "models/families/config_reader.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"

namespace sluice {
namespace {

// A value as messages show it. Files may hold anything, nested to any depth.
std::string shown(const nlohmann::json& value) {
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

const char* const kCorrect = "Correct the file.";
const char* const kUnsupported =
    "Choose another model: Sluice does not compute this, so results could be wrong.";

}  // namespace

void ConfigReader::complain(const std::string& what, const std::string& remedy) const {
  throw Error(ExitCode::malformed_file, fmt::format("{}: {}", where_, what), remedy);
}

bool ConfigReader::has(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

bool ConfigReader::is_list(const char* key) const { return has(key) && at(key).is_array(); }

bool ConfigReader::is_null(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && found->is_null();
}

const nlohmann::json& ConfigReader::at(const char* key) const {
  if (!has(key)) complain(fmt::format("{} is missing.", key), fmt::format("Add \"{}\" to the file.", key));
  return object_[key];
}

int64_t ConfigReader::integer(const char* key, int64_t most) const {
  const nlohmann::json& value = at(key);
  if (!value.is_number_integer())
    complain(fmt::format("{} is {}, not an integer.", key, shown(value)), kCorrect);
  const bool in_range = value.is_number_unsigned() && value.get<uint64_t>() >= 1 &&
                        value.get<uint64_t>() <= static_cast<uint64_t>(most);
  if (!in_range) complain(fmt::format("{} is {}, outside 1 to {}.", key, shown(value), most), kCorrect);
  return value.get<int64_t>();
}

int64_t ConfigReader::integer_or(const char* key, int64_t most, int64_t otherwise) const {
  return has(key) ? integer(key, most) : otherwise;
}

double ConfigReader::number(const char* key) const {
  const nlohmann::json& value = at(key);
  if (!value.is_number() || !std::isfinite(value.get<double>()))
    complain(fmt::format("{} is {}, not a number.", key, shown(value)), kCorrect);
  return value.get<double>();
}

double ConfigReader::number_or(const char* key, double otherwise) const {
  return has(key) ? number(key) : otherwise;
}

bool ConfigReader::flag_or(const char* key, bool otherwise) const {
  if (!has(key)) return otherwise;
  const nlohmann::json& value = at(key);
  if (!value.is_boolean()) complain(fmt::format("{} is {}, not true or false.", key, shown(value)), kCorrect);
  return value.get<bool>();
}

std::string ConfigReader::text(const char* key) const {
  const nlohmann::json& value = at(key);
  if (!value.is_string()) complain(fmt::format("{} is {}, not a string.", key, shown(value)), kCorrect);
  return value.get<std::string>();
}

std::string ConfigReader::text_or(const char* key, const std::string& otherwise) const {
  return has(key) ? text(key) : otherwise;
}

void ConfigReader::reject_flag(const char* key) const {
  if (flag_or(key, false)) complain(fmt::format("{} is true, which is not supported.", key), kUnsupported);
}

void ConfigReader::require_number(const char* key, double supported) const {
  const double value = number_or(key, supported);
  if (value != supported)
    complain(fmt::format("{} is {}, only {} is supported.", key, value, supported), kUnsupported);
}

void ConfigReader::reject_present(const char* key) const {
  if (has(key)) complain(fmt::format("{} is {}, which is not supported.", key, shown(at(key))), kUnsupported);
}

void ConfigReader::require_one_of(const char* key, const std::string& value,
                                  std::initializer_list<const char*> supported) const {
  for (const char* one : supported)
    if (value == one) return;
  complain(fmt::format("{} \"{}\" is not supported, only \"{}\".", key, printable(value),
                       fmt::join(supported, "\" and \"")),
           kUnsupported);
}

void ConfigReader::require_text(const char* key, std::initializer_list<const char*> supported) const {
  if (has(key)) require_one_of(key, text(key), supported);
}

void ConfigReader::require_texts(const char* key, std::initializer_list<const char*> supported) const {
  if (!has(key)) return;
  for (const std::string& value : texts(key)) require_one_of(key, value, supported);
}

ConfigReader ConfigReader::section(const char* key) const {
  if (!at(key).is_object()) complain(fmt::format("{} is {}, not an object.", key, shown(at(key))), kCorrect);
  return {at(key), fmt::format("{}, {}", where_, key)};
}

std::vector<int64_t> ConfigReader::integers(const char* key, int64_t most) const {
  std::vector<int64_t> out;
  for (const double value : numbers(key)) {
    if (value != std::floor(value) || value < 1 || value > static_cast<double>(most))
      complain(fmt::format("{} has {}, no integer from 1 to {}.", key, value, most), kCorrect);
    out.push_back(static_cast<int64_t>(value));
  }
  if (out.empty()) complain(fmt::format("{} is an empty list.", key), kCorrect);
  return out;
}

std::vector<double> ConfigReader::numbers(const char* key) const {
  if (!at(key).is_array()) complain(fmt::format("{} is {}, not a list.", key, shown(at(key))), kCorrect);
  std::vector<double> out;
  for (const nlohmann::json& value : at(key)) {
    if (!value.is_number() || !std::isfinite(value.get<double>()))
      complain(fmt::format("{} has {}, not a number.", key, shown(value)), kCorrect);
    out.push_back(value.get<double>());
  }
  return out;
}

std::vector<std::string> ConfigReader::texts(const char* key) const {
  if (!at(key).is_array()) complain(fmt::format("{} is {}, not a list.", key, shown(at(key))), kCorrect);
  std::vector<std::string> out;
  for (const nlohmann::json& value : at(key)) {
    if (!value.is_string()) complain(fmt::format("{} has {}, not a string.", key, shown(value)), kCorrect);
    out.push_back(value.get<std::string>());
  }
  return out;
}

}  // namespace sluice
