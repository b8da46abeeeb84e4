// The sources of the tree as lines, for tests about the tree itself. Read from the repository root.
#pragma once

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace sluice {

namespace fs = std::filesystem;

constexpr const char* kFolders[] = {"engine", "models", "offload", "cpu_optim", "gpu", "tools", "tests"};

using Lines = std::vector<std::string>;

inline Lines lines_of_file(const std::string& path) {
  std::ifstream file(path);
  Lines lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

struct Source {
  std::string path;  // from the repository root
  Lines lines;       // line n is lines[n - 1]
};

// Each is "path:line: why: text", so that editors and terminals link to it.
using Offences = std::vector<std::string>;

inline void add(Offences& offences, const Source& s, size_t index, const std::string& why) {
  const std::string text = index < s.lines.size() ? s.lines[index] : "";
  offences.push_back(s.path + ":" + std::to_string(index + 1) + ": " + why + ": " + text);
}

inline std::string report(const Offences& offences) {
  std::string out;
  for (const std::string& o : offences) out += "\n  " + o;
  return out;
}

inline bool is_header(const Source& s) { return s.path.ends_with(".h"); }

inline const std::vector<Source>& tree() {
  static const std::vector<Source> sources = [] {
    std::vector<Source> out;
    for (const char* folder : kFolders) {
      for (const auto& entry : fs::recursive_directory_iterator(folder)) {
        const std::string path = entry.path().generic_string();
        const bool source = path.ends_with(".h") || path.ends_with(".cc") || path.ends_with(".cu");
        if (!entry.is_regular_file() || !source) continue;
        out.push_back({path, lines_of_file(path)});
      }
    }
    std::sort(out.begin(), out.end(), [](const Source& a, const Source& b) { return a.path < b.path; });
    return out;
  }();
  return sources;
}

// A line without its comment, divided into code and the contents of string literals. The tree has no block
// comments.
struct Line {
  std::string code;
  std::vector<std::string> literals;
};

inline Line cut(const std::string& text) {
  Line line;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '/' && i + 1 < text.size() && text[i + 1] == '/') break;
    const bool separator =
        c == '\'' && i > 0 && std::isalnum(static_cast<unsigned char>(text[i - 1]));  // 100'000
    if (c != '"' && (c != '\'' || separator)) {
      line.code += c;
      continue;
    }
    std::string literal;
    for (++i; i < text.size() && text[i] != c; ++i) {
      if (text[i] == '\\') literal += text[i++];
      if (i < text.size()) literal += text[i];
    }
    line.code += c == '"' ? "\"\"" : "' '";
    if (c == '"') line.literals.push_back(literal);
  }
  return line;
}

// The name that a line includes, between `open` and `close`; empty if there is none.
inline std::string included(const std::string& line, char open, char close) {
  size_t at = line.find_first_not_of(" \t");
  if (at == std::string::npos || line[at] != '#') return "";
  at = line.find_first_not_of(" \t", at + 1);
  if (at == std::string::npos || line.compare(at, 7, "include") != 0) return "";
  const size_t begin = line.find(open, at + 7);
  const size_t end = begin == std::string::npos ? begin : line.find(close, begin + 1);
  return end == std::string::npos ? "" : line.substr(begin + 1, end - begin - 1);
}

}  // namespace sluice
