// The files of all parts as one Markdown page. Rows without figures are shown as not measured; nothing is
// estimated. Pure function.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice {

// `parts`: PartFile::json() by name of the part; an empty object for a part that was not run; {"error": why}
// for one that cannot be read. Throws ordered_json::exception if a row lacks a value or has a wrong type.
std::string gpu_report(const std::map<std::string, nlohmann::ordered_json>& parts);

}  // namespace sluice
