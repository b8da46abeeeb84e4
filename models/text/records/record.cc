#include "models/text/records/record.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/base/error.h"
#include "engine/base/strict_json.h"

namespace sluice {

namespace {

using Json = nlohmann::ordered_json;

template <typename... Values>
[[noreturn]] void malformed(fmt::format_string<const Values&...> sentence, const Values&... values) {
  throw std::invalid_argument(fmt::format(sentence, values...));
}

// Keys and roles of one line, under the names that this code has for them.
class Reader {
 public:
  Reader(const Json& object, const NameMap& names) : object_(object), names_(names) {}

  std::string name(const char* known) const {
    const auto found = names_.find(known);
    return found == names_.end() ? known : found->second;
  }
  // nullptr: absent, or null
  const Json* find(const char* known) const {
    const auto found = object_.find(name(known));
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  const Json& at(const char* known) const {
    if (const Json* value = find(known)) return *value;
    malformed("\"{}\" is missing", printable(name(known)));
  }
  std::string text(const char* known) const { return text_of(at(known), name(known)); }
  std::string text_or_empty(const char* known) const {
    const Json* value = find(known);
    return value ? text_of(*value, name(known)) : "";
  }
  const Json& list(const char* known) const {
    const Json& value = at(known);
    if (!value.is_array()) malformed("\"{}\" is no list", printable(name(known)));
    return value;
  }

 private:
  static std::string text_of(const Json& value, const std::string& key) {
    if (!value.is_string()) malformed("\"{}\" is no string", printable(key));
    return value.get<std::string>();
  }
  const Json& object_;
  const NameMap& names_;
};

// A conversation that grows.
struct Messages {
  Json list = Json::array();
  std::vector<bool> trained = {};

  void add(const char* role, std::string content) {
    list.push_back({{"role", role}, {"content", std::move(content)}});
    trained.push_back(std::string_view(role) == "assistant");
  }
  Conversation finish(Json tools) {
    if (list.empty()) malformed("the conversation is empty");
    return {std::make_shared<const Json>(std::move(list)),
            tools.is_null() ? nullptr : std::make_shared<const Json>(std::move(tools)), std::move(trained)};
  }
};

// The role as templates know it.
std::string role_of(const std::string& given, const NameMap& names) {
  static constexpr std::array<std::array<const char*, 2>, 6> kElsewhere = {{{"human", "user"},
                                                                            {"gpt", "assistant"},
                                                                            {"bot", "assistant"},
                                                                            {"model", "assistant"},
                                                                            {"function_call", "assistant"},
                                                                            {"observation", "tool"}}};
  for (const char* known : {"user", "assistant", "system", "tool"}) {
    const auto named = names.find(known);
    if (named != names.end() && named->second == given) return known;
  }
  for (const auto& [other, known] : kElsewhere)
    if (given == other) return known;
  return given;
}

// Whether an answer is to be trained: "weight" and "train" say it, and are no part of the message.
bool take_weight(Json& message) {
  bool trained = true;
  if (const auto weight = message.find("weight"); weight != message.end()) {
    if (*weight != 0 && *weight != 1) malformed("a message's \"weight\" is neither 0 nor 1");
    trained = *weight == 1;
    message.erase(weight);
  }
  if (const auto train = message.find("train"); train != message.end()) {
    if (!train->is_boolean()) malformed("a message's \"train\" is neither true nor false");
    trained = train->get<bool>();
    message.erase(train);
  }
  return trained;
}

// Messages of a list with a role and a content each; other keys stay, those that are null do not.
void add_messages(const Json& list, const char* role_key, const char* content_key, const NameMap& names,
                  Messages& to) {
  for (const Json& element : list) {
    if (!element.is_object()) malformed("a message is no object");
    const Reader reader(element, names);
    Json message = {{"role", role_of(reader.text(role_key), names)}};
    if (const Json* content = reader.find(content_key)) {
      if (!content->is_string() && !content->is_array())
        malformed("a message's \"{}\" is neither a string nor a list", printable(reader.name(content_key)));
      message["content"] = *content;
    } else if (!element.contains("tool_calls")) {
      malformed("a message has no \"{}\"", printable(reader.name(content_key)));
    }
    for (const auto& [key, value] : element.items()) {
      if (value.is_null() || key == reader.name(role_key) || key == reader.name(content_key)) continue;
      // What the data's own names say counts before these.
      if (key == "role" || (key == "content" && message.contains(key))) continue;
      message.get_ref<Json::object_t&>().push_back({key, value});  // new, so that it need not be looked for
    }
    const bool trained = take_weight(message) && message["role"] == "assistant";
    to.list.push_back(std::move(message));
    to.trained.push_back(trained);
  }
}

Json tools_of(const Reader& reader) {
  const Json* tools = reader.find("tools");
  if (!tools) return nullptr;
  if (tools->is_array()) return tools->empty() ? Json(nullptr) : *tools;
  if (!tools->is_string()) malformed("\"tools\" is neither a list nor a string");
  const std::string text = tools->get<std::string>();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return nullptr;
  try {
    Json parsed = parse_strict_json_line(text);
    if (parsed.is_array()) return parsed.empty() ? Json(nullptr) : parsed;
  } catch (const std::invalid_argument&) {
  }
  malformed("\"tools\" is no list in JSON");
}

// Messages with the keys of their form, or of the other where the first message has the role of that only.
void add_dialog(const Json& list, bool is_sharegpt, const NameMap& names, Messages& to) {
  static constexpr const char* kKeys[2][2] = {{"role", "content"}, {"from", "value"}};
  const auto has = [&](const char* key) {
    return !list.empty() && list[0].is_object() && Reader(list[0], names).find(key) != nullptr;
  };
  const bool other = !has(kKeys[is_sharegpt][0]) && has(kKeys[!is_sharegpt][0]);
  const auto& keys = kKeys[is_sharegpt != other];
  add_messages(list, keys[0], keys[1], names, to);
}

Conversation read_messages(const Reader& reader, const NameMap& names) {
  Messages out;
  add_dialog(reader.list("messages"), false, names, out);
  return out.finish(tools_of(reader));
}

Conversation read_sharegpt(const Reader& reader, const NameMap& names) {
  Messages out;
  if (const std::string system = reader.text_or_empty("system"); !system.empty()) out.add("system", system);
  add_dialog(reader.list("conversations"), true, names, out);
  return out.finish(tools_of(reader));
}

Conversation read_alpaca(const Reader& reader) {
  Messages out;
  if (const std::string system = reader.text_or_empty("system"); !system.empty()) out.add("system", system);
  if (reader.find("history"))
    for (const Json& turn : reader.list("history")) {
      if (!turn.is_array() || turn.size() != 2 || !turn[0].is_string() || !turn[1].is_string())
        malformed("a turn of \"{}\" is no pair of strings", printable(reader.name("history")));
      out.add("user", turn[0].get<std::string>());
      out.add("assistant", turn[1].get<std::string>());
    }
  const std::string input = reader.text_or_empty("input");
  std::string question = reader.text("instruction");
  if (!input.empty()) question.append(1, '\n').append(input);
  out.add("user", std::move(question));
  out.add("assistant", reader.text("output"));
  return out.finish(nullptr);
}

Record read_completion(const Reader& reader, const NameMap& names) {
  const Json &prompt = reader.at("prompt"), &completion = reader.at("completion");
  if (prompt.is_string() && completion.is_string())
    return PlainText{prompt.get<std::string>(), completion.get<std::string>(), false};
  Messages out;
  add_messages(reader.list("prompt"), "role", "content", names, out);
  out.trained.assign(out.trained.size(), false);
  add_messages(reader.list("completion"), "role", "content", names, out);
  return out.finish(tools_of(reader));
}

RecordForm recognised(const Reader& reader) {
  if (reader.find("messages")) return RecordForm::messages;
  if (reader.find("conversations")) return RecordForm::sharegpt;
  if (reader.find("instruction") && reader.find("output")) return RecordForm::alpaca;
  if (reader.find("prompt") && reader.find("completion")) return RecordForm::completion;
  if (reader.find("text")) return RecordForm::text;
  throw UnknownForm(
      "it has none of the keys that are known: messages; conversations; instruction and output; prompt and "
      "completion; text");
}

}  // namespace

Record parse_record(const std::string& line, RecordForm form, const NameMap& names) {
  const Json object = parse_strict_json_line(line);
  if (!object.is_object()) malformed("it is no JSON object");
  const Reader reader(object, names);
  switch (form == RecordForm::automatic ? recognised(reader) : form) {
    case RecordForm::automatic:
      break;
    case RecordForm::messages:
      return read_messages(reader, names);
    case RecordForm::sharegpt:
      return read_sharegpt(reader, names);
    case RecordForm::alpaca:
      return read_alpaca(reader);
    case RecordForm::completion:
      return read_completion(reader, names);
    case RecordForm::text:
      return PlainText{"", reader.text("text"), true};
  }
  check_failed("a form", __FILE__, __LINE__, "");
}

}  // namespace sluice
