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

bool operator==(const RopeScaling& a, const RopeScaling& b) {
  const bool none = a.factor == 1 && b.factor == 1;
  return none || (a.factor == b.factor && a.low == b.low && a.high == b.high &&
                  a.original_context == b.original_context);
}

}  // namespace

void ConfigReader::complain(const std::string& what, const std::string& remedy) const {
  throw Error(ExitCode::malformed_file, fmt::format("{}: {}", where_, what), remedy);
}

bool ConfigReader::has(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
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

void ConfigReader::require_text(const char* key, std::initializer_list<const char*> supported) const {
  if (!has(key)) return;
  const std::string value = text(key);
  for (const char* one : supported)
    if (value == one) return;
  complain(fmt::format("{} \"{}\" is not supported, only \"{}\".", key, printable(value),
                       fmt::join(supported, "\" and \"")),
           kUnsupported);
}

void ConfigReader::require_texts(const char* key, const char* supported) const {
  if (!has(key)) return;
  if (!at(key).is_array()) complain(fmt::format("{} is {}, not a list.", key, shown(at(key))), kCorrect);
  for (const nlohmann::json& value : at(key)) {
    if (!value.is_string()) complain(fmt::format("{} has {}, not a string.", key, shown(value)), kCorrect);
    if (value != supported)
      complain(fmt::format("{} \"{}\" is not supported, only \"{}\".", key,
                           printable(value.get<std::string>()), supported),
               kUnsupported);
  }
}

// rope_scaling and rope_parameters have the same keys; rope_theta may stand in either.
ConfigReader::Rope ConfigReader::rope_section(const char* key) const {
  if (!has(key)) return {};
  if (!at(key).is_object()) complain(fmt::format("{} is {}, not an object.", key, shown(at(key))), kCorrect);
  const ConfigReader section(at(key), fmt::format("{}, {}", where_, key));
  section.require_number("partial_rotary_factor", 1);
  Rope rope;
  if (section.has("rope_theta")) rope.theta = section.number("rope_theta");
  const std::string type = section.text_or("rope_type", section.text_or("type", "default"));
  if (type != section.text_or("type", type))
    section.complain("rope_type and type disagree.", "Remove one of them.");
  if (type == "default") {
    rope.scaling = RopeScaling{};
  } else if (type == "llama3") {
    rope.scaling = RopeScaling{.factor = section.number("factor"),
                               .low = section.number("low_freq_factor"),
                               .high = section.number("high_freq_factor"),
                               .original_context = static_cast<double>(
                                   section.integer("original_max_position_embeddings", kContextMax))};
  } else {
    section.complain(fmt::format("rope type \"{}\" is not supported.", printable(type)),
                     "Use a model with rope type \"default\" or \"llama3\".");
  }
  return rope;
}

void ConfigReader::rope(double& theta, RopeScaling& scaling) const {
  require_number("partial_rotary_factor", 1);
  const Rope older = rope_section("rope_scaling"), newer = rope_section("rope_parameters");
  std::optional<double> found;
  const auto agree = [&](const std::optional<double>& value) {
    if (value && found && *value != *found)
      complain(fmt::format("rope_theta is given as {} and as {}.", *found, *value), "Remove one of them.");
    if (value) found = value;
  };
  if (has("rope_theta")) found = number("rope_theta");
  agree(older.theta);
  agree(newer.theta);
  if (!found)
    complain("neither rope_theta nor rope_parameters says the base of the rotary embedding.",
             "Add \"rope_theta\" with the value that the model was trained with.");
  if (older.scaling && newer.scaling && !(*older.scaling == *newer.scaling))
    complain("rope_scaling and rope_parameters disagree.", "Remove one of them.");
  if (*found <= 0) complain(fmt::format("rope_theta {} is not positive.", *found), kCorrect);
  theta = *found;
  scaling = newer.scaling.value_or(older.scaling.value_or(RopeScaling{}));
}

void write_rope(const ModelConfig& config, nlohmann::ordered_json& file) {
  const RopeScaling& s = config.rope_scaling;
  file["rope_theta"] = config.rope_theta;
  file["rope_scaling"] = nullptr;
  if (s.factor == 1) return;
  file["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", s.factor},
                          {"low_freq_factor", s.low},
                          {"high_freq_factor", s.high},
                          {"original_max_position_embeddings", static_cast<int64_t>(s.original_context)}};
}

}  // namespace sluice
