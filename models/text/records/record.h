// One record of a file of text or chats, whatever form it has there.
//
// Forms of a line of JSON (`.jsonl`), each recognised by its keys:
//   messages    {"messages": [{"role": ..., "content": ...}, ...], "system": ..., "tools": [...]}, as OpenAI
//               and TRL
//   sharegpt    {"conversations": [{"from": "human", "value": ...}, ...], "system": ..., "tools": ...}
//   alpaca      {"instruction": ..., "input": ..., "output": ..., "system": ..., "history": [[..., ...]]}
//   completion  {"prompt": ..., "completion": ..., "system": ...}, of strings or lists of messages
//   text        {"text": ...}
// A record is a conversation, or a text, of which a part may be a prompt. In messages, "weight" or another of
// kMaskKeys (recognise.h), as 0 or 1, or as true or false, says whether an answer is trained. A conversation
// may have "chat_template_kwargs", an object, and "enable_thinking": variables of the chat template, as TRL
// has them. Records that are marked as bad, or that prefer one answer to another, are refused, since they
// would teach bad answers.
//
// Callers: readers of data. Pure functions.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "models/text/records/record_form.h"

namespace sluice {

// Other names that a file has for keys ("messages", "role", "content", "prompt", ...) and for roles ("user",
// "assistant", "system", "tool"), by the name used here. A name used here may have several others; the first
// of them that an object has counts.
using NameMap = std::multimap<std::string, std::string>;

struct Conversation {
  std::shared_ptr<const nlohmann::ordered_json> messages;  // [{"role": ..., "content": ...}, ...]
  std::shared_ptr<const nlohmann::ordered_json> tools;     // a list; nullptr: none
  std::vector<bool> trained_messages;   // by message: whether it is an answer that is trained
  size_t masked = 0;                    // answers that say themselves that they are not trained
  std::vector<std::string> asked = {};  // keys that ask to train other messages: "train of a message of user"
  // One entry for each call with arguments, in order: the string, if they were given as a string. Empty if no
  // arguments were a string.
  std::vector<std::optional<std::string>> given_arguments = {};
  // An object: the record's own variables of the template; nullptr: none.
  std::shared_ptr<const nlohmann::ordered_json> template_values = nullptr;
  std::vector<std::string> unread_keys = {};  // keys of the record that have content but are not read
};

struct PlainText {
  std::string prompt;  // never trained
  std::string text;
  bool whole = true;        // text alone, of which every token is trained; else prompt and completion
  std::string system = "";  // before a prompt
  std::vector<std::string> unread_keys = {};
};

using Record = std::variant<Conversation, PlainText>;

// A record that is refused although it is well-formed; `remedy` is a sentence with the option that helps, or
// introduces `conversion`, a jq program that turns each record into a record that can be read.
struct RefusedRecord : std::invalid_argument {
  RefusedRecord(const std::string& what, std::string help, std::string program = "")
      : std::invalid_argument(what), remedy(std::move(help)), conversion(std::move(program)) {}
  std::string remedy, conversion;
};

// What helps when parse_record() or a SampleMaker refuses a record of file `path`: the remedy of a
// RefusedRecord, else `otherwise`. `is_list`: the file is one list of records.
std::string remedy_of(const std::invalid_argument& refusal, const std::string& otherwise,
                      const std::string& path = "FILE", bool is_list = false);

// `line` is one JSON object. Throws std::invalid_argument whose what() is to be put behind "FILE, line N: ";
// names from the line are printable in it. If the line is not JSON, what() says the column. A RefusedRecord
// has its own remedy. A list of messages may have the keys of `messages` or of `sharegpt`, whatever the list
// is called: some files have `conversations` of roles and contents. Roles that other tools write, in any
// case, become "user", "assistant", "system" and "tool". The content of a message of role "function_call" or
// "tool_call" becomes "tool_calls", and several such messages in a row become one list. Arguments of calls
// that are JSON in a string, as OpenAI has them, become objects, as templates expect them, and blank ones
// become {}.
Record parse_record(const std::string& line, RecordForm form, const NameMap& names);

}  // namespace sluice
