// The files of all parts as one Markdown page. A row that was not measured says so; nothing is estimated.
// Pure function.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice {

// `parts`: what PartFile::json() gives, by part, `tests` among them; an empty object for one that was not
// run.
std::string gpu_report(const std::map<std::string, nlohmann::ordered_json>& parts);

}  // namespace sluice
