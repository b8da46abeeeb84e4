#include "models/text/samples/unread.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>

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

std::string type_of(const Json& part) {
  if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) return "without a type";
  return part["type"].get<std::string>();
}

}  // namespace

UnreadStrings::UnreadStrings(const Conversation& conversation) : conversation_(conversation) {
  add_strings(*conversation.messages, strings_);
  if (conversation.tools) add_strings(*conversation.tools, strings_);
  uses_.resize(strings_.size());
  for (size_t i = 0; i < uses_.size(); ++i) uses_[i].given = solid_bytes(*strings_[i]);
}

void UnreadStrings::add_sample(const Rendered& text) {
  const std::string_view whole = text.text;
  std::vector<uint64_t> bytes(uses_.size());  // of strings that are not used up
  std::vector<ByteRange> places(uses_.size());
  for (const SourceRange& range : text.sources) {
    const uint32_t i = range.source;
    if (i >= uses_.size() || uses_[i].used >= uses_[i].given) continue;
    if (bytes[i] == 0) places[i].begin = range.begin;
    places[i].end = range.end;
    bytes[i] += solid_bytes(whole.substr(range.begin, range.end - range.begin));
  }
  std::string solid;  // of the text; made where it is needed
  for (size_t i = 0; i < bytes.size(); ++i) {
    Use& use = uses_[i];
    use.used = std::max(use.used, bytes[i]);
    if (bytes[i] == 0 || use.used >= use.given) continue;
    // The template may write a part of it, such as <think>, as its own.
    const std::string needle = without_blanks(*strings_[i]);
    const size_t around = strings_[i]->size(), begin = places[i].begin - std::min(places[i].begin, around);
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
  if (json.is_structured())
    for (const Json& inner : json) {
      const Use one = use_of(inner, source);
      use.given += one.given, use.used += std::min(one.given, one.used);
    }
  return use;
}

void UnreadStrings::note_content(const Json& message, size_t index, size_t& source, bool is_answer,
                                 SampleNotes& notes) const {
  const Json& content = message["content"];
  Use all;
  if (content.is_array()) {
    for (const Json& part : content) {
      const Use use = use_of(part, source);
      all.given += use.given, all.used += use.used;
      const std::string type = type_of(part);
      const bool is_text = part.is_string() || (part.is_object() && part.contains("text"));
      if (!is_text && use.used == 0) count(notes.unread, "part " + type);
    }
    if (all.used == 0 && all.given > 0 && !is_answer) count(notes.unread, "message of " + role_of(message));
  } else {
    all = use_of(content, source);
    if (all.given > 0 && all.used == 0 && !is_answer) count(notes.unread, "message of " + role_of(message));
    if (all.used > 0 && all.used < all.given) {
      if (message["role"] == "assistant")
        ++notes.cut;
      else
        count(notes.unread, "a part of a message of " + role_of(message));
    }
  }
  if (is_answer && all.given > 0 && all.used == 0)
    throw RefusedRecord(
        fmt::format("the chat template leaves out message {}, an answer that is to be trained", index + 1),
        "Give --chat-template FILE, a template that renders it, or leave such records out with --bad-records "
        "skip.");
}

void UnreadStrings::note(const ChatRenderer& renderer, const std::vector<size_t>& answers,
                         SampleNotes& notes) const {
  size_t source = 0;
  for (size_t m = 0; m < conversation_.messages->size(); ++m) {
    const Json& message = (*conversation_.messages)[m];
    Use reasoning;  // all its fields have the same, of which one is enough
    for (const auto& [key, value] : message.items()) {
      if (key == "role") {
        ++source;
        continue;
      }
      if (key == "content") {
        note_content(message, m, source, std::binary_search(answers.begin(), answers.end(), m), notes);
        continue;
      }
      const Use use = use_of(value, source);
      if (std::find(kReasoningFields.begin(), kReasoningFields.end(), key) != kReasoningFields.end()) {
        reasoning = {std::max(reasoning.given, use.given), std::max(reasoning.used, use.used)};
        continue;
      }
      const bool is_read = use.given > 0 ? use.used > 0 : renderer.mentions(conversation_, key);
      const bool is_empty = value.is_structured() ? value.empty() : value.is_string() && use.given == 0;
      if (!is_read && !is_empty) count(notes.unread, "message." + key);
    }
    if (reasoning.used < reasoning.given)
      count(notes.unread, reasoning.used == 0 ? "message.reasoning_content" : "a part of reasoning_content");
  }
  if (!conversation_.tools) return;
  const Use tools = use_of(*conversation_.tools, source);
  if (tools.given > 0 && tools.used == 0) count(notes.unread, "tools");
}

}  // namespace sluice
