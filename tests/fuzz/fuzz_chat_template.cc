#include <nlohmann/json.hpp>

#include "engine/base/strict_json.h"
#include "models/text/template/chat_template.h"
#include "models/text/unicode.h"
#include "tests/fuzz/promises.h"

namespace sluice::fuzzing {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kConversation = R"({"messages": [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " <s>\u00e9 "},
    {"role": "assistant", "content": null, "reasoning_content": "so", "tool_calls": [
      {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"x": 1, "y": 2.5}}}]},
    {"role": "tool", "tool_call_id": "1", "content": "3.5"},
    {"role": "assistant", "content": "<think>\nso\n</think>\n\n3.5"},
    {"role": "user", "content": [{"type": "text", "text": "Thanks"}]}],
  "tools": [{"type": "function", "function": {"name": "add", "description": "of two", "parameters": {
    "type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
    "required": ["x", "y"]}}}],
  "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": true})";

// The JSON object behind the template, or our conversation if there is no object.
Json variables_of(const Parts& parts) {
  static const Json conversation = Json::parse(kConversation);
  if (!parts.is_divided) return conversation;
  try {
    Json given = parse_strict_json_line(std::string(parts.second));
    if (given.is_object()) return given;
  } catch (const std::invalid_argument&) {
  }
  return conversation;
}

// Ranges lie in the text, one behind the other.
void check_ranges(const std::vector<ByteRange>& ranges, size_t bytes, const std::string& what) {
  size_t end = 0;
  for (const ByteRange& range : ranges) {
    demand(range.begin >= end && range.begin <= range.end && range.end <= bytes,
           what + " ascends in the text");
    end = range.end;
  }
}

}  // namespace

bool fuzz_chat_template(Input input) {
  const Parts parts = divided(text_of(input));
  const Json variables = variables_of(parts);
  RenderOptions options;
  options.now = std::tm{.tm_mday = 1, .tm_year = 126, .tm_wday = 4};
  options.control_variables = {"bos_token", "eos_token"};
  // A two-hundredth of a render's limits: what is not counted against them shows as time or memory.
  options.limits = {.steps = 100'000, .bytes = 4 << 20};
  return is_taken([&] {
    const Rendered rendered = ChatTemplate(std::string(parts.first)).render(variables, options);
    demand(is_utf8(rendered.text), "rendered text is UTF-8");
    check_ranges(rendered.content, rendered.text.size(), "content");
    check_ranges(rendered.generation, rendered.text.size(), "generation");
    for (const ByteRange& range : rendered.content) demand(range.begin < range.end, "content is not empty");
  });
}

}  // namespace sluice::fuzzing
