// Chat templates: conversations as the text that a model was trained on.
//
// A ChatTemplate is a template of a model directory (chat_template.jinja, or "chat_template" of
// tokenizer_config.json). It renders the bytes that jinja2 3.1.6 renders in the environment of Hugging Face
// transformers 5.23 (utils/chat_template_utils.py): trim_blocks and lstrip_blocks, lists and objects that
// cannot be changed, break and continue, {% generation %}, tojson, raise_exception, strftime_now. Of Jinja it
// knows a subset. What is outside is refused by name, never guessed; so are integers beyond 64 bits.
//
// Every fault is an Error(malformed_file) with line and column; a fault of a conversation, too, because only
// the template knows what it accepts. No template and no variables crash it, and it ends within
// TemplateLimits. Users' text is data: `content` of Rendered says which bytes came from it.
//
// Callers: readers of conversations. A ChatTemplate may be used from several threads at once.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/text/byte_range.h"
#include "models/text/template/limits.h"

namespace sluice {

struct RenderOptions {
  // Local time for strftime_now. Without it, a template that asks for the time is an error.
  std::optional<std::tm> now = {};
  // Variables whose strings count as the template's own, because they name control tokens: "bos_token".
  std::vector<std::string> control_variables = {};
  TemplateLimits limits = {};
};

// Bytes [begin, end) of a text, which came from one string of the variables. `source`: the string's number
// among all strings that are values in the variables, from 0 in the order of the document; kNoValue for
// keys.
struct SourceRange {
  static constexpr uint32_t kNoValue = UINT32_MAX;
  size_t begin = 0, end = 0;
  uint32_t source = kNoValue;
  bool operator==(const SourceRange&) const = default;
};

struct Rendered {
  std::string text;
  std::vector<ByteRange> generation;  // rendered inside {% generation %}, ascending
  // Bytes from strings of the variables, values and keys, except control variables; ascending, never
  // adjacent. They are to be tokenized without recognizing control tokens.
  std::vector<ByteRange> content;
  // The bytes of `content` again, ascending, each range with the one string that it came from. Bytes that
  // were made of several strings at once count for the first.
  std::vector<SourceRange> sources;
};

namespace jinja {
struct Template;
class MessageValues;
}  // namespace jinja

// The messages of a conversation, which several renders share. A render takes the first messages, as many as
// it asks for. One thread at a time.
class TemplateMessages {
 public:
  explicit TemplateMessages(std::shared_ptr<const nlohmann::ordered_json> list);  // an array

 private:
  friend class ChatTemplate;
  std::shared_ptr<const nlohmann::ordered_json> list_;
  std::shared_ptr<jinja::MessageValues> values_;
};

class ChatTemplate {
 public:
  // `source` is the template's text in UTF-8. Throws Error.
  explicit ChatTemplate(const std::string& source);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // `variables` is an object: "messages", "tools", "add_generation_prompt", ... Throws Error.
  Rendered render(const nlohmann::ordered_json& variables, const RenderOptions& options) const;
  // Renders with the variable "messages", which is the first `count` of `messages`, before all others.
  Rendered render(const TemplateMessages& messages, size_t count, const nlohmann::ordered_json& others,
                  const RenderOptions& options) const;

 private:
  std::unique_ptr<const jinja::Template> tree_;
};

}  // namespace sluice
