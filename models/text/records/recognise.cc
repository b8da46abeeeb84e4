#include "models/text/records/recognise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

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

bool is_record(const Json& value, const NameMap& names) {
  if (!value.is_object()) return false;
  const RecordReader reader(value, names);
  const std::optional<RecordForm> form = form_of(reader);
  if (form != RecordForm::text) return form.has_value();
  // A text with a role is a message, unless it has replies.
  return reader.peek("text")->is_string() && (!message_keys(value).role || value.contains("replies"));
}

// The first key whose value is a record or a list of records; empty: there is none.
std::string key_of_records(const RecordReader& reader) {
  for (const auto& [key, value] : reader.object().items())
    if (is_record(value.is_array() && !value.empty() ? value[0] : value, reader.names())) return key;
  return "";
}

constexpr const char* kPaths =
    "Convert the file to one conversation a line: {\"messages\": [...]}, a path through the tree.";

// The object's keys that have content and are not among `these`.
std::vector<std::string> keys_beside(const Json& object, std::initializer_list<std::string_view> these) {
  std::vector<std::string> others;
  for (const auto& [key, value] : object.items())
    if (std::find(these.begin(), these.end(), key) == these.end() && !is_empty(value))
      others.push_back(printable(key));
  return others;
}
std::string which_leaves_out(const std::vector<std::string>& keys) {
  return keys.empty() ? ""
                      : fmt::format(", which leaves out what else a record has ({})", fmt::join(keys, ", "));
}

// Refuses an object whose records stand within the key `holder`.
[[noreturn]] void refuse_holder(const RecordReader& reader, const std::string& holder) {
  const Json& held = reader.object()[holder];
  const std::string key = printable(holder);
  if (held.is_object() && held.contains("replies"))
    throw RefusedRecord(fmt::format("\"{}\" is a tree of messages and replies", key), kPaths);
  if (held.is_array() && held[0].contains("text") && held[0].contains("label") &&
      held[0]["label"].is_boolean())
    throw RefusedRecord(
        fmt::format("\"{}\" has a label for each part of a text, and such masks are not read", key),
        "To train the last part, with the others as its prompt, of records where that has a true label",
        fmt::format("select(.[\"{0}\"][-1].label) | {{prompt: ([.[\"{0}\"][:-1][].text] | add // \"\"), "
                    "completion: .[\"{0}\"][-1].text}}",
                    key));
  if (const char* const score = held.is_array() ? key_among(held[0], {"score", "rating", "rank"}) : nullptr;
      score && reader.peek("prompt"))
    throw RefusedRecord(
        fmt::format("\"{}\" has several answers, each with a {}, and preferences are not trained", key,
                    score),
        "To train the one that is rated highest",
        fmt::format("{{prompt, completion: (.[\"{}\"] | max_by(.{}) | .text)}}", key,
                    std::string_view(score) == "rank" ? "rank | -." : score));
  const std::vector<std::string> others = keys_beside(reader.object(), {holder});
  // Whether each key of the object holds a record.
  const bool are_all =
      reader.object().size() > 1 && std::ranges::all_of(reader.object(), [&](const Json& value) {
        return is_record(value, reader.names());
      });
  throw RefusedRecord(
      fmt::format("what it holds stands within \"{}\"", key),
      fmt::format("Convert the file to one record a line{}", are_all ? "" : which_leaves_out(others)),
      are_all           ? ".[]"
      : held.is_array() ? fmt::format("(.[\"{}\"] // [.])[]", key)
                        : fmt::format(".[\"{}\"] // .", key));
}

// Whether a message, the first or the last of a list, is an answer. A message without a role counts as an
// answer.
bool is_answer(const Json& message, const NameMap& names) {
  for (const char* key : {"role", "from"})
    if (const auto role = message.is_object() ? message.find(key) : message.end();
        role != message.end() && role->is_string())
      return role_of(role->get<std::string>(), names) == "assistant";
  return true;
}
bool begins_with_answer(const Json& messages, const NameMap& names) {
  return is_answer(messages.is_array() && !messages.empty() ? messages.front() : messages, names);
}
bool ends_with_answer(const Json& messages, const NameMap& names) {
  return messages.is_array() && !messages.empty() && is_answer(messages.back(), names);
}

// The options that train the chosen answers of records that prefer one answer to another.
std::string options_for_chosen(const RecordReader& reader) {
  const Json& chosen = *reader.peek("chosen");
  const auto keys = [&](const std::string& added) { return data_keys_option(reader.names(), added); };
  if (chosen.is_structured() && !begins_with_answer(chosen, reader.names()))
    return "--format messages " + keys("messages=chosen");
  bool has_messages = false;
  for (const char* key : {"messages", "conversations"})
    if (const Json* messages = reader.peek(key)) {
      has_messages = true;
      if (!ends_with_answer(*messages, reader.names()))
        return "--format completion " + keys(fmt::format("prompt={},completion=chosen", reader.name(key)));
    }
  if (reader.peek("prompt")) return (has_messages ? "--format completion " : "") + keys("completion=chosen");
  if (has_messages) return "";
  if (reader.peek("instruction")) return keys("output=chosen");
  for (const char* key : {"question", "query", "input"})
    if (reader.peek(key)) return keys(fmt::format("prompt={},completion=chosen", key));
  return keys("text=chosen") + ", which trains questions with them";
}

// A list of messages, whether it has an answer, and whether its first message is an answer.
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

// --data-keys for a record with these dialogs; empty: none of them has an answer.
std::string keys_of_dialogs(const std::vector<Dialog>& dialogs) {
  const auto answered =
      std::find_if(dialogs.begin(), dialogs.end(), [](const Dialog& d) { return d.has_answer; });
  if (answered == dialogs.end()) return "";
  std::string keys = "messages=" + printable(answered->key);
  if (dialogs.size() > 1 && answered->begins_with_answer && answered != dialogs.begin())
    keys = fmt::format("prompt={},completion={}", printable(dialogs[0].key), printable(answered->key));
  const std::string role = answered->keys.role, content = answered->keys.content;
  // The keys of messages and of sharegpt need no option.
  if ((role == "role" && content == "content") || (role == "from" && content == "value")) return keys;
  if (role != "role") keys += ",role=" + role;
  if (content != "content") keys += ",content=" + content;
  return keys;
}

// --data-keys for a record of a conversation, or of a question and an answer, under other names. If the
// record has neither, an example.
std::string keys_that_may_help(const RecordReader& reader) {
  const std::string system = reader.peek("system_prompt") ? ",system=system_prompt" : "";
  const std::vector<Dialog> dialogs = dialogs_of(reader);
  if (const std::string keys = keys_of_dialogs(dialogs); !keys.empty()) {
    std::vector<std::string> names;
    for (const Dialog& dialog : dialogs) names.push_back(printable(dialog.key));
    const bool is_one_of_several = names.size() > 1 && keys.starts_with("messages=");
    return fmt::format(
        ": {}{}", data_keys_option(reader.names(), keys + system),
        is_one_of_several ? fmt::format(" (which trains that one of {})", fmt::join(names, ", ")) : "");
  }
  const Json& object = reader.object();
  const char* const answer =
      key_among(object, {"output", "response", "solution", "answer", "completion", "target", "targets",
                         "Response", "Output", "Answer", "assistant", "gpt", "bot"});
  const char* const question =
      key_among(object, {"instruction", "prompt", "question", "query", "problem", "input", "inputs", "source",
                         "Instruction", "Question", "Input", "human", "user"});
  if (!answer || !question ||
      (question == std::string_view("prompt") && answer == std::string_view("completion")))
    return ", as in --data-keys prompt=question,completion=answer";
  // A text beside the question, such as a context, is a part of what is asked.
  const std::string asked = question;
  const char* beside = nullptr;
  if (asked == "prompt")
    beside = key_among(object, {"query", "input"});
  else if (asked == "question" || asked == "Question")
    beside = key_among(object, {"context", "Context"});
  else if ((asked == "instruction" || asked == "Instruction") && !reader.peek("input"))
    beside = key_among(object, {"context", "query", "Input", "Context"});
  // Adds a key to the option, unless the file calls it by the name used here.
  std::string keys;
  const auto add = [&](const char* known, const std::string& key) {
    if (key != known) keys += fmt::format("{}{}={}", keys.empty() ? "" : ",", known, key);
  };
  const bool has_instruction = beside || asked == "instruction" || reader.peek("history");
  add(has_instruction ? "instruction" : "prompt", asked);
  add(has_instruction ? "output" : "completion", answer);
  if (beside) add("input", beside);
  return ": " + data_keys_option(reader.names(), keys + system);
}

}  // namespace

MessageKeys message_keys(const Json& value) {
  if (!value.is_object()) return {};
  const char* const role = key_among(value, {"role", "from", "speaker", "author", "sender", "Role"});
  return {role != nullptr && value[role].is_string() ? role : nullptr,
          key_among(value, {"content", "value", "text", "message", "parts", "Content"})};
}

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
    // In OpenAssistant's data, each record is one message.
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
  std::string remedy = "Leave such records out with --bad-records skip.", conversion;
  if (const std::string options = chosen ? options_for_chosen(reader) : ""; !options.empty()) {
    remedy = fmt::format("To train the chosen answers alone, give {}.", options);
  } else if (chosen) {
    remedy = "To train its conversation as it stands", conversion = "del(.chosen, .rejected)";
  } else if (of_openai) {
    std::vector<std::string> others =
        keys_beside(reader.object(), {"input", "preferred_output", "non_preferred_output"});
    if (const Json* input = reader.peek("input"); input && input->is_object())
      std::ranges::copy(keys_beside(*input, {"messages", "tools"}), std::back_inserter(others));
    remedy = "To train the preferred answers alone" + which_leaves_out(others);
    conversion = "{messages: (.input.messages + .preferred_output), tools: .input.tools}";
  } else if (form_of(reader) && reader.peek("rejected")->is_boolean()) {
    remedy = "To train those that are not", conversion = "select(.rejected | not) | del(.rejected)";
  } else if (form_of(reader)) {
    remedy = "To train the other answers", conversion = "del(.rejected)";
  }
  throw RefusedRecord(fmt::format("it prefers one answer to another ({}), and preferences are not trained",
                                  chosen && rejected ? "\"chosen\", \"rejected\""
                                  : chosen           ? "\"chosen\""
                                  : rejected         ? "\"rejected\""
                                                     : "\"non_preferred_output\""),
                      remedy, conversion);
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
    // The label of an instruction may be its class, which is a number or a word.
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
