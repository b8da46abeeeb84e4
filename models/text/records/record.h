// One record of a file of text or chats, whatever form it has there.
//
// Forms of a line of JSON (`.jsonl`), each recognised by its keys:
//   messages    {"messages": [{"role": ..., "content": ...}, ...], "tools": [...]}, as OpenAI and TRL
//   sharegpt    {"conversations": [{"from": "human", "value": ...}, ...], "system": ..., "tools": ...}
//   alpaca      {"instruction": ..., "input": ..., "output": ..., "system": ..., "history": [[..., ...]]}
//   completion  {"prompt": ..., "completion": ...}, of strings or lists of messages
//   text        {"text": ...}
// A record is a conversation, or a text with a part that is prompt. In messages, "weight" (0 or 1) or
// "train" (true or false) says whether an answer is trained.
//
// Callers: readers of data. Pure functions.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "models/text/records/record_form.h"

namespace sluice {

// Other names that a file has for keys ("messages", "role", "content", "prompt", ...) and for roles
// ("user", "assistant", "system", "tool"): by the name used here.
using NameMap = std::map<std::string, std::string>;

struct Conversation {
  std::shared_ptr<const nlohmann::ordered_json> messages;  // [{"role": ..., "content": ...}, ...]
  std::shared_ptr<const nlohmann::ordered_json> tools;     // a list; nullptr: none
  std::vector<bool> trained_messages;                      // by message: an answer that is trained
};

struct PlainText {
  std::string prompt;  // never trained
  std::string text;
  bool whole = true;  // text alone, of which every token is trained; else prompt and completion
};

using Record = std::variant<Conversation, PlainText>;

// A record has no keys that tell its form.
struct UnknownForm : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// `line` is one JSON object. Throws std::invalid_argument whose what() is to be put behind "FILE, line N: ";
// names from the line are printable in it. Where the line is not JSON, it says the column. A list of messages
// may have the keys of either form, whatever it is called: files have `conversations` of roles and contents,
// too.
Record parse_record(const std::string& line, RecordForm form, const NameMap& names);

}  // namespace sluice
