// Tools and calls of them in a record: what is JSON in a string there becomes what it says, as templates
// expect it. Callers: parse_record(), as which they throw; SampleMaker.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/text/records/record_reader.h"

namespace sluice {

// The list of tools; null: none.
nlohmann::ordered_json tools_of(const RecordReader& reader);

// The content of a message that is a call, as ShareGPT and ms-swift write them: an object with a name, or a
// list of such, perhaps behind a thought, which stays the content. It becomes "tool_calls". `number`, `role`:
// of the message, for what is thrown.
void take_calls_of_text(nlohmann::ordered_json& message, size_t number, const std::string& role);

// "tool_calls" and "function_call" of a message become a list of objects and an object. What is empty there
// goes. `number`: of the message, from 1, for what is thrown.
void parse_calls(nlohmann::ordered_json& message, size_t number);

// Arguments of all calls become objects, blank ones {}. Returns, in order, those that were strings, as they
// were; empty: none was.
std::vector<std::optional<std::string>> parse_arguments(nlohmann::ordered_json& messages);

// The conversation with the arguments of its calls as they were given, or all as JSON in a string, and a
// content of null beside calls alone, as OpenAI has both.
enum class Arguments : uint8_t { as_given, as_strings };
Conversation with_arguments(const Conversation& conversation, Arguments arguments);

// Whether a tool is a function itself, as the Responses API has it, and not an object with one.
bool has_bare_functions(const Conversation& conversation);
Conversation with_functions_in_tools(const Conversation& conversation);

}  // namespace sluice
