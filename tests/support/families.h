// Inline model descriptions (see `config_from_name`) made from the registry, so that tests cover every
// family.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <variant>

#include "models/families/family.h"

namespace sluice {

// The value of the key in the config, as a description has it.
inline std::string value_of(const SizeKey& key, const ModelConfig& config) {
  const auto text = [&](auto field) {
    if constexpr (std::is_same_v<decltype(field), double ModelConfig::*>) {
      if (key.is_factor) return config.*field == 0 ? std::string("none") : fmt::format("{}", config.*field);
      return fmt::format("{:.0f}", config.*field);
    } else if constexpr (std::is_same_v<decltype(field), std::vector<int64_t> ModelConfig::*>) {
      return expert_counts_text(config);
    } else if constexpr (std::is_same_v<decltype(field), bool ModelConfig::*>) {
      return std::string(config.*field ? key.yes : key.no);
    } else {
      return fmt::format("{}", config.*field);
    }
  };
  return std::visit(text, key.field);
}

// A description with every size of the config: "gpt2:layers=12,width=768,...".
inline std::string described(const Family& family, const ModelConfig& config) {
  std::string text = family.name;
  for (const SizeKey& key : size_keys(family))
    text += fmt::format("{}{}={}", text == family.name ? ':' : ',', key.name, value_of(key, config));
  return text;
}

inline bool takes(const Family& family, const std::string& key) {
  return std::ranges::any_of(size_keys(family), [&](const SizeKey& k) { return key == k.name; });
}

// A description with two heads, or with four on two key/value heads where the family has those, and with four
// experts where it has experts. `sizes` are the other sizes.
inline std::string with_heads(const Family& family, const std::string& sizes) {
  const std::string heads = takes(family, "kv_heads") ? "heads=4,kv_heads=2" : "heads=2";
  const std::string experts = takes(family, "experts") ? ",experts=4,top=2,expert_ffn=48" : "";
  const std::string shared = takes(family, "shared_ffn") ? ",shared_ffn=64" : "";
  return fmt::format("{}:{}{}{},{}", family.name, heads, experts, shared, sizes);
}

}  // namespace sluice
