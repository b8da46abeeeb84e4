// Tools and calls of them in a record: what is JSON in a string there becomes what it says, as templates
// expect it. Caller: parse_record(). All throw as it does.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/text/records/record_reader.h"

namespace sluice {

// The list of tools; null: none.
nlohmann::ordered_json tools_of(const RecordReader& reader);

// "tool_calls" and "function_call" of a message become a list of objects and an object. What is empty there
// goes. `number`: of the message, from 1, for what is thrown.
void parse_calls(nlohmann::ordered_json& message, size_t number);

// Arguments of all calls become objects, blank ones {}. Returns, in order, those that were strings, as they
// were; empty: none was.
std::vector<std::optional<std::string>> parse_arguments(nlohmann::ordered_json& messages);

}  // namespace sluice
