#include "tools/command/wrap.h"

#include <algorithm>
#include <string_view>

namespace sluice {
namespace {

// Appends `text`, whose first letter stands at `column`. Further lines begin at `indent`.
void append_broken(std::string& out, std::string_view text, size_t column, size_t indent, size_t columns) {
  for (;;) {
    const size_t room = columns > column ? columns - column : 0;
    if (text.size() <= room) break;
    size_t end = text.rfind(' ', room);
    const size_t word = text.find_first_not_of(' ');
    if (end == std::string_view::npos || end <= word) end = text.find(' ', std::max(room, word));
    if (end == std::string_view::npos) break;
    const size_t next = text.find_first_not_of(' ', end);
    if (next == std::string_view::npos) break;
    out += text.substr(0, text.find_last_not_of(' ', end) + 1);
    out += '\n' + std::string(indent, ' ');
    text.remove_prefix(next);
    column = indent;
  }
  out += text;
}

}  // namespace

void append_wrapped(std::string& out, const std::string& head, const std::string& text, size_t indent,
                    size_t columns) {
  out += head;
  if (indent > 0) out += head.size() < indent ? "" : "\n";
  out += std::string(head.size() < indent ? indent - head.size() : indent, ' ');
  const size_t begin = out.size();
  append_broken(out, text, indent, indent, columns);
  std::replace(out.begin() + static_cast<std::ptrdiff_t>(begin), out.end(), '\t', ' ');
  out += '\n';
}

void append_list(std::string& out, const std::string& head, const std::vector<std::string>& items,
                 size_t indent) {
  append_wrapped(out, head, unbroken_list(items), indent);
}

std::string unbroken_list(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) {
    text += text.empty() ? "" : ", ";
    for (const char c : item) text += c == ' ' ? '\t' : c;
  }
  return text;
}

size_t second_part(const std::string& line) {
  const size_t first = line.find_first_not_of(' '), gap = line.find("  ", first);
  if (first == std::string::npos || gap == std::string::npos) return 0;
  const size_t second = line.find_first_not_of(' ', gap);
  return second == std::string::npos ? 0 : second;
}

std::string fitted(const std::string& text, size_t columns) {
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const size_t first = std::min(line.find_first_not_of(' '), line.size()), second = second_part(line);
    const size_t indent = second > 0 && second <= columns / 2 ? second : first + 2;
    append_broken(out, line, 0, indent, columns);
    if (end < text.size()) out += '\n';
    begin = end + 1;
  }
  return out;
}

}  // namespace sluice
