// report.html: one file that needs no other file and no network. The template, style and script are
// tools/profile/report.*, built into the command (cmake/embed.cmake).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice {

// `lanes` is from profile_lanes(). Tables are plain HTML, so that they can be read without a script.
std::string profile_page(const nlohmann::ordered_json& facts, const nlohmann::ordered_json& lanes);

// Text for HTML content and attributes: characters with a meaning there are escaped, control characters
// shown.
std::string html_escaped(const std::string& text);

}  // namespace sluice
