#include "tools/command/wrap.h"

#include <algorithm>

namespace sluice {

namespace {

constexpr size_t kPage = 100;  // columns

std::string heading(const std::string& head, size_t indent) {
  return head +
         (head.size() < indent ? std::string(indent - head.size(), ' ') : "\n" + std::string(indent, ' '));
}

}  // namespace

void append_wrapped(std::string& out, const std::string& head, const std::string& text, size_t indent) {
  const size_t room = kPage - indent;
  out += heading(head, indent);
  size_t begin = 0;
  while (text.size() - begin > room) {
    size_t end = text.rfind(' ', begin + room);
    if (end == std::string::npos || end <= begin) end = text.find(' ', begin + room);
    if (end == std::string::npos) break;
    out += text.substr(begin, end - begin) + "\n" + std::string(indent, ' ');
    begin = end + 1;
  }
  out += text.substr(begin) + "\n";
}

void append_list(std::string& out, const std::string& head, const std::vector<std::string>& items,
                 size_t indent) {
  out += heading(head, indent);
  size_t column = indent;
  for (size_t i = 0; i < items.size(); ++i) {
    const size_t commas = i + 1 < items.size() ? 1 : 0;
    if (column > indent && column + 1 + items[i].size() + commas > kPage) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    }
    const std::string item = (column > indent ? " " : "") + items[i] + (commas ? "," : "");
    out += item;
    column += item.size();
  }
  out += "\n";
}

}  // namespace sluice
