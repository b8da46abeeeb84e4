// What a run's metrics say last.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/cli_support.h"

namespace sluice {

// The last line that is whole, or an empty object if there is none.
inline nlohmann::json last_metrics(const std::string& file) {
  if (!std::filesystem::exists(file)) return nlohmann::json::object();
  std::string text = read_text_file(file, 1 << 24);
  text.resize(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1);
  const auto lines = lines_of(text);
  return lines.empty() ? nlohmann::json::object() : nlohmann::json::parse(lines.back());
}

}  // namespace sluice
