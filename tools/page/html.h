// Pages that the command writes: one file that needs no other file and no network. The frame, the style and
// the script that all pages share are page.html, page.css and page.js, built into the command
// (cmake/embed.cmake). Tables are plain HTML, so that they can be read without a script.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// Text for HTML content and attributes: characters with a meaning there are escaped, control characters
// shown.
std::string html_escaped(const std::string& text);
// JSON text that may also stand in a page: characters outside ASCII and those with a meaning in HTML are
// escaped.
std::string safe_json(const nlohmann::ordered_json& value);

// Parts of a page. Their arguments are HTML already.
std::string section(const std::string& heading, const std::string& content);
struct Column {
  std::string name;
  bool number = true;
};
// `total`: the last row is a sum.
std::string table(const std::vector<Column>& columns, const std::vector<std::vector<std::string>>& rows,
                  bool total = false);

// The template with every {{name}} replaced, in one pass: inserted text is not searched again.
std::string filled(std::string_view text, const std::map<std::string, std::string, std::less<>>& values);

// In the page, `style` and `script` follow the style and the script that all pages share.
std::string whole_page(const std::string& title, const std::string& style, const std::string& body,
                       const std::string& script);

}  // namespace sluice
