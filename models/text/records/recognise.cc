#include "models/text/records/recognise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/error.h"

namespace sluice {

namespace {

using Json = nlohmann::ordered_json;

std::optional<RecordForm> form_of(const RecordReader& reader) {
  if (reader.peek("messages")) return RecordForm::messages;
  if (reader.peek("conversations")) return RecordForm::sharegpt;
  if (reader.peek("instruction") && reader.peek("output")) return RecordForm::alpaca;
  if (reader.peek("prompt") && reader.peek("completion")) return RecordForm::completion;
  if (reader.peek("text")) return RecordForm::text;
  return std::nullopt;
}

// The first of these keys that an object has; nullptr: it has none.
const char* key_among(const Json& object, std::initializer_list<const char*> keys) {
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const char* key) {
    const auto value = object.find(key);
    return value != object.end() && !value->is_null();
  });
  return found == keys.end() ? nullptr : *found;
}

// The keys of who says a message and of what it says, if it is one.
struct MessageKeys {
  const char *role = nullptr, *content = nullptr;
};
MessageKeys message_keys(const Json& value) {
  if (!value.is_object()) return {};
  return {key_among(value, {"role", "from", "speaker", "author", "sender"}),
          key_among(value, {"content", "value", "text", "message", "parts"})};
}

bool is_record(const Json& value, const NameMap& names) {
  if (!value.is_object()) return false;
  const RecordReader reader(value, names);
  const std::optional<RecordForm> form = form_of(reader);
  if (form != RecordForm::text) return form.has_value();
  // A text that somebody says is a message.
  return reader.peek("text")->is_string() && (!message_keys(value).role || value.contains("replies"));
}

// The key of what is a record itself, or a list of records; empty: there is none.
std::string key_of_records(const RecordReader& reader) {
  for (const auto& [key, value] : reader.object().items())
    if (is_record(value.is_array() && !value.empty() ? value[0] : value, reader.names())) return key;
  return "";
}

constexpr const char* kPaths =
    "Convert the file to one conversation a line: {\"messages\": [...]}, a path through the tree.";

// Of a record whose own records stand within a key.
[[noreturn]] void refuse_holder(const RecordReader& reader, const std::string& holder) {
  const Json& held = reader.object()[holder];
  const std::string key = printable(holder);
  const auto convert = [&](const std::string& program) {
    return fmt::format("jq -c '{}' FILE > OUT.jsonl", program);
  };
  if (held.is_object() && held.contains("replies"))
    throw RefusedRecord(fmt::format("\"{}\" is a tree of messages and replies", key), kPaths);
  if (held.is_array() && held[0].contains("text") && held[0].contains("label") &&
      held[0]["label"].is_boolean())
    throw RefusedRecord(
        fmt::format("\"{}\" has a label for each part of a text, and such masks are not read", key),
        "To train the last part, with the others as its prompt: " +
            convert(fmt::format("select(.[\"{0}\"][-1].label) | {{prompt: ([.[\"{0}\"][:-1][].text] | add // "
                                "\"\"), completion: .[\"{0}\"][-1].text}}",
                                key)));
  std::vector<std::string> others;
  for (const auto& [other, value] : reader.object().items())
    if (other != holder && !is_empty(value)) others.push_back(printable(other));
  throw RefusedRecord(
      fmt::format("what it holds stands within \"{}\"", key),
      fmt::format("Convert the file to one record a line{}: {}",
                  others.empty() ? ""
                                 : fmt::format(", which leaves out what else a record has ({})",
                                               fmt::join(others, ", ")),
                  convert(fmt::format(".[\"{}\"]{}", key, held.is_array() ? "[]" : ""))));
}

bool begins_with_answer(const Json& messages, const NameMap& names) {
  const Json& first = messages.is_array() && !messages.empty() ? messages[0] : messages;
  if (!first.is_object()) return true;
  for (const char* key : {"role", "from"})
    if (const auto role = first.find(key); role != first.end() && role->is_string())
      return role_of(role->get<std::string>(), names) == "assistant";
  return true;
}

// The options that train the chosen answers of such records.
std::string options_for_chosen(const RecordReader& reader) {
  const Json& chosen = *reader.peek("chosen");
  if (chosen.is_structured() && !begins_with_answer(chosen, reader.names()))
    return "--format messages --data-keys messages=chosen";
  for (const char* key : {"messages", "conversations"})
    if (reader.peek(key))
      return fmt::format("--format completion --data-keys prompt={},completion=chosen",
                         printable(reader.name(key)));
  if (reader.peek("prompt")) return "--data-keys completion=chosen";
  if (reader.peek("instruction")) return "--data-keys output=chosen";
  for (const char* key : {"question", "query", "input"})
    if (reader.peek(key)) return fmt::format("--data-keys prompt={},completion=chosen", key);
  return "--data-keys text=chosen, which trains questions with them";
}

// A list of messages, and which of them are answers.
struct Dialog {
  std::string key;
  MessageKeys keys;
  bool has_answer = false, begins_with_answer = false;
};
std::vector<Dialog> dialogs_of(const RecordReader& reader) {
  std::vector<Dialog> dialogs;
  for (const auto& [key, value] : reader.object().items()) {
    if (!value.is_array() || value.empty()) continue;
    Dialog dialog{key, message_keys(value[0])};
    if (!dialog.keys.role || !dialog.keys.content) continue;
    for (const Json& message : value) {
      const auto role = message.is_object() ? message.find(dialog.keys.role) : message.end();
      const bool is_answer = role != message.end() && role->is_string() &&
                             role_of(role->get<std::string>(), reader.names()) == "assistant";
      dialog.has_answer |= is_answer;
      dialog.begins_with_answer |= is_answer && &message == &value[0];
    }
    dialogs.push_back(std::move(dialog));
  }
  return dialogs;
}

// --data-keys for such a record; empty: no message of it is an answer.
std::string keys_of_dialogs(const std::vector<Dialog>& dialogs) {
  const auto answered =
      std::find_if(dialogs.begin(), dialogs.end(), [](const Dialog& d) { return d.has_answer; });
  if (answered == dialogs.end()) return "";
  std::string keys = "messages=" + printable(answered->key);
  if (dialogs.size() > 1 && answered->begins_with_answer && answered != dialogs.begin())
    keys = fmt::format("prompt={},completion={}", printable(dialogs[0].key), printable(answered->key));
  const std::string role = answered->keys.role, content = answered->keys.content;
  // Those of either form are known.
  if ((role == "role" && content == "content") || (role == "from" && content == "value")) return keys;
  if (role != "role") keys += ",role=" + role;
  if (content != "content") keys += ",content=" + content;
  return keys;
}

// --data-keys for a record of a conversation, or of a question and an answer, under other names. Without
// such, an example.
std::string keys_that_may_help(const RecordReader& reader) {
  const std::string system = reader.peek("system_prompt") ? ",system=system_prompt" : "";
  const std::vector<Dialog> dialogs = dialogs_of(reader);
  if (const std::string keys = keys_of_dialogs(dialogs); !keys.empty()) {
    std::vector<std::string> names;
    for (const Dialog& dialog : dialogs) names.push_back(printable(dialog.key));
    const bool is_one_of_several = names.size() > 1 && keys.starts_with("messages=");
    return fmt::format(
        ": --data-keys {}{}{}", keys, system,
        is_one_of_several ? fmt::format(" (which trains that one of {})", fmt::join(names, ", ")) : "");
  }
  const Json& object = reader.object();
  const char* const answer =
      key_among(object, {"output", "response", "solution", "answer", "completion", "target", "targets",
                         "Response", "Output", "Answer", "assistant", "gpt", "bot"});
  const char* const question =
      key_among(object, {"instruction", "prompt", "question", "query", "problem", "input", "inputs", "source",
                         "Instruction", "Question", "Input", "human", "user"});
  if (!answer || !question) return ", as in --data-keys prompt=question,completion=answer";
  // What stands beside an instruction is a part of it.
  const std::string asked = question;
  const char* const beside = asked == "prompt"        ? key_among(object, {"query", "input"})
                             : asked == "instruction" ? key_among(object, {"context", "query"})
                                                      : nullptr;
  if (beside || asked == "instruction" || reader.peek("history"))
    return fmt::format(": --data-keys {}output={}{}{}",
                       asked == "instruction" ? "" : "instruction=" + asked + ",", answer,
                       beside ? fmt::format(",input={}", beside) : "", system);
  if (asked == "prompt") return fmt::format(": --data-keys completion={}{}", answer, system);
  if (std::string(answer) == "completion") return fmt::format(": --data-keys prompt={}{}", asked, system);
  return fmt::format(": --data-keys prompt={},completion={}{}", asked, answer, system);
}

}  // namespace

std::optional<bool> verdict_of(const Json& mark) {
  if (mark.is_boolean()) return mark.get<bool>();
  std::string word;
  for (const unsigned char c : mark.is_string() ? mark.get<std::string>() : mark.dump())
    if (!std::isspace(c)) word += static_cast<char>(std::tolower(c));
  if (word == "false" || word == "0" || word == "0.0") return false;
  if (word == "true" || word == "1" || word == "1.0") return true;
  return std::nullopt;
}

RecordForm recognised(const RecordReader& reader) {
  if (const auto form = form_of(reader)) {
    // As the messages of OpenAssistant, one a record.
    if (form == RecordForm::text && reader.peek("role") &&
        key_among(reader.object(), {"parent_id", "message_id"}))
      throw RefusedRecord("it is a message of a tree, of which \"role\" says who says it", kPaths);
    return *form;
  }
  if (const std::string holder = key_of_records(reader); !holder.empty()) refuse_holder(reader, holder);
  for (const char* key :
       {"messages", "conversations", "instruction", "output", "prompt", "completion", "text"})
    if (reader.is_null(key)) malformed("\"{}\" is null", printable(reader.name(key)));
  throw RefusedRecord(
      fmt::format("it has none of the keys that are known: messages; conversations; instruction and output; "
                  "prompt and completion; text. It has {}",
                  reader.keys()),
      fmt::format("Say what its keys are called{}, or leave out what is malformed with --bad-records skip.",
                  keys_that_may_help(reader)));
}

void refuse_preferences(const RecordReader& reader) {
  const bool chosen = reader.peek("chosen"), rejected = reader.peek("rejected"),
             of_openai = reader.peek("non_preferred_output");
  if ((!chosen && !rejected && !of_openai) || reader.is_named("chosen") || reader.is_named("rejected"))
    return;
  const auto with = [](const char* program) { return fmt::format("jq -c '{}' FILE > OUT.jsonl", program); };
  std::string remedy = "Leave such records out with --bad-records skip.";
  if (chosen)
    remedy = fmt::format("To train the chosen answers alone, give {}.", options_for_chosen(reader));
  else if (of_openai)
    remedy = fmt::format("To train the preferred answers alone: {}",
                         with("{messages: (.input.messages + .preferred_output), tools: .input.tools}"));
  else if (form_of(reader) && reader.peek("rejected")->is_boolean())
    remedy = fmt::format("To train those that are not: {}", with("select(.rejected | not) | del(.rejected)"));
  else if (form_of(reader))
    remedy = fmt::format("To train the other answers: {}", with("del(.rejected)"));
  throw RefusedRecord(fmt::format("it prefers one answer to another ({}), and preferences are not trained",
                                  chosen && rejected ? "\"chosen\", \"rejected\""
                                  : chosen           ? "\"chosen\""
                                  : rejected         ? "\"rejected\""
                                                     : "\"non_preferred_output\""),
                      remedy);
}

void refuse_bad_answer(const RecordReader& reader, RecordForm form) {
  for (const std::string key : kMaskKeys) {
    const Json* mark = reader.peek(key.c_str());
    if (!mark || reader.is_named(key)) continue;
    const std::optional<bool> is_trained = verdict_of(*mark);
    if (is_trained == true) reader.find(key.c_str());
    if (is_trained == false)
      throw RefusedRecord(fmt::format("it says that it is not to be trained (\"{}\": {})", key, mark->dump()),
                          "Leave such records out with --bad-records skip.");
  }
  if (form == RecordForm::text) return;
  for (const std::string key : {"label", "kto_tag"}) {
    const Json* mark = reader.peek(key.c_str());
    if (!mark || reader.is_named(key)) continue;
    // Instructions may come with a class, which is a number or a word.
    if (form == RecordForm::alpaca && key == "label" && !mark->is_boolean()) continue;
    const std::optional<bool> is_good = verdict_of(*mark);
    if (is_good == true) reader.find(key.c_str());
    if (is_good == false)
      throw RefusedRecord(
          fmt::format("its answer is marked as a bad one (\"{}\": {}), and only good ones can be trained",
                      key, mark->dump()),
          "Leave such records out with --bad-records skip.");
  }
}

}  // namespace sluice
