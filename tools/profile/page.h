// report.html: one file that needs no other, opens from disk and runs without network. The template, style
// and script are tools/report/*, built into the program (cmake/embed.cmake).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice {

// `lanes` as profile_lanes() gives it. Tables are plain HTML, so that they can be read without a script.
std::string profile_page(const nlohmann::ordered_json& facts, const nlohmann::ordered_json& lanes);

// Text for HTML content and attributes: what means something there is escaped, control characters are shown.
std::string html_escaped(const std::string& text);

}  // namespace sluice
