// Models by name: a preset of a family, or an inline description that changes a preset's sizes.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <type_traits>

#include "engine/base/suggest.h"
#include "models/families/family.h"

namespace sluice {
namespace {

[[noreturn]] void reject(const std::string& what, const std::string& remedy) {
  throw Error(ExitCode::usage, what, remedy);
}

int64_t parse_size(const std::string& where, const std::string& key, const std::string& value, int64_t most) {
  int64_t size = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, size);
  if (error != std::errc{} || stop != end || size < 1 || size > most)
    reject(fmt::format("{}: {}={} is not an integer from 1 to {}.", where, key, printable(value), most),
           "Give a plain decimal number.");
  return size;
}

bool parse_flag(const std::string& where, const SizeKey& key, const std::string& value) {
  if (value == key.yes || value == "1" || value == "true") return true;
  if (value != key.no && value != "0" && value != "false")
    reject(fmt::format("{}: {}={} is neither {} nor {}.", where, key.name, printable(value), key.yes, key.no),
           fmt::format("Give {0}={1} or {0}={2}.", key.name, key.yes, key.no));
  return false;
}

double parse_factor(const std::string& where, const std::string& key, const std::string& value) {
  if (value == "none") return 0;
  double factor = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, factor);
  if (error != std::errc{} || stop != end || !std::isfinite(factor) || factor <= 0)
    reject(fmt::format("{}: {}={} is not a positive number.", where, key, printable(value)),
           fmt::format("Give a number such as 1.25, or {}=none.", key));
  return factor;
}

// "8", or "8/16/32".
std::vector<int64_t> parse_sizes(const std::string& where, const SizeKey& key, const std::string& value) {
  std::vector<int64_t> sizes;
  for (size_t begin = 0; begin <= value.size();) {
    const size_t end = std::min(value.find('/', begin), value.size());
    sizes.push_back(parse_size(where, key.name, value.substr(begin, end - begin), key.most));
    begin = end + 1;
  }
  return sizes;
}

void set_value(ModelConfig& c, const SizeKey& key, const std::string& where, const std::string& value) {
  const auto set = [&](auto field) {
    using Value = std::remove_reference_t<decltype(c.*field)>;
    if constexpr (std::is_same_v<Value, bool>)
      c.*field = parse_flag(where, key, value);
    else if constexpr (std::is_same_v<Value, std::vector<int64_t>>)
      c.*field = parse_sizes(where, key, value);
    else if (std::is_same_v<Value, double> && key.is_factor)
      c.*field = static_cast<Value>(parse_factor(where, key.name, value));
    else
      c.*field = static_cast<Value>(parse_size(where, key.name, value, key.most));
  };
  std::visit(set, key.field);
}

// Reads "key=value,key=value" into the config; returns the keys that were given.
std::set<std::string> set_values(ModelConfig& c, const Family& family, const std::string& where,
                                 const std::string& description) {
  const std::vector<SizeKey> known = size_keys(family);
  std::set<std::string> given;
  for (size_t begin = 0; begin <= description.size();) {
    const size_t end = std::min(description.find(',', begin), description.size());
    const std::string item = description.substr(begin, end - begin);
    const size_t equals = item.find('=');
    if (equals == std::string::npos)
      reject(fmt::format("{}: \"{}\" is not of the form key=value.", where, printable(item)),
             "Write for example layers=6,width=384,heads=6.");
    const std::string key = item.substr(0, equals);
    const auto found =
        std::find_if(known.begin(), known.end(), [&](const SizeKey& k) { return key == k.name; });
    if (found == known.end()) {
      std::vector<std::string> names;
      for (const SizeKey& k : known) names.push_back(k.name);
      reject(fmt::format("{}: \"{}\" is no size of a {} model.", where, printable(key), family.name),
             suggestion(key, names));
    }
    set_value(c, *found, where, item.substr(equals + 1));
    if (!given.insert(key).second) reject(fmt::format("{}: {} is given twice.", where, key), "Remove one.");
    begin = end + 1;
  }
  return given;
}

// Derives the sizes that were not given from those that were.
void derive(ModelConfig& c, const Family& family, const ModelConfig& preset, const std::string& where,
            const std::set<std::string>& given) {
  const bool reshaped = given.contains("width") || given.contains("heads");
  if (reshaped && !given.contains("head_size")) {
    if (c.width % c.heads != 0)
      reject(fmt::format("{}: {} heads do not divide the width {}.", where, c.heads, c.width),
             "Give a width that is a multiple of the heads.");
    c.head_size = c.width / c.heads;
  }
  if (!given.contains("kv_heads") && preset.kv_heads == preset.heads) c.kv_heads = c.heads;
  if (given.contains("width") && !given.contains("ffn")) c.ffn = family.ffn(c.width);
  // An expert's width follows the feed-forward part's, or stays in proportion to the model's.
  if ((given.contains("width") || given.contains("ffn")) && !given.contains("expert_ffn") && c.experts > 0)
    c.expert_ffn = preset.expert_ffn == preset.ffn
                       ? c.ffn
                       : std::max<int64_t>(1, preset.expert_ffn * c.width / preset.width);
  if (!c.expert_counts.empty()) c.experts = std::ranges::max(c.expert_counts);
  if (c.expert_counts.size() == 1) c.expert_counts.clear();
  if (c.expert_interval > 0) place_experts(c);
  if (given.contains("width") && !given.contains("shared_ffn"))
    c.shared_expert_ffn = preset.shared_expert_ffn * c.width / preset.width;
  if (given.contains("vocab")) c.special_tokens = {{"bos_token_id", "null"}, {"eos_token_id", "null"}};
}

struct Found {
  const Family* family = nullptr;
  ModelConfig config;
};

Found find_preset(const std::string& name) {
  for (const Family* family : families())
    for (const Preset& preset : family->presets())
      if (name == preset.name || (!name.empty() && name == preset.alias)) {
        Found found{family, preset.config};
        found.config.family = family->name;
        return found;
      }
  return {};
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Family* family : families())
    for (const Preset& preset : family->presets()) {
      names.push_back(preset.name);
      if (*preset.alias != '\0') names.push_back(preset.alias);
    }
  return names;
}

ModelConfig config_from_name(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  const Family* named = colon == std::string::npos ? nullptr : find_family(name);
  const auto [family, preset] = find_preset(named ? named->plain_preset : name);
  if (family == nullptr)
    reject(fmt::format("There is no model preset \"{}\".", printable(name)),
           suggestion(name, preset_names()));
  ModelConfig config = preset;
  const std::string where = "--model " + printable(name);
  if (colon != std::string::npos) {
    const std::set<std::string> given = set_values(config, *family, where, text.substr(colon + 1));
    derive(config, *family, preset, where, given);
  }
  check_config(config, where, ExitCode::usage);
  return config;
}

}  // namespace sluice
