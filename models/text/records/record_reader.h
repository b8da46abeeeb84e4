// Keys of a record's object, under the names that this code has for them. Callers: parse_record() and its
// parts.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "models/text/records/record.h"

namespace sluice {

// Throws what parse_record() throws.
template <typename... Values>
[[noreturn]] void malformed(fmt::format_string<const Values&...> sentence, const Values&... values) {
  throw std::invalid_argument(fmt::format(sentence, values...));
}

// Whether the value is null, or a string, list or object without content.
bool is_empty(const nlohmann::ordered_json& value);

// The role as templates know it.
std::string role_of(const std::string& given, const NameMap& names);

// Whether the content of messages with this role is a call in JSON. It is not if --data-keys names the role.
bool is_call_role(const std::string& given, const NameMap& names);

// A word of a command, quoted where a shell needs that.
std::string shell_word(const std::string& text);

// The option --data-keys with the names that were given and `added`, as "role=speaker,content=text".
std::string data_keys_option(const NameMap& given, const std::string& added);

class RecordReader {
 public:
  // The object and the names outlive the reader.
  RecordReader(const nlohmann::ordered_json& object, const NameMap& names) : object_(object), names_(names) {}

  // name(): the object's own name for the key `known`. is_named(): whether --data-keys gives `key` as the
  // file's name for some key.
  std::string name(const char* known) const;
  bool is_named(const std::string& key) const;
  // nullptr: absent, or null
  const nlohmann::ordered_json* peek(const char* known) const;
  bool is_null(const char* known) const;
  // Returns what peek() does. Values that find(), at(), text(), text_or_empty() and list() return count as
  // read.
  const nlohmann::ordered_json* find(const char* known) const;
  const nlohmann::ordered_json& at(const char* known) const;
  std::string text(const char* known) const;
  std::string text_or_empty(const char* known) const;
  const nlohmann::ordered_json& list(const char* known) const;
  // The object's keys, or the first of them, for error messages.
  std::string keys() const;
  // Keys that have content and have not been read.
  std::vector<std::string> unread() const;

  const nlohmann::ordered_json& object() const { return object_; }
  const NameMap& names() const { return names_; }

 private:
  const nlohmann::ordered_json& object_;
  const NameMap& names_;
  mutable std::vector<const nlohmann::ordered_json*> read_;
};

}  // namespace sluice
