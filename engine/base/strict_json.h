// Strict reading of JSON from files that anybody may have written.
//
// A key given twice, a zero byte, or nesting beyond 64 levels is an error; so is anything that is not JSON.
// Callers: readers of machine descriptions, models' configurations, tokenizers, indexes of weights,
// manifests, chats.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace sluice {

// A list or object whose many entries the caller takes one by one as they are parsed. In the result, the list
// or object is empty.
struct JsonEntries {
  std::string path;  // keys from the outermost object, separated by points: "model.vocab"
  // `key` is empty in a list. In an object, `take` must itself find keys that are given twice.
  std::function<void(std::string&& key, nlohmann::json&& value)> take;
};

// Throws std::invalid_argument. Its what() is to be put behind "FILE: ", for example "line 3 is not valid
// JSON". In it, names from the text are escaped (printable()).
nlohmann::json parse_strict_json(const std::string& text, const std::vector<JsonEntries>& taken = {});
// As parse_strict_json(), but keys stay in the order of the text.
nlohmann::ordered_json parse_strict_json_in_order(const std::string& text);
// As parse_strict_json_in_order(), for a text of one line. Integers beyond 64 bits are refused. what() says
// "column 12 is not valid JSON".
nlohmann::ordered_json parse_strict_json_line(const std::string& line);

}  // namespace sluice
