// Strict reading of JSON from files that anybody may have written.
//
// A key given twice, a zero byte, or nesting beyond 64 levels is an error; so is anything that is not JSON.
// Callers: readers of machine descriptions, models' configurations, indexes of weights and manifests.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice {

// Throws std::invalid_argument. Its what() is to be put behind "FILE: ", for example "line 3 is not valid
// JSON". In it, names from the text are escaped (printable()).
nlohmann::json parse_strict_json(const std::string& text);

}  // namespace sluice
