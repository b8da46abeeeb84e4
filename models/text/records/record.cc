#include "models/text/records/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
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

// Nothing that anybody could miss.
bool is_empty(const Json& value) {
  return value.is_null() || ((value.is_array() || value.is_object()) && value.empty()) ||
         (value.is_string() && value.get_ref<const std::string&>().empty());
}

// Keys and roles of one object, under the names that this code has for them.
class Reader {
 public:
  Reader(const Json& object, const NameMap& names) : object_(object), names_(names) {}

  std::string name(const char* known) const {
    const auto found = names_.find(known);
    return found == names_.end() ? known : found->second;
  }
  // nullptr: absent, or null
  const Json* peek(const char* known) const {
    const auto found = object_.find(name(known));
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  // The same of what counts as read from here on.
  const Json* find(const char* known) const {
    const Json* value = peek(known);
    if (value) read_.push_back(value);
    return value;
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
  // All keys, for messages.
  std::string keys() const {
    constexpr size_t kNamed = 12;
    std::vector<std::string> named;
    for (const auto& [key, value] : object_.items())
      if (named.size() < kNamed) named.push_back(printable(key));
    if (object_.size() > kNamed) named.push_back("others");
    return named.empty() ? "no key" : fmt::format("{}", fmt::join(named, ", "));
  }
  // Keys that have content and that nobody asked for.
  std::vector<std::string> unread() const {
    std::vector<std::string> keys;
    for (const auto& [key, value] : object_.items())
      if (!is_empty(value) && std::find(read_.begin(), read_.end(), &value) == read_.end())
        keys.push_back(key);
    return keys;
  }

 private:
  static std::string text_of(const Json& value, const std::string& key) {
    if (!value.is_string()) malformed("\"{}\" is no string", printable(key));
    return value.get<std::string>();
  }
  const Json& object_;
  const NameMap& names_;
  mutable std::vector<const Json*> read_;
};

// A conversation that grows.
struct Messages {
  Json list = Json::array();
  std::vector<bool> trained = {};
  size_t masked = 0;
  std::vector<std::string> asked_roles = {}, unread_keys = {};

  void add(const char* role, std::string content) {
    list.push_back({{"role", role}, {"content", std::move(content)}});
    trained.push_back(std::string_view(role) == "assistant");
  }
  // Before the first message, unless that is the same one.
  void put_system_first(const std::string& system) {
    if (system.empty()) return;
    if (!list.empty() && list[0]["role"] == "system") {
      if (list[0]["content"] == system) return;
      malformed("it has two system prompts, \"system\" and its first message");
    }
    list.insert(list.begin(), Json{{"role", "system"}, {"content", system}});
    trained.insert(trained.begin(), false);
  }
  Conversation finish(const Reader& reader);
};

// The role as templates know it.
std::string role_of(const std::string& given, const NameMap& names) {
  static constexpr std::array<std::array<const char*, 2>, 16> kElsewhere = {{
      {"human", "user"},
      {"prompter", "user"},
      {"gpt", "assistant"},
      {"bot", "assistant"},
      {"chatbot", "assistant"},
      {"model", "assistant"},
      {"chatgpt", "assistant"},
      {"bing", "assistant"},
      {"bard", "assistant"},
      {"ai", "assistant"},
      {"user", "user"},
      {"assistant", "assistant"},
      {"system", "system"},
      {"tool", "tool"},
      {"function_call", "assistant"},
      {"observation", "tool"},
  }};
  for (const char* known : {"user", "assistant", "system", "tool"}) {
    const auto named = names.find(known);
    if (named != names.end() && named->second == given) return known;
  }
  std::string lower = given;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const auto& [other, known] : kElsewhere)
    if (lower == other) return known;
  return given;
}

// The arguments of a call; nullptr where it has none.
Json* arguments_of(Json& call) {
  if (!call.is_object()) return nullptr;
  Json* function = &call;
  if (const auto inner = call.find("function"); inner != call.end() && inner->is_object()) function = &*inner;
  const auto arguments = function->find("arguments");
  return arguments == function->end() ? nullptr : &*arguments;
}

// Those of all calls of the messages, in order.
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

bool is_blank(const std::string& text) { return text.find_first_not_of(" \t\r\n") == text.npos; }

// What a string says that stands for an object.
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

// Arguments that are JSON in a string become what they say. Returns them as they were.
std::vector<std::optional<std::string>> parse_arguments(Json& messages) {
  std::vector<std::optional<std::string>> given;
  bool any = false;
  for (Json* arguments : all_arguments(messages)) {
    given.emplace_back();
    if (!arguments->is_string()) continue;
    any = true;
    const std::string& text = given.back().emplace(arguments->get<std::string>());
    *arguments = is_blank(text) ? Json::object() : object_in(text, "the arguments of a call");
  }
  if (!any) given.clear();
  return given;
}

// Whether a message says that it is to be trained: "weight" and "train" say it, and are no part of it.
std::optional<bool> take_mask(Json& message) {
  std::optional<bool> trained;
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

void refuse_masked_parts(const Json& message) {
  if (message["role"] != "assistant" || !message.contains("content") || !message["content"].is_array())
    return;
  for (const Json& part : message["content"])
    for (const char* key : {"weight", "train"})
      if (part.is_object() && part.contains(key) && (part[key] == 0 || part[key] == false))
        throw RefusedRecord(
            fmt::format("a part of an answer is not to be trained (\"{}\"), and answers are trained as a "
                        "whole",
                        key),
            fmt::format("Give the whole message \"{}\", or leave such records out with --bad-records skip.",
                        key));
}

// Whether a field says what the message has anyway.
bool is_said(const Json& message, const std::string& key, const Json& value, const NameMap& names) {
  return is_empty(value) ||
         (key == "role" ? value.is_string() && role_of(value.get<std::string>(), names) == message["role"]
                        : value == message[key]);
}

const Json& message_object(const Json& element) {
  if (element.is_string())
    throw RefusedRecord(
        "a message is a string, which does not tell who says it",
        "Convert the file: a message is an object, as {\"role\": \"user\", \"content\": \"Hello\"}.");
  if (!element.is_object()) malformed("a message is no object");
  return element;
}

// Messages of a list with a role and a content each; other keys stay, those that are null do not.
// `may_train`: their answers are.
void add_messages(const Json& list, const char* role_key, const char* content_key, const NameMap& names,
                  bool may_train, Messages& to) {
  for (const Json& element : list) {
    const Reader reader(message_object(element), names);
    Json message = {{"role", role_of(reader.text(role_key), names)}};
    if (const Json* content = reader.find(content_key)) {
      if (!content->is_string() && !content->is_array())
        malformed("a message's \"{}\" is neither a string nor a list", printable(reader.name(content_key)));
      message["content"] = *content;
    } else if (!element.contains("tool_calls") && !element.contains("function_call")) {
      malformed("a message has no \"{}\"", printable(reader.name(content_key)));
    }
    for (const auto& [key, value] : element.items()) {
      if (value.is_null() || key == reader.name(role_key) || key == reader.name(content_key)) continue;
      // What the data's own names say counts before these.
      if (key == "role" || (key == "content" && message.contains(key))) {
        if (!is_said(message, key, value, names)) to.unread_keys.push_back("message." + key);
        continue;
      }
      message.get_ref<Json::object_t&>().push_back({key, value});  // new, so that it need not be looked for
    }
    refuse_masked_parts(message);
    const std::optional<bool> mask = take_mask(message);
    const bool is_answer = may_train && message["role"] == "assistant";
    to.masked += is_answer && mask == false;
    if (!is_answer && mask == true) to.asked_roles.push_back(message["role"].get<std::string>());
    to.list.push_back(std::move(message));
    to.trained.push_back(is_answer && mask != false);
  }
}

Json tools_of(const Reader& reader) {
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
  if (is_blank(text)) return nullptr;
  try {
    Json parsed = parse_strict_json_line(text);
    if (parsed.is_array()) return parsed.empty() ? Json(nullptr) : parsed;
  } catch (const std::invalid_argument&) {
  }
  malformed("\"tools\" is no list in JSON");
}

// Messages with the keys of their form, or of the other where the first message has the role of that only.
void add_dialog(const Json& list, bool is_sharegpt, const NameMap& names, bool may_train, Messages& to) {
  static constexpr const char* kKeys[2][2] = {{"role", "content"}, {"from", "value"}};
  const auto has = [&](const char* key) {
    return !list.empty() && list[0].is_object() && Reader(list[0], names).find(key) != nullptr;
  };
  const bool other = !has(kKeys[is_sharegpt][0]) && has(kKeys[!is_sharegpt][0]);
  const auto& keys = kKeys[is_sharegpt != other];
  add_messages(list, keys[0], keys[1], names, may_train, to);
}

// "chat_template_kwargs" and "enable_thinking", which are variables of the template.
Json template_values_of(const Reader& reader) {
  Json values = nullptr;
  if (const Json* given = reader.find("chat_template_kwargs")) {
    if (!given->is_object()) malformed("\"chat_template_kwargs\" is no object");
    for (const char* own : {"messages", "tools", "add_generation_prompt"})
      if (given->contains(own)) malformed("\"chat_template_kwargs\" sets {}, which the record says", own);
    if (!given->empty()) values = *given;
  }
  if (const Json* given = reader.find("enable_thinking")) {
    if (!given->is_boolean()) malformed("\"enable_thinking\" is neither true nor false");
    values["enable_thinking"] = *given;
  }
  return values;
}

Conversation Messages::finish(const Reader& reader) {
  if (list.empty()) malformed("the conversation is empty");
  Json tools = tools_of(reader), values = template_values_of(reader);
  std::vector<std::optional<std::string>> given = parse_arguments(list);
  for (const std::string& key : reader.unread()) unread_keys.push_back(key);
  return {.messages = std::make_shared<const Json>(std::move(list)),
          .tools = tools.is_null() ? nullptr : std::make_shared<const Json>(std::move(tools)),
          .trained_messages = std::move(trained),
          .masked = masked,
          .asked_roles = std::move(asked_roles),
          .given_arguments = std::move(given),
          .template_values = values.is_null() ? nullptr : std::make_shared<const Json>(std::move(values)),
          .unread_keys = std::move(unread_keys)};
}

// `key`: of the list. sharegpt has its own names for role and content.
Conversation read_dialog(const Reader& reader, const char* key, bool is_sharegpt, const NameMap& names) {
  Messages out;
  add_dialog(reader.list(key), is_sharegpt, names, true, out);
  out.put_system_first(reader.text_or_empty("system"));
  return out.finish(reader);
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
  return out.finish(reader);
}

Record read_completion(const Reader& reader, const NameMap& names) {
  const Json &prompt = reader.at("prompt"), &completion = reader.at("completion");
  const std::string system = reader.text_or_empty("system");
  if (prompt.is_string() && completion.is_string())
    return PlainText{prompt.get<std::string>(), completion.get<std::string>(), false, system,
                     reader.unread()};
  Messages out;
  if (prompt.is_string())
    out.add("user", prompt.get<std::string>());
  else
    add_dialog(reader.list("prompt"), false, names, false, out);
  if (completion.is_string())
    out.add("assistant", completion.get<std::string>());
  else
    add_dialog(completion.is_object() ? Json::array({completion}) : reader.list("completion"), false, names,
               true, out);
  out.put_system_first(system);
  return out.finish(reader);
}

Record read_text(const Reader& reader) {
  std::string text = reader.text("text");
  return PlainText{"", std::move(text), true, "", reader.unread()};
}

std::optional<RecordForm> form_of(const Reader& reader) {
  if (reader.peek("messages")) return RecordForm::messages;
  if (reader.peek("conversations")) return RecordForm::sharegpt;
  if (reader.peek("instruction") && reader.peek("output")) return RecordForm::alpaca;
  if (reader.peek("prompt") && reader.peek("completion")) return RecordForm::completion;
  if (reader.peek("text")) return RecordForm::text;
  return std::nullopt;
}

// The key of what is a record itself, or a list of records; empty: there is none.
std::string key_of_records(const Json& object, const NameMap& names) {
  for (const auto& [key, value] : object.items()) {
    const Json* record = value.is_array() && !value.empty() ? &value[0] : &value;
    if (record->is_object() && form_of(Reader(*record, names))) return key;
  }
  return "";
}

RecordForm recognised(const Json& object, const Reader& reader, const NameMap& names) {
  if (const auto form = form_of(reader)) return *form;
  if (const std::string key = key_of_records(object, names); !key.empty())
    throw RefusedRecord(fmt::format("what it holds stands within \"{}\"", printable(key)),
                        fmt::format("Convert the file to one record a line: jq -c '.[\"{}\"]{}' FILE > "
                                    "OUT.jsonl.",
                                    printable(key), object[key].is_array() ? "[]" : ""));
  throw RefusedRecord(
      fmt::format("it has none of the keys that are known: messages; conversations; instruction and output; "
                  "prompt and completion; text. It has {}",
                  reader.keys()),
      "Say what its keys are called, as in --data-keys prompt=question,completion=answer, or leave out what "
      "is malformed with --bad-records skip.");
}

bool is_named(const NameMap& names, const std::string& key) {
  return std::any_of(names.begin(), names.end(), [&](const auto& name) { return name.second == key; });
}

// Preferences would teach what they warn of. A key that --data-keys names for something else is taken at that
// word.
void refuse_preferences(const Reader& reader, const NameMap& names) {
  if ((!reader.peek("chosen") && !reader.peek("rejected")) || is_named(names, "chosen") ||
      is_named(names, "rejected"))
    return;
  std::string remedy =
      "To train the chosen answers alone, give --data-keys completion=chosen where a prompt stands beside "
      "them, messages=chosen where they are whole conversations, or text=chosen where they are texts.";
  for (const char* key : {"messages", "conversations"})
    if (reader.peek(key))
      remedy = fmt::format(
          "To train the chosen answers alone, give --format completion --data-keys "
          "prompt={},completion=chosen.",
          printable(reader.name(key)));
  throw RefusedRecord(
      "it prefers one answer to another (\"chosen\", \"rejected\"), and preferences are not trained", remedy);
}

// So would answers that are marked as bad ones: by TRL as "label", by LLaMA-Factory as "kto_tag".
void refuse_bad_answer(const Reader& reader, RecordForm form, const NameMap& names) {
  if (form == RecordForm::text) return;
  for (const char* key : {"label", "kto_tag"}) {
    const Json* mark = reader.peek(key);
    if (!mark || is_named(names, key) || (form == RecordForm::alpaca && key == std::string_view("label")))
      continue;
    std::string said = mark->is_string() ? mark->get<std::string>() : mark->dump();
    std::transform(said.begin(), said.end(), said.begin(), [](unsigned char c) { return std::tolower(c); });
    if (said == "true" || said == "1") reader.find(key);
    if (said == "false" || said == "0")
      throw RefusedRecord(
          fmt::format("its answer is marked as a bad one (\"{}\": {}), and only good ones can be trained",
                      key, mark->dump()),
          "Leave such records out with --bad-records skip.");
  }
}

}  // namespace

Record parse_record(const std::string& line, RecordForm form, const NameMap& names) {
  const Json object = parse_strict_json_line(line);
  if (!object.is_object()) malformed("it is no JSON object");
  const Reader reader(object, names);
  refuse_preferences(reader, names);
  if (form == RecordForm::automatic) form = recognised(object, reader, names);
  refuse_bad_answer(reader, form, names);
  switch (form) {
    case RecordForm::automatic:
      break;
    case RecordForm::messages:
      return read_dialog(reader, "messages", false, names);
    case RecordForm::sharegpt:
      return read_dialog(reader, "conversations", true, names);
    case RecordForm::alpaca:
      return read_alpaca(reader);
    case RecordForm::completion:
      return read_completion(reader, names);
    case RecordForm::text:
      return read_text(reader);
  }
  check_failed("a form", __FILE__, __LINE__, "");
}

Conversation with_given_arguments(const Conversation& conversation) {
  Json messages = *conversation.messages;
  const std::vector<Json*> arguments = all_arguments(messages);
  for (size_t i = 0; i < conversation.given_arguments.size(); ++i)
    if (conversation.given_arguments[i]) *arguments[i] = *conversation.given_arguments[i];
  for (Json& message : messages)
    if (!message.contains("content")) message["content"] = nullptr;
  Conversation out = conversation;
  out.messages = std::make_shared<const Json>(std::move(messages));
  return out;
}

}  // namespace sluice
