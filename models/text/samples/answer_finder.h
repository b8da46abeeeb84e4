// Where the answers of a conversation stand in its text.
//
// The text of an answer is what the answer adds. It is the template's text of the messages up to and with the
// answer, less the template's text, with add_generation_prompt, of the messages before the answer.
// 1. Where a prompt ends with tags that the answer's text does not have (DeepSeek-R1's opens a thought), the
//    answer begins where the two texts differ, if only tags stand between that place and the answer's
//    content.
// 2. Where the text of the messages up to an answer ends with something that the whole text does not have
//    there (Phi-3 puts an end token behind every text), the answer ends where the two texts differ, if
//    literals stand before that place.
// 3. A template may render an answer otherwise once other messages follow (Qwen3 drops its thoughts). Then no
//    answer is looked for in the whole text, and each answer has a text of its own.
// Each answer takes two renders, so the time of a conversation grows with the square of its length. Once 16
// MiB were rendered for one conversation, an answer between the same literals of the template as an earlier
// answer is taken to begin and end as the earlier answer did, if the text has all of the answer's content.
// Caller: SampleMaker.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/text/samples/chat_renderer.h"

namespace sluice {

// A part of a text that is to be trained. If `end_is_cut`, a token that reaches beyond the end is not part of
// it.
struct AnswerPart {
  ByteRange bytes;
  bool end_is_cut = false;
};

// An answer in the text of the messages up to and with the answer.
struct AnswerText {
  Rendered text;
  ByteRange answer;
  std::string opening;  // what the prompt ends with and the answer lacks
};

class AnswerFinder {
 public:
  // `whole`: the text of the adapted conversation. All outlive the finder.
  AnswerFinder(const ChatRenderer& renderer, const AdaptedConversation& conversation, const Rendered& whole);

  // Returns the parts of the whole text that are these answers, given as indices of messages; nullopt where
  // the template renders one of the answers otherwise once messages follow it. Throws RefusedRecord where an
  // answer cannot be told from its prompt.
  std::optional<std::vector<AnswerPart>> in_whole(const std::vector<size_t>& answers);
  AnswerText alone(size_t answer);
  // Returns the parts that {% generation %} marks for these answers, which ascend.
  std::vector<AnswerPart> generated(const std::vector<size_t>& answers) const;
  // How many of these answers stand outside of {% generation %}, as a whole or in part.
  uint64_t unmarked(const std::vector<size_t>& answers) const;

  size_t opened() const { return opened_; }  // answers of in_whole() to which step 1 applied
  const std::string& opening() const { return opening_; }

 private:
  struct Span {
    size_t begin, end;  // from the first byte of a message's content to behind its last
  };
  // The content of one message in one text, and where the content before it ends.
  struct Content : Span {
    size_t end_before = 0;
    bool is_complete = false;  // the text has all of the message's content
  };
  // How many bytes before its content an answer begins, and AnswerText::opening.
  struct Begin {
    size_t reach = 0;
    std::string opening;
  };
  // The literals of the template on one side of a content, and how far into them an answer reaches.
  struct Border {
    size_t reach = 0;
    bool is_cut = false, is_opened = false;
  };
  Rendered prompt_of(size_t answer) const;
  Rendered text_up_to(size_t answer);
  // Sets where the answer begins, as an earlier answer did. Returns false if no earlier answer tells.
  bool begins_as_others(AnswerText& out, size_t answer) const;
  void find_begin(const Rendered& prompt, size_t answer, AnswerText& out) const;
  std::optional<Content> content_of(const Rendered& text, size_t message) const;
  bool is_complete(size_t message) const;
  std::optional<AnswerPart> measured(size_t answer);
  std::optional<AnswerPart> as_others(size_t answer);
  void count_opened(const std::string& opening);
  bool is_role(uint32_t source) const;
  std::vector<SourceRange>::const_iterator content_from(size_t byte) const;
  static std::string literals_before(const Rendered& text, const Content& content);
  std::string literals_before(size_t message) const;  // in the whole text, as the next function
  std::string literals_behind(size_t message) const;

  const ChatRenderer& renderer_;
  const AdaptedConversation& conversation_;
  const Rendered& whole_;
  std::vector<size_t> first_source_;    // by message, and one more
  std::vector<uint32_t> role_sources_;  // ascending
  std::vector<SourceRange> content_;    // of the whole text, without roles
  std::vector<Span> spans_;             // of the whole text, by message; empty: the message has no content
  std::vector<uint64_t> used_bytes_;    // by source: bytes in the whole text that are not blank
  std::vector<uint64_t> given_bytes_;   // by source: bytes in the conversation that are not blank
  std::map<std::string, Border> before_, behind_;
  std::map<std::string, Begin> begins_;  // of answers in texts of their own, by the literals before them
  uint64_t rendered_bytes_ = 0;
  size_t opened_ = 0;
  std::string opening_;
};

// Counts a text's bytes that are not blank. Blanks do not count because any template may cut them off.
uint64_t solid_bytes(std::string_view text);
// By source, the bytes of the text that are not blank.
std::vector<uint64_t> solid_bytes_by_source(const Rendered& text, size_t sources);

}  // namespace sluice
