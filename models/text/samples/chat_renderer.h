// Conversations as the text of a model's chat template, and which string of a conversation each byte of that
// text came from.
//
// If a model has several named templates, a conversation with tools is rendered by the one named tool_use, as
// in transformers 5.23. The template gets a message's reasoning under each name by which templates read it,
// as in transformers. A template that reads a message's content only as a string gets a list of parts as one
// string: the texts of the parts, joined by line ends, as in vLLM and llama.cpp. Other templates get every
// part with a text as {"type": "text"}. One renderer for each thread; the text model must outlive it. Caller:
// SampleMaker.
#pragma once

#include <array>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/text/records/record.h"
#include "models/text/samples/sample_notes.h"
#include "models/text/samples/text_model.h"

namespace sluice {

// Keys of a message's reasoning; the first that a message has counts.
inline constexpr std::array kReasoningFields = {"reasoning_content", "thinking", "reasoning"};

// The "type" of a part of a content. If the part has no type, "of KEY" with the part's first key.
std::string type_of_part(const nlohmann::ordered_json& part);

// A conversation as the template can read it.
struct AdaptedConversation : Conversation {
  TemplateMessages values;
};

class ChatRenderer {
 public:
  // `template_values`: a JSON object, variables of the template. Throws std::invalid_argument where the text
  // is no JSON object, Error(usage) where the template lacks one of the variables.
  ChatRenderer(const TextModel& model, const std::string& template_values);

  // Returns the conversation as the template can read it. Notes parts of contents that are left out, and
  // variables that the template lacks. Throws RefusedRecord where the model has no template.
  AdaptedConversation adapted(const Conversation& conversation, SampleNotes& notes) const;

  // The text of the first `messages` messages; if `prompts`, with the start of the next answer. Sources are
  // numbered over the messages given, then the tools. Throws std::invalid_argument where the template refuses
  // the messages.
  Rendered render(const AdaptedConversation& conversation, size_t messages, bool prompts) const;

  // Whether the name stands anywhere in the conversation's template, as a whole word.
  bool mentions(const Conversation& conversation, const std::string& name) const;
  // Whether the template compares a message's role with `role`, as message.role == "developer" does.
  bool knows_role(const Conversation& conversation, const std::string& role) const;

 private:
  const ChatTemplate* template_for(const Conversation& conversation) const;
  const std::string& source_for(const Conversation& conversation) const;
  bool reads_parts(const ChatTemplate& chat) const;

  const TextModel& model_;
  std::shared_ptr<const nlohmann::ordered_json> values_;
  RenderOptions options_;
  bool plain_reads_parts_ = false, tools_reads_parts_ = false;
};

}  // namespace sluice
