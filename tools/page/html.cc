#include "tools/page/html.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/base/error.h"

namespace sluice {

extern const char* const kPageFrame;
extern const char* const kPageStyle;
extern const char* const kPageScript;

std::string html_escaped(const std::string& text) {
  const std::map<char, const char*> kNamed = {
      {'<', "&lt;"}, {'>', "&gt;"}, {'&', "&amp;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  std::string out;
  for (const char c : printable(text)) {
    const auto at = kNamed.find(c);
    if (at == kNamed.end())
      out += c;
    else
      out += at->second;
  }
  return out;
}

std::string safe_json(const nlohmann::ordered_json& value) {
  const std::string text = value.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == '<' || c == '>' || c == '&')
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += c;
  }
  return out;
}

std::string section(const std::string& heading, const std::string& content) {
  return fmt::format("<section>\n<h2>{}</h2>\n{}</section>\n", heading, content);
}

std::string table(const std::vector<Column>& columns, const std::vector<std::vector<std::string>>& rows,
                  bool total) {
  std::string out = "<div class=\"wide\"><table>\n<tr>";
  for (const Column& c : columns) out += fmt::format("<th{}>{}</th>", c.number ? " class=\"n\"" : "", c.name);
  out += "</tr>\n";
  for (size_t r = 0; r < rows.size(); ++r) {
    out += total && r + 1 == rows.size() ? "<tr class=\"total\">" : "<tr>";
    for (size_t c = 0; c < rows[r].size(); ++c)
      out += fmt::format("<td{}>{}</td>", columns[c].number ? " class=\"n\"" : "", rows[r][c]);
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::string filled(std::string_view text, const std::map<std::string, std::string, std::less<>>& values) {
  std::string out;
  for (size_t at = 0;;) {
    const size_t open = text.find("{{", at), close = text.find("}}", open);
    if (close == std::string_view::npos) return out.append(text.substr(at));
    out.append(text.substr(at, open - at));
    const auto value = values.find(text.substr(open + 2, close - open - 2));
    CHECK(value != values.end(), std::string(text.substr(open, close - open)));
    out += value->second;
    at = close + 2;
  }
}

std::string whole_page(const std::string& title, const std::string& style, const std::string& body,
                       const std::string& script) {
  return filled(
      kPageFrame,
      {{"title", title}, {"style", kPageStyle + style}, {"body", body}, {"script", kPageScript + script}});
}

}  // namespace sluice
