// Records as samples: token ids, each with a mark whether it is trained.
//
// A conversation is rendered by the model's chat template. Trained are, of its answers, the parts that the
// template renders inside {% generation %}, if it has any; else what an answer adds to the text before it,
// that is, the template's text of the messages up to the answer less its text of those before, with
// add_generation_prompt. A template may render earlier turns otherwise once others follow (Qwen3 drops their
// thoughts); then each answer becomes a sample of its own. An answer is trained up to its last control token,
// which ends the turn. A token is trained if it has a byte of a trained part.
//
// One maker for each thread. The text model must outlive it.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "models/text/records/record.h"
#include "models/text/samples/sample_choices.h"
#include "models/text/samples/text_model.h"

namespace sluice {

struct SampleChoices {
  TrainOn train_on = TrainOn::answers;
  ControlTokens control_tokens = ControlTokens::of_template;
  std::string template_values = "{}";  // a JSON object: variables of the template
};

struct Sample {
  std::vector<uint32_t> ids = {};
  std::vector<bool> trained = {};
  bool is_text = false;                                 // of no conversation
  size_t unknown_characters = 0, spelled_controls = 0;  // as Encoding has them

  size_t trained_tokens() const;  // the first token never counts: nothing predicts it
};

// A conversation, and a tokenizer without a chat template.
struct NoChatTemplate : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

class SampleMaker {
 public:
  // Throws std::invalid_argument for values that are no JSON object.
  SampleMaker(const TextModel& model, const SampleChoices& choices);

  // The samples of a record, perhaps some without a trained token. Throws std::invalid_argument as
  // parse_record does where the record does not suit the template, Error where the tokenizer fails.
  std::vector<Sample> make(const Record& record);

  // The tokens of a prompt: a conversation with the begin of the next answer, or a text to go on with. Throw
  // as make() does.
  std::vector<uint32_t> prompt(const Conversation& conversation);
  std::vector<uint32_t> prompt(const std::string& text);

 private:
  struct Turn {
    Rendered text;     // of the messages up to an answer
    ByteRange answer;  // what that adds
  };
  void require_chat_template() const;
  // `full`: of all messages.
  Turn turn_of(const Conversation& conversation, size_t answer, const Rendered& full) const;
  std::vector<Sample> of_conversation(const Conversation& conversation);
  std::vector<Sample> of_text(const PlainText& text);
  Rendered render(const Conversation& conversation, size_t messages, bool prompts) const;
  Sample sample_of(const Rendered& text, const std::vector<ByteRange>& parts, bool ends_at_control);
  Sample whole_sample(const Rendered& text);

  const TextModel& model_;
  SampleChoices choices_;
  std::shared_ptr<const nlohmann::ordered_json> template_values_;
  Encoder encoder_;
  RenderOptions render_options_;
};

}  // namespace sluice
