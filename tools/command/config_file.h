// Configuration files: the part of TOML that a flat list of options needs.
//
// A file is lines of `key = value`, blank lines and # comments. A value is a string ("..." with escapes, or
// '...'), a number, true, false, or an array of these over one or more lines. Sections, dates and nested
// tables are errors, as are keys given twice. (TOML 1.0, https://toml.io/en/v1.0.0.)
#pragma once

#include <string>
#include <vector>

namespace sluice {

struct ConfigEntry {
  std::string key;
  std::vector<std::string> values;  // as text, without quotes; only an array has several
  int line = 0;                     // from 1
};

// `name` is the file's name for messages. Throws Error(malformed_file) naming file and line.
std::vector<ConfigEntry> parse_config(const std::string& text, const std::string& name);

// Reads and parses a file. Also throws as read_text_file (engine/base/file.h) does.
std::vector<ConfigEntry> read_config(const std::string& path);

}  // namespace sluice
