#include "models/text/records/calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/strict_json.h"

namespace sluice {

namespace {

using Json = nlohmann::ordered_json;

// The arguments of a call; nullptr where it has none.
Json* arguments_of(Json& call) {
  if (!call.is_object()) return nullptr;
  Json* function = &call;
  if (const auto inner = call.find("function"); inner != call.end() && inner->is_object()) function = &*inner;
  const auto arguments = function->find("arguments");
  return arguments == function->end() ? nullptr : &*arguments;
}

// The arguments of all calls of the messages, in order.
std::vector<Json*> all_arguments(Json& messages) {
  std::vector<Json*> all;
  const auto add = [&](Json& call) {
    if (Json* arguments = arguments_of(call)) all.push_back(arguments);
  };
  for (Json& message : messages) {
    if (const auto calls = message.find("tool_calls"); calls != message.end() && calls->is_array())
      std::for_each(calls->begin(), calls->end(), add);
    if (const auto call = message.find("function_call"); call != message.end()) add(*call);
  }
  return all;
}

bool has_only_blanks(const std::string& text) { return text.find_first_not_of(" \t\r\n") == text.npos; }

// Parses a string as a JSON object. `what`: the string's name, for error messages.
Json object_in(const std::string& text, const char* what) {
  constexpr size_t kShown = 60;
  const auto refuse = [&](const std::string& why) {
    malformed("{} are a string that is no JSON object, {}{}", what, printable(text.substr(0, kShown)), why);
  };
  try {
    Json parsed = parse_strict_json_line(text);
    if (parsed.is_object()) return parsed;
  } catch (const std::invalid_argument& error) {
    refuse(fmt::format(": {}", error.what()));
  }
  refuse("");
  return nullptr;
}

// Returns the value that a string has as JSON, null for a blank string, and any other value as it is.
Json parsed(const Json& value) {
  if (!value.is_string()) return value;
  const std::string& text = value.get_ref<const std::string&>();
  if (has_only_blanks(text)) return nullptr;
  try {
    return parse_strict_json_line(text);
  } catch (const std::invalid_argument&) {
    return value;
  }
}

}  // namespace

Json tools_of(const RecordReader& reader) {
  const Json* tools = reader.find("tools");
  if (!tools) return nullptr;
  if (tools->is_array()) {
    Json list = *tools;
    for (Json& tool : list)
      if (tool.is_string()) tool = object_in(tool.get<std::string>(), "tools");
    return list.empty() ? Json(nullptr) : list;
  }
  if (!tools->is_string()) malformed("\"tools\" is neither a list nor a string");
  const std::string text = tools->get<std::string>();
  if (has_only_blanks(text)) return nullptr;
  try {
    Json parsed = parse_strict_json_line(text);
    if (parsed.is_array()) return parsed.empty() ? Json(nullptr) : parsed;
  } catch (const std::invalid_argument&) {
  }
  malformed("\"tools\" is no list in JSON");
}

void take_calls_of_text(Json& message, size_t number, const std::string& role) {
  const auto refuse = [&] {
    throw RefusedRecord(
        fmt::format("message {} of {} is no call in JSON, as {{\"name\": ..., \"arguments\": {{...}}}}",
                    number, printable(role)),
        fmt::format("Correct it, or train all such messages as the texts that they are with --data-keys "
                    "assistant={}.",
                    printable(role)));
  };
  const auto content = message.find("content");
  if (message.contains("tool_calls") || content == message.end()) refuse();
  static constexpr std::string_view kThoughtEnd = "</think>";
  std::string thought;
  if (content->is_string()) {
    const std::string& text = content->get_ref<const std::string&>();
    if (const size_t end = text.rfind(kThoughtEnd); end != text.npos) {
      thought = text.substr(0, end + kThoughtEnd.size());
      *content = text.substr(thought.size());
    }
  }
  Json calls = parsed(*content);
  if (calls.is_object()) calls = Json::array({std::move(calls)});
  if (!calls.is_array() || calls.empty()) refuse();
  Json all = Json::array();
  for (Json& call : calls) {
    if (!call.is_object()) refuse();
    Json function = call.contains("function") && call["function"].is_object() ? std::move(call["function"])
                                                                              : std::move(call);
    if (!function.contains("name") || !function["name"].is_string()) refuse();
    if (!function.contains("arguments")) {
      function["arguments"] = function.contains("parameters") ? function["parameters"] : Json::object();
      function.erase("parameters");
    }
    all.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  if (thought.empty())
    message.erase(content);
  else
    *content = thought;
  message["tool_calls"] = std::move(all);
}

void parse_calls(Json& message, size_t number) {
  if (const auto calls = message.find("tool_calls"); calls != message.end()) {
    Json list = parsed(*calls);
    if (list.is_object()) list = Json::array({std::move(list)});
    if (!list.is_null() && !list.is_array())
      malformed("\"tool_calls\" of message {} are no list of objects", number);
    for (Json& call : list)
      if (call = parsed(call); !call.is_object())
        malformed("\"tool_calls\" of message {} are no list of objects", number);
    if (list.empty())
      message.erase(calls);
    else
      *calls = std::move(list);
  }
  if (const auto call = message.find("function_call"); call != message.end()) {
    Json object = parsed(*call);
    if (!object.is_null() && !object.is_object())
      malformed("\"function_call\" of message {} is no object", number);
    if (object.empty())
      message.erase(call);
    else
      *call = std::move(object);
  }
}

std::vector<std::optional<std::string>> parse_arguments(Json& messages) {
  std::vector<std::optional<std::string>> given;
  bool any = false;
  for (Json* arguments : all_arguments(messages)) {
    given.emplace_back();
    if (!arguments->is_string()) continue;
    any = true;
    const std::string& text = given.back().emplace(arguments->get<std::string>());
    *arguments = has_only_blanks(text) ? Json::object() : object_in(text, "the arguments of a call");
  }
  if (!any) given.clear();
  return given;
}

Conversation with_arguments(const Conversation& conversation, Arguments as) {
  Json messages = *conversation.messages;
  const std::vector<Json*> arguments = all_arguments(messages);
  for (size_t i = 0; i < arguments.size(); ++i)
    if (i < conversation.given_arguments.size() && conversation.given_arguments[i])
      *arguments[i] = *conversation.given_arguments[i];
    else if (as == Arguments::as_strings && !arguments[i]->is_string())
      *arguments[i] = arguments[i]->dump();
  for (Json& message : messages)
    if (!message.contains("content")) message["content"] = nullptr;
  Conversation out = conversation;
  out.messages = std::make_shared<const Json>(std::move(messages));
  return out;
}

namespace {
bool is_bare_function(const Json& tool) {
  return tool.is_object() && tool.contains("name") && !tool.contains("function");
}
}  // namespace

bool has_bare_functions(const Conversation& conversation) {
  return conversation.tools &&
         std::any_of(conversation.tools->begin(), conversation.tools->end(), is_bare_function);
}

Conversation with_functions_in_tools(const Conversation& conversation) {
  Json tools = *conversation.tools;
  for (Json& tool : tools)
    if (is_bare_function(tool)) {
      Json function = std::move(tool);
      function.erase("type");
      tool = {{"type", "function"}, {"function", std::move(function)}};
    }
  Conversation out = conversation;
  out.tools = std::make_shared<const Json>(std::move(tools));
  return out;
}

}  // namespace sluice
