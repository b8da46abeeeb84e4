// Records as samples: token ids, each with a mark whether it is trained.
//
// A conversation is rendered by the model's chat template. If the template marks text by {% generation %},
// the marked parts of answers are trained. Else the answers are trained as AnswerFinder finds them. A
// template may render earlier turns otherwise once later ones follow (Qwen3 drops their thoughts); then each
// answer becomes a sample of its own. An answer is trained up to its last control token, which ends the turn.
// A token is trained if it has a byte of a trained part.
//
// A text that begins or ends with a control token was rendered by a template before, so the control tokens in
// it count as such. In any other text of users they are plain text.
//
// One maker for each thread. The text model must outlive it.
#pragma once

#include <string>
#include <vector>

#include "models/text/records/record.h"
#include "models/text/samples/chat_renderer.h"
#include "models/text/samples/sample_choices.h"
#include "models/text/samples/sample_notes.h"
#include "models/text/samples/samples.h"
#include "models/text/samples/text_model.h"

namespace sluice {

struct AnswerPart;
class UnreadStrings;

struct SampleChoices {
  TrainOn train_on = TrainOn::answers;
  ControlTokens control_tokens = ControlTokens::of_template;
  std::string template_values = "{}";  // a JSON object: variables of the template
};

class SampleMaker {
 public:
  // Throws as ChatRenderer.
  SampleMaker(const TextModel& model, const SampleChoices& choices);

  // The samples of a record, perhaps some without a trained token. Throws std::invalid_argument as
  // parse_record does where the record does not suit the template, Error where the tokenizer fails.
  Samples make(const Record& record);
  // Note a key of a record that nothing reads, and why a record is left out, as a clause.
  void note_unread(const std::string& key) { count(notes_.unread, key); }
  void note_refusal(const std::string& why);
  // What is to be told of the records since the last call.
  SampleNotes take_notes();

  // The tokens of a prompt: a conversation with the start of the next answer, or a text to go on with. Throw
  // as make() does, and where a part of a content cannot be read; anything else that is not read is noted.
  std::vector<uint32_t> prompt(const Conversation& conversation);
  std::vector<uint32_t> prompt(const std::string& text);

 private:
  Samples of_conversation(const Conversation& given, SampleNotes& notes);
  Samples of_answers(const AdaptedConversation& conversation, const Rendered& whole,
                     const std::vector<size_t>& answers, UnreadStrings& unread, SampleNotes& notes);
  Samples of_text(const PlainText& text, SampleNotes& notes);
  Encoding encoded_text(const Rendered& rendered, bool& was_rendered);
  bool is_known_role(const Conversation& conversation, const std::string& role) const;
  void check_calls(const Conversation& conversation) const;
  void check_roles(const Conversation& conversation, SampleNotes& notes) const;
  std::span<const ByteRange> plain_parts(const Rendered& text) const;
  Rendered rendered(const Conversation& given, bool prompts, AdaptedConversation& adapted) const;
  bool is_end(uint32_t id) const;
  void note_end(const std::vector<uint32_t>& ids, size_t first, size_t end, SampleNotes& notes) const;
  // `ids`: the token ids of `encoding`.
  Sample sample_of(const Rendered& text, std::vector<uint32_t> ids, const Encoding& encoding,
                   const std::vector<AnswerPart>& parts, bool ends_at_control, SampleNotes& notes) const;
  Sample conversation_sample(const Rendered& text, const std::vector<AnswerPart>& parts, bool ends_at_control,
                             SampleNotes& notes);
  // Returns what conversation_sample() does, but faster if the text begins as the previous call's text does.
  Sample next_sample(const Rendered& text, const std::vector<AnswerPart>& parts, bool ends_at_control,
                     SampleNotes& notes);

  const TextModel& model_;
  SampleChoices choices_;
  ChatRenderer renderer_;
  Encoder encoder_;
  EncodedText last_;  // of next_sample()
  SampleNotes notes_;
};

}  // namespace sluice
