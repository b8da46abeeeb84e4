// JSON of files that anybody may have written, read with the rules that the format leaves open made strict.
//
// A key given twice, a zero byte, or nesting beyond 64 levels is an error; so is anything that is not JSON.
// Callers: readers of machine descriptions, models' configurations, indexes of weights and manifests; any
// thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice {

// Throws std::invalid_argument whose what() goes on after "FILE: ", as in "line 3 is not valid JSON"; names
// from the text are printable.
nlohmann::json parse_strict_json(const std::string& text);

}  // namespace sluice
