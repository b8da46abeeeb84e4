#include "tools/profile/names.h"

#include <algorithm>
#include <sstream>
#include <string_view>

namespace sluice {

extern const char* const kProgramDocument;

namespace {

std::string without_backticks(std::string text) {
  std::erase(text, '`');
  const size_t begin = text.find_first_not_of(' '), end = text.find_last_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, end + 1 - begin);
}

// The rows "| `NAME`, `NAME` | MEANING |" below a heading of docs/program.md, one for each name.
std::vector<NameMeaning> names_below(const std::string& heading) {
  std::vector<NameMeaning> rows;
  std::istringstream document(kProgramDocument);
  bool below = false;
  for (std::string line; std::getline(document, line);) {
    if (line.starts_with("## ")) below = line == heading;
    if (!below || !line.starts_with("| `")) continue;
    const size_t bar = line.find('|', 1);
    const std::string meaning = without_backticks(line.substr(bar + 1, line.rfind('|') - bar - 1));
    std::istringstream names(line.substr(1, bar - 1));
    for (std::string name; std::getline(names, name, ',');)
      rows.push_back({without_backticks(name), meaning});
  }
  return rows;
}

std::string_view first_word(std::string_view name) { return name.substr(0, name.find('.')); }

}  // namespace

bool has_form(const std::string& buffer, const std::string& name) {
  return first_word(buffer) == first_word(name);
}

std::vector<NameMeaning> instruction_names() { return names_below("## Instructions"); }

std::vector<NameMeaning> buffer_names(const Program& program) {
  std::vector<NameMeaning> rows = names_below("## Buffers");
  std::erase_if(rows, [&](const NameMeaning& row) {
    return std::ranges::none_of(program.buffers, [&](const Buffer& b) { return has_form(b.name, row.name); });
  });
  return rows;
}

}  // namespace sluice
