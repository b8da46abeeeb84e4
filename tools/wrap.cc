#include "tools/wrap.h"

#include <algorithm>

namespace sluice {

void append_wrapped(std::string& out, const std::string& head, const std::string& text, size_t indent) {
  constexpr size_t kPage = 100;
  const size_t room = kPage - indent;
  out += head +
         (head.size() < indent ? std::string(indent - head.size(), ' ') : "\n" + std::string(indent, ' '));
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

}  // namespace sluice
