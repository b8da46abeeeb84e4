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

// The key of what is a record itself, or a list of records; empty: there is none.
std::string key_of_records(const RecordReader& reader) {
  for (const auto& [key, value] : reader.object().items()) {
    const Json* record = value.is_array() && !value.empty() ? &value[0] : &value;
    if (record->is_object() && form_of(RecordReader(*record, reader.names()))) return key;
  }
  return "";
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

// The first of these keys that a record has; nullptr: it has none.
const char* first_of(const RecordReader& reader, std::initializer_list<const char*> keys) {
  const auto found =
      std::find_if(keys.begin(), keys.end(), [&](const char* key) { return reader.peek(key); });
  return found == keys.end() ? nullptr : *found;
}

// Whether it is a list of messages.
bool is_dialog(const Json& value) {
  return value.is_array() && !value.empty() && value[0].is_object() &&
         (value[0].contains("role") || value[0].contains("from"));
}

// --data-keys for a record of a conversation, or of a question and an answer, under other names. Without
// such, an example.
std::string keys_that_may_help(const RecordReader& reader) {
  const std::string system = reader.peek("system_prompt") ? ",system=system_prompt" : "";
  for (const auto& [key, value] : reader.object().items())
    if (is_dialog(value)) return fmt::format(": --data-keys messages={}{}", printable(key), system);
  const char* const answer =
      first_of(reader, {"output", "response", "answer", "completion", "solution", "target"});
  const char* const question = first_of(reader, {"prompt", "question", "query", "problem", "input"});
  if (answer && reader.peek("instruction"))
    return fmt::format(": --data-keys output={}{}{}", answer, reader.peek("context") ? ",input=context" : "",
                       system);
  if (answer && question)
    return fmt::format(": --data-keys prompt={},completion={}{}", question, answer, system);
  return ", as in --data-keys prompt=question,completion=answer";
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
  if (const auto form = form_of(reader)) return *form;
  const std::string holder = key_of_records(reader);
  if (!holder.empty() && reader.object()[holder].is_object() && reader.object()[holder].contains("replies"))
    throw RefusedRecord(
        fmt::format("\"{}\" is a tree of messages and replies", printable(holder)),
        "Convert the file to one conversation a line: {\"messages\": [...]}, a path through the tree.");
  if (!holder.empty())
    throw RefusedRecord(
        fmt::format("what it holds stands within \"{}\"", printable(holder)),
        fmt::format("Convert the file to one record a line: jq -c '.[\"{}\"]{}' FILE > OUT.jsonl.",
                    printable(holder), reader.object()[holder].is_array() ? "[]" : ""));
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
                         with("{messages: (.input.messages + .preferred_output)}"));
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
