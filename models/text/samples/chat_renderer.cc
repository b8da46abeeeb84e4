#include "models/text/samples/chat_renderer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/strict_json.h"

namespace sluice {

namespace {

using Json = nlohmann::ordered_json;

// The day that strftime_now tells. It is fixed, so that the same data make the same samples on every day.
std::tm fixed_day() {
  std::tm day{};
  day.tm_year = 2025 - 1900;
  day.tm_mday = 1;
  day.tm_wday = 3;  // Wednesday
  return day;
}

bool is_of_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

bool has_word(const std::string& text, const std::string& word) {
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_of_name(text[at - 1])) && (end == text.size() || !is_of_name(text[end]))) return true;
  }
  return false;
}

// Whether the expression that begins at `at`, behind the word "role", has `word` as a literal. The search
// stops at the expression's end, at another operand, or after kReach bytes.
bool is_compared_with(std::string_view text, size_t at, std::string_view word) {
  constexpr size_t kReach = 120;
  std::string_view rest = text.substr(at, kReach);
  for (const char* end : {"%}", "}}", " and ", " or "}) rest = rest.substr(0, rest.find(end));
  if (rest.starts_with('\'') || rest.starts_with('"')) rest.remove_prefix(1);  // ends message["role"]
  for (size_t begin = rest.find_first_of("'\""); begin != rest.npos;
       begin = rest.find_first_of("'\"", begin)) {
    const size_t end = rest.find(rest[begin], begin + 1);
    if (end == rest.npos) return false;
    // In message["content"] the string is a key; in ["user", "tool"] the strings are literals.
    const bool is_key = begin >= 2 && rest[begin - 1] == '[' && is_of_name(rest[begin - 2]);
    if (!is_key && rest.substr(begin + 1, end - begin - 1) == word) return true;
    begin = end + 1;
  }
  return false;
}

// The text of a part that is a string, or an object of a type for texts; else nullptr.
const std::string* text_of(const Json& part) {
  if (part.is_string()) return &part.get_ref<const std::string&>();
  if (!part.is_object()) return nullptr;
  const std::string type = part.contains("type") ? type_of_part(part) : "text";
  const auto text = part.find("text");
  const bool is_text = type == "text" || type == "input_text" || type == "output_text";
  return is_text && text != part.end() && text->is_string() ? &text->get_ref<const std::string&>() : nullptr;
}

bool has_parts(const Json& message) { return message.contains("content") && message["content"].is_array(); }

// The message's reasoning; nullptr: it has none.
const Json* reasoning_of(const Json& message) {
  for (const char* field : kReasoningFields)
    if (const auto found = message.find(field); found != message.end() && !found->is_null()) return &*found;
  return nullptr;
}

void note_keys_beside_text(const Json& part, SampleNotes& notes) {
  if (part.is_object())
    for (const auto& [key, value] : part.items())
      if (key != "type" && key != "text" && !value.is_null() && !(value.is_structured() && value.empty()))
        count(notes.unread, "part." + key);
}

// Makes every part with a text {"type": "text", "text": ...}, which templates know.
void name_parts(Json& content) {
  for (Json& part : content) {
    const std::string* text = text_of(part);
    if (text == nullptr || (part.is_object() && part.contains("type") && type_of_part(part) == "text"))
      continue;
    Json named{{"type", "text"}, {"text", *text}};
    if (part.is_object())
      for (const auto& [key, value] : part.items())
        if (key != "type" && key != "text") named[key] = value;
    part = std::move(named);
  }
}

void join_parts(Json& content, SampleNotes& notes) {
  std::string joined;
  bool is_first = true;
  for (const Json& part : content) {
    if (const std::string* text = text_of(part)) {
      if (!is_first) joined += '\n';
      joined += *text;
      is_first = false;
      note_keys_beside_text(part, notes);
    } else {
      count(notes.unread, "part " + (part.is_object() ? type_of_part(part) : "that is no object"));
    }
  }
  content = std::move(joined);
}

}  // namespace

std::string type_of_part(const Json& part) {
  if (!part.is_object() || part.empty()) return "without a type";
  const auto type = part.find("type");
  return type != part.end() && type->is_string() ? type->get<std::string>() : "of " + part.begin().key();
}

ChatRenderer::ChatRenderer(const TextModel& model, const std::string& template_values)
    : model_(model), values_(std::make_shared<const Json>(parse_strict_json_line(template_values))) {
  if (!values_->is_object()) throw std::invalid_argument("the template's values are no JSON object");
  options_.now = fixed_day();
  for (const auto& [name, content] : model_.controls) options_.control_variables.push_back(name);
  for (const auto& [name, value] : values_->items())
    if (!has_word(model_.chat_source, name) && !has_word(model_.tools_chat_source, name))
      throw Error(
          ExitCode::usage,
          fmt::format("The chat template has no variable {}, which --template-values sets.", printable(name)),
          "Look into the template for its name, or leave it out.");
  plain_reads_parts_ = model_.chat && reads_parts(*model_.chat);
  tools_reads_parts_ = model_.tools_chat && reads_parts(*model_.tools_chat);
}

const ChatTemplate* ChatRenderer::template_for(const Conversation& conversation) const {
  if (conversation.tools && model_.tools_chat) return &*model_.tools_chat;
  return model_.chat ? &*model_.chat : nullptr;
}

const std::string& ChatRenderer::source_for(const Conversation& conversation) const {
  return conversation.tools && model_.tools_chat ? model_.tools_chat_source : model_.chat_source;
}

bool ChatRenderer::mentions(const Conversation& conversation, const std::string& name) const {
  return has_word(source_for(conversation), name);
}

bool ChatRenderer::knows_role(const Conversation& conversation, const std::string& role) const {
  constexpr std::string_view kRole = "role";
  const std::string& source = source_for(conversation);
  for (size_t at = source.find(kRole); at != source.npos; at = source.find(kRole, at + 1))
    if (is_compared_with(source, at + kRole.size(), role)) return true;
  return false;
}

namespace {

// The variable that a template's error names as undefined; empty: none.
std::string undefined_name(const std::string& what) {
  static constexpr std::string_view kUndefined = "' is undefined";
  const size_t end = what.find(kUndefined),
               begin = end == 0 || end == what.npos ? what.npos : what.rfind('\'', end - 1);
  return begin == what.npos ? "" : what.substr(begin + 1, end - begin - 1);
}

// What `render` returns. Throws std::invalid_argument in place of Error.
template <class Render>
Rendered rendered(const Render& render) {
  try {
    return render();
  } catch (const Error& error) {
    std::string what = error.what();
    if (what.ends_with('.')) what.pop_back();  // it becomes a part of a sentence
    const std::string name = undefined_name(what);
    what = "the chat template refuses it: " + what;
    if (name.empty()) throw std::invalid_argument(what);
    throw RefusedRecord(
        what, fmt::format("Give its value with --template-values, as '{}=\"\"', or leave such records "
                          "out with --bad-records skip.",
                          name));
  }
}

}  // namespace

// Whether the template renders the texts of parts, and not the list as a whole with all its keys and types.
bool ChatRenderer::reads_parts(const ChatTemplate& chat) const {
  const auto part = [](const char* text) { return Json::array({{{"type", "text"}, {"text", text}}}); };
  Conversation probe;
  probe.messages =
      std::make_shared<const Json>(Json::array({{{"role", "user"}, {"content", part("question")}},
                                                {{"role", "assistant"}, {"content", part("answer")}}}));
  Json variables{{"messages", *probe.messages}, {"add_generation_prompt", false}};
  for (const auto& [name, content] : model_.controls) variables[name] = content;
  try {
    const Rendered text = rendered([&] { return chat.render(variables, options_); });
    const auto has = [&](uint32_t source) {
      return std::any_of(text.sources.begin(), text.sources.end(),
                         [&](const SourceRange& range) { return range.source == source; });
    };
    // Each message has three strings: role, type and text.
    return has(2) && has(5) && !has(1) && !has(4) && !has(SourceRange::kNoValue);
  } catch (const std::invalid_argument&) {
    return false;
  }
}

AdaptedConversation ChatRenderer::adapted(const Conversation& conversation, SampleNotes& notes) const {
  if (template_for(conversation) == nullptr)
    throw RefusedRecord(
        "it is a conversation, and the tokenizer has no chat template" +
            (model_.template_names.empty()
                 ? std::string()
                 : fmt::format(" of the name default, but {}", fmt::join(model_.template_names, ", "))),
        model_.template_names.empty()
            ? "Give --chat-template FILE, a Jinja template, or the --tokenizer DIR of a "
              "model for chats."
            : "Choose one of them with --chat-template NAME.");
  if (conversation.template_values)
    for (const auto& [name, value] : conversation.template_values->items())
      if (!mentions(conversation, name)) count(notes.unread, "variable " + name);
  const bool is_plain = !(conversation.tools && model_.tools_chat);
  const bool joins = !(is_plain ? plain_reads_parts_ : tools_reads_parts_);
  const auto is_adapted = [&](const Json& message) {
    return has_parts(message) || reasoning_of(message) != nullptr;
  };
  if (std::none_of(conversation.messages->begin(), conversation.messages->end(), is_adapted))
    return {conversation, TemplateMessages(conversation.messages)};
  Conversation out = conversation;
  Json messages = *conversation.messages;
  for (Json& message : messages) {
    if (has_parts(message)) {
      if (joins)
        join_parts(message["content"], notes);
      else
        name_parts(message["content"]);
    }
    if (const Json* found = reasoning_of(message)) {
      const Json reasoning = *found;
      message["reasoning_content"] = reasoning;
      if (!message.contains("thinking")) message["thinking"] = reasoning;
    }
  }
  out.messages = std::make_shared<const Json>(std::move(messages));
  return {out, TemplateMessages(out.messages)};
}

Rendered ChatRenderer::render(const AdaptedConversation& conversation, size_t messages, bool prompts) const {
  Json variables = Json::object();
  if (conversation.tools) variables["tools"] = *conversation.tools;
  for (const auto& [name, content] : model_.controls) variables[name] = content;
  variables["add_generation_prompt"] = prompts;
  for (const Json* values : {values_.get(), conversation.template_values.get()})
    if (values != nullptr)
      for (const auto& [name, value] : values->items()) variables[name] = value;
  return rendered(
      [&] { return template_for(conversation)->render(conversation.values, messages, variables, options_); });
}

}  // namespace sluice
