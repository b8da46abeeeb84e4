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

bool is_record(const Json& value, const NameMap& names) {
  if (!value.is_object()) return false;
  const RecordReader reader(value, names);
  const std::optional<RecordForm> form = form_of(reader);
  return form && (form != RecordForm::text || reader.peek("text")->is_string());
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
  if (held.is_array() && held[0].contains("label"))
    throw RefusedRecord(
        fmt::format("\"{}\" has a label for each part of a text, and such masks are not read", key),
        "To train the last part, with the others as its prompt: " +
            convert(fmt::format(
                "{{prompt: ([.[\"{0}\"][:-1][].text] | add // \"\"), completion: .[\"{0}\"][-1].text}}",
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
  std::vector<std::string> dialogs;
  for (const auto& [key, value] : reader.object().items())
    if (is_dialog(value)) dialogs.push_back(printable(key));
  if (!dialogs.empty())
    return fmt::format(
        ": --data-keys messages={}{}{}", dialogs[0], system,
        dialogs.size() > 1 ? fmt::format(" (which trains that one of {})", fmt::join(dialogs, ", ")) : "");
  const char* const answer =
      first_of(reader, {"output", "response", "solution", "answer", "completion", "target", "targets",
                        "Response", "Output", "Answer", "assistant", "gpt", "bot"});
  const char* const question =
      first_of(reader, {"instruction", "prompt", "question", "query", "problem", "input", "inputs", "source",
                        "Instruction", "Question", "Input", "human", "user"});
  if (!answer || !question) return ", as in --data-keys prompt=question,completion=answer";
  // What stands beside an instruction is a part of it.
  const std::string asked = question;
  const char* const beside = asked == "prompt"        ? first_of(reader, {"query", "input"})
                             : asked == "instruction" ? first_of(reader, {"context", "query"})
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

std::optional<bool> mask_of(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (!value.is_number() || (value != 0 && value != 1)) return std::nullopt;
  return value == 1;
}

bool is_record(const std::string& line) {
  const Json value = Json::parse(line, nullptr, false);
  return is_record(value, {});
}

RecordForm recognised(const RecordReader& reader) {
  if (const auto form = form_of(reader)) {
    // As the messages of OpenAssistant, one a record.
    if (form == RecordForm::text && reader.peek("role") && first_of(reader, {"parent_id", "message_id"}))
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
    const std::optional<bool> is_trained = mask_of(*mark);
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
