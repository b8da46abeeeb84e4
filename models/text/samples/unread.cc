#include "models/text/samples/unread.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "models/text/samples/answer_finder.h"

namespace sluice {

namespace {

using Json = nlohmann::ordered_json;

std::string role_of(const Json& message) { return message["role"].get<std::string>(); }

void add_strings(const Json& json, std::vector<const std::string*>& strings) {
  if (json.is_string()) strings.push_back(&json.get_ref<const std::string&>());
  if (json.is_structured())
    for (const Json& inner : json) add_strings(inner, strings);
}

// Calls f with the keys of values that a text is not searched for.
template <typename F>
void for_each_key(const Json& json, const F& f) {
  if (json.is_object())
    for (const auto& [key, inner] : json.items())
      if (!inner.is_string() || key == "type") f(key);
  if (json.is_structured())
    for (const Json& inner : json) for_each_key(inner, f);
}

std::string without_blanks(std::string_view text) {
  std::string solid;
  std::copy_if(text.begin(), text.end(), std::back_inserter(solid), [](char c) {
    return solid_bytes({&c, 1}) == 1;
  });
  return solid;
}

bool has_bytes(const std::string& haystack, const std::string& needle) {
  return ::memmem(haystack.data(), haystack.size(), needle.data(), needle.size()) != nullptr;
}

bool is_without_content(const Json& value) {
  return value.is_null() || value.is_structured()
             ? value.empty()
             : value.is_string() && solid_bytes(value.get_ref<const std::string&>()) == 0;
}

bool is_reasoning(const std::string& key) {
  return std::find(kReasoningFields.begin(), kReasoningFields.end(), key) != kReasoningFields.end();
}

// What an answer may be made of beside its content.
bool is_answer_field(const std::string& key) {
  return key == "tool_calls" || key == "function_call" || is_reasoning(key);
}

// Whether a type says no more than the keys beside it.
bool is_implied_type(const Json& type) { return type == "function" || type == "object"; }

// Whether the key is "refusal", "audio", or another name of calls: "function_calls", "toolCalls".
bool is_answer_of_another_name(const std::string& key) {
  return key == "refusal" || key == "audio" ||
         (!is_answer_field(key) && !key.ends_with("_id") &&
          (key.find("call") != key.npos || key.find("Call") != key.npos));
}

// Names the part of the content, or the field, that an answer without text has instead; empty: there is none.
std::string said_otherwise(const Json& answer) {
  if (const auto content = answer.find("content"); content != answer.end() && content->is_array())
    for (const Json& part : *content)
      if (part.is_object() && !(part.contains("text") && type_of_part(part) == "text"))
        return "part " + printable(type_of_part(part));
  for (const auto& [key, value] : answer.items())
    if (is_answer_of_another_name(key) && !is_without_content(value)) return printable(key);
  return "";
}

// The name that the message as given has for its reasoning.
std::string reasoning_name(const Json& given) {
  for (const char* field : kReasoningFields)
    if (given.contains(field)) return field;
  return kReasoningFields.front();
}

}  // namespace

UnreadStrings::Use& UnreadStrings::Use::operator+=(const Use& other) {
  given += other.given, used += std::min(other.given, other.used);
  return *this;
}

UnreadStrings::UnreadStrings(const Conversation& conversation, const Conversation& given)
    : conversation_(conversation), given_(given), first_source_{0} {
  for (const Json& message : *conversation.messages) {
    add_strings(message, strings_);
    const size_t index = first_source_.size() - 1;
    for (const Json& field : message)
      for_each_key(field, [&](const std::string& key) { keys_.emplace(key, Key{index}); });
    first_source_.push_back(strings_.size());
  }
  if (conversation.tools) {
    add_strings(*conversation.tools, strings_);
    for_each_key(*conversation.tools, [&](const std::string& key) { keys_[key].message = 0; });
  }
  uses_.resize(strings_.size());
  for (size_t i = 0; i < uses_.size(); ++i) uses_[i].given = solid_bytes(*strings_[i]);
}

void UnreadStrings::add_sample(const Rendered& text, size_t messages) {
  // The text's sources are numbered over its messages, then the tools.
  const size_t own = first_source_[messages], later = first_source_.back() - own;
  const auto source_of = [&](size_t i) { return i < own ? i : i + later; };
  const std::string_view whole = text.text;
  for (auto& [key, use] : keys_)
    use.is_read = use.is_read || (use.message < messages && has_bytes(text.text, "\"" + key + "\":"));
  std::vector<uint64_t> bytes(uses_.size() -
                              later);  // by source: of strings that earlier samples do not use up
  std::vector<ByteRange> places(bytes.size());
  for (const SourceRange& range : text.sources) {
    const uint32_t i = range.source;
    if (i >= bytes.size() || uses_[source_of(i)].used >= uses_[source_of(i)].given) continue;
    if (bytes[i] == 0) places[i].begin = range.begin;
    places[i].end = range.end;
    bytes[i] += solid_bytes(whole.substr(range.begin, range.end - range.begin));
  }
  std::string solid;  // of the text; made where it is needed
  for (size_t i = 0; i < bytes.size(); ++i) {
    const size_t source = source_of(i);
    Use& use = uses_[source];
    use.used = std::max(use.used, bytes[i]);
    if (bytes[i] == 0 || use.used >= use.given) continue;
    // The template may write a part of the string, such as <think>, as its own text.
    const std::string needle = without_blanks(*strings_[source]);
    const size_t around = strings_[source]->size(),
                 begin = places[i].begin - std::min(places[i].begin, around);
    if (has_bytes(without_blanks(whole.substr(begin, places[i].end + around - begin)), needle)) {
      use.used = use.given;
      continue;
    }
    if (solid.empty()) solid = without_blanks(whole);
    if (has_bytes(solid, needle)) use.used = use.given;
  }
}

UnreadStrings::Use UnreadStrings::use_of(const Json& json, size_t& source) const {
  if (json.is_string()) return uses_[source++];
  Use use;
  if (json.is_object())
    for (const auto& [key, inner] : json.items()) {
      if (key == "type" && inner.is_string())
        ++source;
      else
        use += use_of(inner, source);
    }
  if (json.is_array())
    for (const Json& inner : json) use += use_of(inner, source);
  return use;
}

bool UnreadStrings::stands_in_json(const std::string& key) const {
  const auto found = keys_.find(key);
  return found != keys_.end() && found->second.is_read;
}

// Notes the outermost values of which nothing is read.
void UnreadStrings::note_tree(ReadProbe& probe, const Json& json, const std::string& path, size_t& source,
                              SampleNotes& notes) const {
  size_t inner = source;
  if (use_of(json, source).is_lost()) return count(notes.unread, path);
  if (json.is_object())
    for (const auto& [key, value] : json.items()) {
      const std::string path_of_inner = path_of_value(path, key);
      if (key == "type" && value.is_string()) {
        ++inner;
        if (!is_implied_type(value) && !stands_in_json(key) && !probe.reads(path_of_inner, value))
          count(notes.unread, path_of_inner);
      } else if (stands_in_json(key)) {
        note_tree(probe, value, path_of_inner, inner, notes);
      } else {
        note_field(probe, value, path_of_inner, inner, notes);
      }
    }
  if (json.is_array())
    for (const Json& value : json) note_tree(probe, value, path + "[]", inner, notes);
}

void UnreadStrings::note_field(ReadProbe& probe, const Json& value, const std::string& path, size_t& source,
                               SampleNotes& notes) const {
  size_t behind = source;
  if (use_of(value, behind).given == 0 && !is_without_content(value) && !probe.reads(path, value)) {
    count(notes.unread, path);
    source = behind;
    return;
  }
  note_tree(probe, value, path, source, notes);
}

// Notes what is unread in a content that is read in part. Returns the use of its texts.
UnreadStrings::Use UnreadStrings::note_parts(ReadProbe& probe, const Json& parts, size_t source,
                                             SampleNotes& notes) const {
  Use texts;
  for (const Json& part : parts) {
    if (part.is_string()) {
      texts += use_of(part, source);
    } else if (type_of_part(part) == "text") {
      for (const auto& [key, value] : part.items()) {
        if (key == "text")
          texts += use_of(value, source);
        else if (key == "type")
          ++source;
        else
          note_field(probe, value, "part." + key, source, notes);
      }
    } else if (use_of(part, source).used == 0) {
      count(notes.unread, "part " + type_of_part(part));
    } else if (part.contains("text") && !probe.mentions(type_of_part(part))) {
      count(notes.unread, "type of part " + type_of_part(part));
    }
  }
  return texts;
}

UnreadStrings::Use UnreadStrings::note_content(ReadProbe& probe, const Json& message, bool is_answer,
                                               size_t& source, SampleNotes& notes) const {
  const Json& content = message["content"];
  const size_t first = source;
  const Use all = use_of(content, source);
  if (all.is_lost()) {
    if (!is_answer) count(notes.unread, "message of " + role_of(message));
    return all;
  }
  const Use texts = content.is_array() ? note_parts(probe, content, first, notes) : all;
  if (texts.used < texts.given) {
    if (message["role"] == "assistant")
      ++notes.cut;
    else
      count(notes.unread, "a part of a message of " + role_of(message));
  }
  return all;
}

void UnreadStrings::note_message(ReadProbe& probe, size_t index, bool is_answer, size_t& source,
                                 SampleNotes& notes) const {
  const Json& message = (*conversation_.messages)[index];
  // The reasoning stands under several names with one value. It suffices that one of them is read.
  Use content, beside, reasoning;
  for (const auto& [key, value] : message.items()) {
    size_t first = source;
    if (is_answer_field(key)) beside += use_of(value, first);
    if (key == "role") {
      ++source;
    } else if (key == "content") {
      content = note_content(probe, message, is_answer, source, notes);
    } else if (is_reasoning(key) && value == message["reasoning_content"]) {
      const Use use = use_of(value, source);
      if (use.given == 0 && !is_without_content(value) && (*given_.messages)[index].contains(key))
        count(notes.unread, "message." + key);
      reasoning = {std::max(reasoning.given, use.given), std::max(reasoning.used, use.used)};
    } else {
      note_field(probe, value, "message." + key, source, notes);
    }
  }
  if (reasoning.used < reasoning.given) {
    const std::string name = "message." + reasoning_name((*given_.messages)[index]);
    count(notes.unread, reasoning.used == 0 ? name : "a part of " + name);
  }
  if (!is_answer) return;
  if (content.is_lost() || (content.given == 0 && beside.is_lost()))
    throw RefusedRecord(
        fmt::format("the chat template leaves out message {}, an answer that is to be trained", index + 1),
        fmt::format(
            "{}Give --chat-template FILE, a template that renders it, or leave such records out with "
            "--bad-records skip.",
            message.contains("function_call") ? "Write its \"function_call\" as \"tool_calls\". Or: " : ""));
  if (content.given > 0 || beside.given > 0) return;
  if (const std::string said = said_otherwise((*given_.messages)[index]); !said.empty())
    throw RefusedRecord(fmt::format("message {} is an answer that is to be trained, and nothing of it but {} "
                                    "is given, which is not read",
                                    index + 1, said),
                        "Write it as text, or leave such records out with --bad-records skip.");
  ++notes.empty;
}

void UnreadStrings::note(const ChatRenderer& renderer, const std::vector<size_t>& answers,
                         SampleNotes& notes) const {
  ReadProbe probe(renderer, conversation_);
  size_t source = 0;
  for (size_t m = 0; m < conversation_.messages->size(); ++m)
    note_message(probe, m, std::binary_search(answers.begin(), answers.end(), m), source, notes);
  if (conversation_.tools) note_tree(probe, *conversation_.tools, "tools", source, notes);
}

}  // namespace sluice
