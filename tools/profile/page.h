// report.html of a profile. The parts of body, style and script that only this page has are
// tools/profile/report.*, built into the command (cmake/embed.cmake).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice {

// `lanes` is from profile_lanes().
std::string profile_page(const nlohmann::ordered_json& facts, const nlohmann::ordered_json& lanes);

}  // namespace sluice
