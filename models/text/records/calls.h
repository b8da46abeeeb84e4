// Tools in a record, and calls of tools. JSON that a record has in a string is parsed, since templates
// expect it parsed. All functions throw as parse_record() does. Callers: parse_record(), SampleMaker.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/text/records/record_reader.h"

namespace sluice {

// The list of tools; null: none.
nlohmann::ordered_json tools_of(const RecordReader& reader);

// For a message whose content is calls, as ShareGPT and ms-swift write them: an object with a name, or a
// list of such objects, perhaps behind a thought. The calls become "tool_calls", and the thought stays the
// content. `number`, `role`: of the message, for error messages.
void take_calls_of_text(nlohmann::ordered_json& message, size_t number, const std::string& role);

// Makes "tool_calls" of a message a list of objects, and its "function_call" an object. A key whose value is
// empty is removed. `number`: of the message, from 1, for error messages.
void parse_calls(nlohmann::ordered_json& message, size_t number);

// Makes the arguments of every call an object, {} if they are blank. Returns one entry for each call with
// arguments, in order: the string, if they were given as a string. Empty if no arguments were a string.
std::vector<std::optional<std::string>> parse_arguments(nlohmann::ordered_json& messages);

// Returns the conversation with all arguments of calls as they were given, or as strings of JSON. A message
// without content gets content null. OpenAI writes arguments as such strings, and content null beside calls.
enum class Arguments : uint8_t { as_given, as_strings };
Conversation with_arguments(const Conversation& conversation, Arguments arguments);

// Whether any tool is a function itself, as in the Responses API, and not an object with a "function".
bool has_bare_functions(const Conversation& conversation);
Conversation with_functions_in_tools(const Conversation& conversation);

}  // namespace sluice
