#include "engine/base/strict_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <vector>

#include "engine/base/error.h"

namespace sluice {

nlohmann::json parse_strict_json(const std::string& text) {
  using Json = nlohmann::json;
  constexpr int kDepthMax = 64;        // no format that we read needs more than five
  constexpr size_t kKeyShownMax = 60;  // bytes
  const auto not_json = [&](size_t byte) {
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(byte), '\n');
    return std::invalid_argument(fmt::format("line {} is not valid JSON", line));
  };
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) throw std::invalid_argument("it is empty");
  // The parser would take a zero byte for the end.
  if (const size_t zero = text.find('\0'); zero != std::string::npos) throw not_json(zero);

  std::vector<std::set<std::string>> keys;  // of the objects that are open, outermost first
  const auto see = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kDepthMax) throw std::invalid_argument("it is nested too deeply");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      throw std::invalid_argument(
          fmt::format("\"{}\" is given twice", printable(value.get<std::string>().substr(0, kKeyShownMax))));
    return true;
  };
  try {
    return Json::parse(text, see);
  } catch (const Json::parse_error& error) {
    if (error.byte > text.size()) throw std::invalid_argument("it ends in the middle of its JSON");
    throw not_json(error.byte > 0 ? error.byte - 1 : 0);
  } catch (const Json::out_of_range&) {
    throw std::invalid_argument("it holds a number that is too large");
  }
}

}  // namespace sluice
