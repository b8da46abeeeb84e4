#include "models/text/records/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/base/error.h"
#include "engine/base/strict_json.h"
#include "models/text/records/calls.h"
#include "models/text/records/recognise.h"
#include "models/text/records/record_reader.h"

namespace sluice {

namespace {

using Json = nlohmann::ordered_json;

// A conversation that grows.
struct Messages {
  Json list = Json::array();
  std::vector<bool> trained = {};
  size_t masked = 0;
  std::vector<std::string> asked = {}, unread_keys = {};

  void add(const char* role, std::string content) {
    list.push_back({{"role", role}, {"content", std::move(content)}});
    trained.push_back(std::string_view(role) == "assistant");
  }
  // Puts `system` before the first message, unless the first message already is this system prompt.
  void put_system_first(const std::string& system) {
    if (system.empty()) return;
    if (!list.empty() && list[0]["role"] == "system") {
      if (list[0]["content"] == system) return;
      malformed("it has two system prompts, \"system\" and its first message");
    }
    list.insert(list.begin(), Json{{"role", "system"}, {"content", system}});
    trained.insert(trained.begin(), false);
  }
  Conversation finish(const RecordReader& reader);
};

struct Mask {
  std::optional<bool> trained;  // none: the message says nothing
  std::string key;              // the key that says so
};

// Whether a message says that it is to be trained. The keys that say so are taken out of the message.
Mask take_mask(Json& message, size_t number) {
  Mask mask;
  for (const std::string key : kMaskKeys) {
    const auto found = message.find(key);
    if (found == message.end()) continue;
    const std::optional<bool> says = verdict_of(*found);
    if (!says && (key == "weight" || key == "train"))
      malformed("\"{}\" of message {} is neither 0 nor 1, true nor false", key, number);
    if (!says) continue;
    if (mask.trained && mask.trained != says)
      malformed("\"{}\" of message {} contradicts its \"{}\"", key, number, mask.key);
    mask = {says, key};
    message.erase(found);
  }
  return mask;
}

// The first key that says that the object is not to be trained; nullptr: none does.
const char* masking_key(const Json& object) {
  for (const char* key : kMaskKeys)
    if (const auto mask = object.find(key); mask != object.end() && verdict_of(*mask) == false) return key;
  return nullptr;
}

void refuse_marked_answers(const Json& message) {
  if (message["role"] != "assistant") return;
  if (masking_key(message)) return;
  for (const char* key : {"label", "kto_tag"})
    if (const auto mark = message.find(key); mark != message.end() && verdict_of(*mark) == false)
      throw RefusedRecord(
          fmt::format("an answer is marked as a bad one (\"{}\": {}), and only good ones can be trained", key,
                      mark->dump()),
          "Give that message \"weight\": 0, or leave such records out with --bad-records skip.");
  const auto check_parts = [&](const char* field, const char* part_name) {
    const auto parts = message.find(field);
    if (parts == message.end() || !parts->is_array()) return;
    for (const Json& part : *parts)
      if (const char* const key = part.is_object() ? masking_key(part) : nullptr)
        throw RefusedRecord(
            fmt::format("{} of an answer is not to be trained (\"{}\"), and answers are trained as a whole",
                        part_name, key),
            fmt::format(
                "Give the whole message \"{}\": 0, or leave such records out with --bad-records skip.", key));
  };
  check_parts("content", "a part");
  check_parts("tool_calls", "a call");
}

// Whether a field is empty, or repeats what the message has.
bool is_said(const Json& message, const std::string& key, const Json& value, const NameMap& names) {
  return is_empty(value) ||
         (key == "role" ? value.is_string() && role_of(value.get<std::string>(), names) == message["role"]
                        : value == message[key]);
}

// Refuses a message that lacks `known`, which is `role_key` or `content_key`. The message may have its role
// and content under other names, and messages before it may have their role and content under the two keys.
[[noreturn]] void refuse_without(const char* known, const char* role_key, const char* content_key,
                                 const RecordReader& reader, size_t number) {
  const MessageKeys own = message_keys(reader.object());
  std::vector<std::string> others, added;
  for (const auto& [key, other] : {std::pair(role_key, own.role), std::pair(content_key, own.content)}) {
    if (other == nullptr || reader.peek(key)) continue;
    others.push_back(fmt::format("\"{}\"", other));
    if (number > 1 && reader.name(key) == key) added.push_back(fmt::format("{0}={0}", key));
    added.push_back(fmt::format("{}={}", key, other));
  }
  const std::string what = fmt::format("message {} has no \"{}\"", number, printable(reader.name(known)));
  if (others.empty()) throw std::invalid_argument(what);
  throw RefusedRecord(
      what, fmt::format("If {} {} that, give {}. Or leave out what is malformed with --bad-records skip.",
                        fmt::join(others, " and "), others.size() == 1 ? "is" : "are",
                        data_keys_option(reader.names(), fmt::format("{}", fmt::join(added, ",")))));
}

const Json& message_object(const Json& element) {
  if (element.is_string())
    throw RefusedRecord(
        "a message is a string, which does not tell who says it",
        "Convert the file: a message is an object, as {\"role\": \"user\", \"content\": \"Hello\"}.");
  if (!element.is_object()) malformed("a message is no object");
  return element;
}

// Data sets that are tables write null for keys that only other rows have.
void drop_nulls(Json& object) {
  for (auto value = object.begin(); value != object.end();)
    value = value->is_null() ? object.erase(value) : std::next(value);
}

bool has_calls(const Json& message) {
  return message.contains("tool_calls") || message.contains("function_call");
}

// Whether a message without a content says anything beside its role, such as a thought.
bool says_more(const Json& message, const RecordReader& reader, const char* role_key) {
  for (const auto& [key, value] : message.items())
    if (key != reader.name(role_key) && !is_empty(value)) return true;
  return false;
}

bool has_calls_alone(const Json& message) { return message.size() == 2 && message.contains("tool_calls"); }
bool is_text_of_answer(const Json& message) {
  return message["role"] == "assistant" && message.contains("content") && message["content"].is_string() &&
         !has_calls(message);
}

// Adds the messages of a list. Each has a role and a content. Its other keys stay, unless they are null.
// `may_train`: answers that no key masks are trained.
void add_messages(const Json& list, const char* role_key, const char* content_key, const NameMap& names,
                  bool may_train, Messages& to) {
  bool follows_call = false;  // whether the message before is a call
  size_t number = to.list.size();
  for (const Json& element : list) {
    ++number;
    const RecordReader reader(message_object(element), names);
    if (!reader.peek(role_key)) refuse_without(role_key, role_key, content_key, reader, number);
    const std::string given_role = reader.text(role_key);
    Json message = {{"role", role_of(given_role, names)}};
    if (const Json* content = reader.find(content_key)) {
      if (!content->is_string() && !content->is_array())
        malformed("\"{}\" of message {} is neither a string nor a list", printable(reader.name(content_key)),
                  number);
      message["content"] = *content;
      for (Json& part : message["content"])
        if (part.is_object()) drop_nulls(part);
    } else if (reader.is_null(content_key) && says_more(element, reader, role_key) && !has_calls(element)) {
      message["content"] = "";
    } else if (!has_calls(element)) {
      refuse_without(content_key, role_key, content_key, reader, number);
    }
    for (const auto& [key, value] : element.items()) {
      if (value.is_null() || key == reader.name(role_key) || key == reader.name(content_key)) continue;
      // The role or content was read under another name, which takes precedence over this key.
      if (key == "role" || (key == "content" && message.contains(key))) {
        if (!is_said(message, key, value, names)) to.unread_keys.push_back("message." + key);
        continue;
      }
      message.get_ref<Json::object_t&>().push_back({key, value});  // a new key needs no look-up
    }
    const bool is_call = is_call_role(given_role, names);
    if (is_call) take_calls_of_text(message, number, given_role);
    parse_calls(message, number);
    refuse_marked_answers(message);
    const Mask mask = take_mask(message, number);
    const bool is_answer = may_train && message["role"] == "assistant",
               is_trained = is_answer && mask.trained != false;
    if (is_call && !to.list.empty() && to.trained.back() == is_trained && has_calls_alone(message) &&
        (follows_call || is_text_of_answer(to.list.back()))) {
      // Calls in a row become one list. If an answer stands before them, the list is part of it.
      Json& calls = to.list.back()["tool_calls"];
      for (Json& call : message["tool_calls"]) calls.push_back(std::move(call));
      follows_call = true;
      continue;
    }
    follows_call = is_call;
    to.masked += is_answer && mask.trained == false;
    if (!is_answer && mask.trained == true)
      to.asked.push_back(fmt::format("{} of a message of {}", mask.key, message["role"].get<std::string>()));
    to.list.push_back(std::move(message));
    to.trained.push_back(is_trained);
  }
}

// Adds messages with the keys of their form. If the first message has only the other form's key of the role,
// the other form's keys are read.
void add_dialog(const Json& list, bool is_sharegpt, const NameMap& names, bool may_train, Messages& to) {
  static constexpr const char* kKeys[2][2] = {{"role", "content"}, {"from", "value"}};
  const auto has = [&](const char* key) {
    return !list.empty() && list[0].is_object() && RecordReader(list[0], names).find(key) != nullptr;
  };
  const bool other = !has(kKeys[is_sharegpt][0]) && has(kKeys[!is_sharegpt][0]);
  const auto& keys = kKeys[is_sharegpt != other];
  add_messages(list, keys[0], keys[1], names, may_train, to);
}

// "chat_template_kwargs" and "enable_thinking", which are variables of the template.
Json template_values_of(const RecordReader& reader) {
  Json values = nullptr;
  if (const Json* given = reader.find("chat_template_kwargs")) {
    if (!given->is_object()) malformed("\"chat_template_kwargs\" is no object");
    for (const char* own : {"messages", "tools", "add_generation_prompt"})
      if (given->contains(own)) malformed("\"chat_template_kwargs\" sets {}, which the record says", own);
    if (!given->empty()) values = *given;
  }
  if (const Json* given = reader.find("enable_thinking")) {
    if (!given->is_boolean()) malformed("\"enable_thinking\" is neither true nor false");
    if (values.is_object() && values.contains("enable_thinking") && values["enable_thinking"] != *given)
      malformed("\"enable_thinking\" contradicts that of \"chat_template_kwargs\"");
    values["enable_thinking"] = *given;
  }
  return values;
}

Conversation Messages::finish(const RecordReader& reader) {
  if (list.empty()) malformed("the conversation is empty");
  Json tools = tools_of(reader), values = template_values_of(reader);
  std::vector<std::optional<std::string>> given = parse_arguments(list);
  for (const std::string& key : reader.unread()) unread_keys.push_back(key);
  return {.messages = std::make_shared<const Json>(std::move(list)),
          .tools = tools.is_null() ? nullptr : std::make_shared<const Json>(std::move(tools)),
          .trained_messages = std::move(trained),
          .masked = masked,
          .asked = std::move(asked),
          .given_arguments = std::move(given),
          .template_values = values.is_null() ? nullptr : std::make_shared<const Json>(std::move(values)),
          .unread_keys = std::move(unread_keys)};
}

// `key`: the key of the list of messages. sharegpt has its own names for role and content.
Conversation read_dialog(const RecordReader& reader, const char* key, bool is_sharegpt,
                         const NameMap& names) {
  Messages out;
  add_dialog(reader.list(key), is_sharegpt, names, true, out);
  out.put_system_first(reader.text_or_empty("system"));
  return out.finish(reader);
}

Conversation read_alpaca(const RecordReader& reader) {
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
  if (!input.empty()) question.append(question.empty() ? 0 : 1, '\n').append(input);
  out.add("user", std::move(question));
  out.add("assistant", reader.text("output"));
  return out.finish(reader);
}

Record read_completion(const RecordReader& reader, const NameMap& names) {
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

Record read_text(const RecordReader& reader) {
  std::string text = reader.text("text");
  return PlainText{"", std::move(text), true, "", reader.unread()};
}

}  // namespace

std::string remedy_of(const std::invalid_argument& refusal, const std::string& otherwise,
                      const std::string& path, bool is_list) {
  const auto* const refused = dynamic_cast<const RefusedRecord*>(&refusal);
  if (refused == nullptr) return otherwise;
  if (refused->conversion.empty()) return refused->remedy;
  return fmt::format("{}: jq -c '{}{}' {} > OUT.jsonl", refused->remedy, is_list ? ".[] | " : "",
                     refused->conversion, shell_word(path));
}

Record parse_record(const std::string& line, RecordForm form, const NameMap& names) {
  const Json object = parse_strict_json_line(line);
  if (!object.is_object()) malformed("it is no JSON object");
  const RecordReader reader(object, names);
  refuse_preferences(reader);
  if (form == RecordForm::automatic) form = recognised(reader);
  refuse_bad_answer(reader, form);
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

}  // namespace sluice
