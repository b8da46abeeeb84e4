// What a run's metrics say last.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tests/support/cli_support.h"

namespace sluice {

// The last line that is whole; "{}" if there is none.
inline std::string last_metrics_line(const std::string& file) {
  if (!std::filesystem::exists(file)) return "{}";
  std::string text = read_text_file(file, 1 << 24);
  text.resize(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1);
  const auto lines = lines_of(text);
  return lines.empty() ? "{}" : lines.back();
}

nlohmann::json last_metrics(const std::string& file);  // that line, parsed

}  // namespace sluice
