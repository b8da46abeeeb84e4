#include "models/text/samples/sample_maker.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "models/text/records/calls.h"
#include "models/text/records/record_reader.h"
#include "models/text/samples/answer_finder.h"
#include "models/text/samples/unread.h"

namespace sluice {

namespace {

using Json = nlohmann::ordered_json;

bool is_blank(std::string_view text) { return solid_bytes(text) == 0; }

// The answers that are to be trained, as indices of messages.
std::vector<size_t> chosen_answers(const Conversation& conversation, TrainOn train_on) {
  const Json& messages = *conversation.messages;
  std::vector<size_t> answers;
  for (size_t i = 0; i < conversation.trained_messages.size(); ++i) {
    if (train_on == TrainOn::last && messages[i]["role"] == "assistant") answers.clear();
    if (conversation.trained_messages[i]) answers.push_back(i);
  }
  return answers;
}

size_t answer_count(const Conversation& conversation) {
  return static_cast<size_t>(
      std::ranges::count_if(*conversation.messages, [](const Json& m) { return m["role"] == "assistant"; }));
}

std::vector<AnswerPart> all_of(const Rendered& text) { return {{{0, text.text.size()}, false}}; }

// Returns `byte`, or if the encoding has left it out, the next byte that is not left out.
size_t behind_left_out(const Encoding& encoding, size_t byte) {
  auto range = std::partition_point(encoding.left_out.begin(), encoding.left_out.end(),
                                    [&](const ByteRange& r) { return r.end <= byte; });
  for (; range != encoding.left_out.end() && range->begin <= byte; ++range) byte = range->end;
  return byte;
}

// The token that has the byte, if there is one.
std::optional<uint32_t> token_at(const Encoding& encoding, size_t byte) {
  const auto behind = std::upper_bound(encoding.begins.begin(), encoding.begins.end(), byte);
  if (behind == encoding.begins.begin() || behind_left_out(encoding, byte) != byte) return std::nullopt;
  return encoding.ids[static_cast<size_t>(behind - encoding.begins.begin()) - 1];
}

}  // namespace

SampleMaker::SampleMaker(const TextModel& model, const SampleChoices& choices)
    : model_(model),
      choices_(choices),
      renderer_(model, choices.template_values),
      encoder_(model.tokenizer) {}

Samples SampleMaker::make(const Record& record) {
  SampleNotes notes;
  const auto* const conversation = std::get_if<Conversation>(&record);
  for (const std::string& key :
       conversation ? conversation->unread_keys : std::get<PlainText>(record).unread_keys)
    count(notes.unread, key);
  Samples samples =
      conversation ? of_conversation(*conversation, notes) : of_text(std::get<PlainText>(record), notes);
  notes_ += notes;
  return samples;
}

void SampleMaker::note_refusal(const std::string& why) {
  constexpr size_t kBytes = 500;
  if (notes_.refusal.empty()) notes_.refusal = why.size() > kBytes ? why.substr(0, kBytes) + "..." : why;
}

SampleNotes SampleMaker::take_notes() { return std::exchange(notes_, {}); }

// The parts in which the text of a control token is plain text: all that came from users, unless the choices
// make tokens of it everywhere.
std::span<const ByteRange> SampleMaker::plain_parts(const Rendered& text) const {
  const bool are_plain = choices_.control_tokens == ControlTokens::of_template;
  return are_plain ? std::span(text.content) : std::span<const ByteRange>{};
}

bool SampleMaker::is_end(uint32_t id) const {
  return model_.tokenizer.is_special(id) ||
         std::find(model_.ends.begin(), model_.ends.end(), id) != model_.ends.end();
}

// Notes what ends a trained part: its last token that is not blank, if it is a control token.
void SampleMaker::note_end(const std::vector<uint32_t>& ids, size_t first, size_t end,
                           SampleNotes& notes) const {
  while (end > first && is_blank(model_.tokenizer.decode(std::span(ids).subspan(end - 1, 1), false))) --end;
  if (end == first) return;
  if (is_end(ids[end - 1])) {
    ++notes.ends[ids[end - 1]];
  } else {
    ++notes.endless;
    notes.no_end = model_.no_end;
  }
}

// The sample trains `parts`, which are in ascending order. With `ends_at_control`, a part ends with its last
// control token, if only blanks lie behind that.
Sample SampleMaker::sample_of(const Rendered& text, std::vector<uint32_t> ids, const Encoding& encoding,
                              const std::vector<AnswerPart>& parts, bool ends_at_control,
                              SampleNotes& notes) const {
  Sample sample{.ids = std::move(ids),
                .unknown_characters = encoding.unknown_characters,
                .spelled_controls = encoding.spelled_controls};
  sample.trained.resize(sample.ids.size());
  size_t token = 0;
  const auto seek = [&](size_t byte) {
    const auto from = encoding.begins.begin();
    token = static_cast<size_t>(
        std::lower_bound(from + static_cast<std::ptrdiff_t>(token), encoding.begins.end(), byte) - from);
  };
  for (const auto& [given, end_is_cut] : parts) {
    const ByteRange part{behind_left_out(encoding, given.begin), given.end};
    seek(part.begin);
    // The token before `token` may have the part's first byte.
    const bool is_border = token == sample.ids.size() || encoding.begins[token] > part.begin;
    const size_t first = token > 0 && part.begin < part.end && is_border ? token - 1 : token;
    seek(part.end);
    size_t end = token;
    if (end_is_cut && end > first && end < sample.ids.size() && encoding.begins[end] > part.end) --end;
    if (ends_at_control) {
      size_t last = end;
      while (last > first && !model_.tokenizer.is_special(sample.ids[last - 1])) --last;
      const size_t rest = last < end ? encoding.begins[last] : part.end;
      if (last > first && is_blank(std::string_view(text.text).substr(rest, part.end - rest))) end = last;
    }
    std::fill(sample.trained.begin() + static_cast<std::ptrdiff_t>(first),
              sample.trained.begin() + static_cast<std::ptrdiff_t>(end), true);
    note_end(sample.ids, first, end, notes);
  }
  return sample;
}

Sample SampleMaker::conversation_sample(const Rendered& text, const std::vector<AnswerPart>& parts,
                                        bool ends_at_control, SampleNotes& notes) {
  Encoding encoding = encoder_.encode(text.text, plain_parts(text));
  std::vector<uint32_t> ids = std::move(encoding.ids);
  return sample_of(text, std::move(ids), encoding, parts, ends_at_control, notes);
}

Sample SampleMaker::next_sample(const Rendered& text, const std::vector<AnswerPart>& parts,
                                bool ends_at_control, SampleNotes& notes) {
  encoder_.encode_next(text.text, plain_parts(text), last_);
  return sample_of(text, last_.encoding.ids, last_.encoding, parts, ends_at_control, notes);
}

namespace {

bool has_calls(const Conversation& conversation) {
  return std::ranges::any_of(*conversation.messages, [](const Json& message) {
    return message.contains("tool_calls") || message.contains("function_call");
  });
}

// Other ways of writing a conversation, for templates that refuse the first: functions within tools; a
// content of null beside calls; arguments as they were given; and arguments as strings.
std::vector<Conversation> written_otherwise(const Conversation& given) {
  std::vector<Conversation> ways;
  const bool are_bare = has_bare_functions(given);
  const Conversation base = are_bare ? with_functions_in_tools(given) : given;
  if (are_bare) ways.push_back(base);
  if (!has_calls(given)) return ways;
  Conversation objects = base;
  objects.given_arguments.clear();
  ways.push_back(with_arguments(objects, Arguments::as_given));
  ways.push_back(with_arguments(base, Arguments::as_given));
  ways.push_back(with_arguments(base, Arguments::as_strings));
  return ways;
}

}  // namespace

// The text of all messages, in the first way of writing them that the template accepts.
Rendered SampleMaker::rendered(const Conversation& given, bool prompts, AdaptedConversation& adapted) const {
  const auto render = [&] { return renderer_.render(adapted, adapted.messages->size(), prompts); };
  std::exception_ptr refusal;
  try {
    return render();
  } catch (const std::invalid_argument&) {
    refusal = std::current_exception();
  }
  SampleNotes noted;
  for (const Conversation& other : written_otherwise(given)) try {
      adapted = renderer_.adapted(other, noted);
      return render();
    } catch (const std::invalid_argument&) {
    }
  std::rethrow_exception(refusal);
}

std::vector<uint32_t> SampleMaker::prompt(const Conversation& given) {
  SampleNotes notes;
  AdaptedConversation conversation = renderer_.adapted(given, notes);
  for (const auto& [name, times] : notes.unread)
    if (name.starts_with("part ")) throw std::invalid_argument("a text model does not read " + name);
  const Rendered text = rendered(given, true, conversation);
  UnreadStrings unread(conversation, given);
  unread.add_sample(text, conversation.messages->size());
  unread.note(renderer_, {}, notes);
  for (const auto& message : *conversation.messages)
    if (const std::string role = message["role"]; !is_known_role(conversation, role))
      count(notes.unknown_roles, role);
  for (const std::string& key : given.unread_keys) count(notes.unread, key);
  notes_ += notes;
  return encoder_.encode(text.text, plain_parts(text)).ids;
}

std::vector<uint32_t> SampleMaker::prompt(const std::string& text) {
  std::vector<uint32_t> ids = model_.tokenizer.prefix();
  const Rendered rendered{text, {}, {{0, text.size()}}, {}};
  bool was_rendered = false;
  const Encoding encoding = encoded_text(rendered, was_rendered);
  notes_.rendered += was_rendered && choices_.control_tokens == ControlTokens::of_template;
  ids.insert(ids.end(), encoding.ids.begin(), encoding.ids.end());
  return ids;
}

bool SampleMaker::is_known_role(const Conversation& conversation, const std::string& role) const {
  return role == "user" || role == "assistant" || role == "system" || role == "tool" ||
         (!role.empty() && renderer_.knows_role(conversation, role));
}

namespace {

// Whether a content is blank or only a thought. Then a call of the same message is the answer.
bool is_thought(const nlohmann::ordered_json& content) {
  if (!content.is_string()) return false;
  const std::string& text = content.get_ref<const std::string&>();
  const size_t last = text.find_last_not_of(" \t\r\n");
  return last == text.npos || text.substr(0, last + 1).ends_with("</think>");
}

}  // namespace

// Refuses answers that are calls if the template knows none: it would render something else in their place.
void SampleMaker::check_calls(const Conversation& conversation) const {
  if (renderer_.mentions(conversation, "tool_calls")) return;
  const Json& messages = *conversation.messages;
  for (size_t i = 0; i < messages.size(); ++i)
    if (messages[i].contains("tool_calls") &&
        (!messages[i].contains("content") || is_thought(messages[i]["content"])))
      throw RefusedRecord(
          fmt::format("message {} calls tools, which the chat template does not render", i + 1),
          "Give --chat-template FILE, a template that does; or leave such records out with --bad-records "
          "skip. Where calls are messages of function_call or tool_call, --data-keys assistant=function_call,"
          "assistant=tool_call trains them as texts.");
}

// Notes roles that neither Sluice nor the template knows. Refuses such a role where an answer would stand,
// since the answer would be lost.
void SampleMaker::check_roles(const Conversation& conversation, SampleNotes& notes) const {
  const Json& messages = *conversation.messages;
  const auto role = [&](size_t i) { return messages[i]["role"].get<std::string>(); };
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string own = role(i);
    if (is_known_role(conversation, own)) continue;
    const bool is_asked = i > 0 && (role(i - 1) == "user" || role(i - 1) == "tool");
    const bool is_answered = i + 1 < messages.size() && role(i + 1) == "assistant";
    if (is_asked && !is_answered && choices_.train_on != TrainOn::all)
      throw RefusedRecord(
          fmt::format("message {} has the role \"{}\", which is not known, and stands where an answer would",
                      i + 1, printable(own)),
          own.empty() || own.find_first_of(",=") != own.npos
              ? "Give it another name in the data, or leave such records out with --bad-records skip."
              : fmt::format("Say what it is: {} trains it, {} does not. Or leave such records out with "
                            "--bad-records skip.",
                            data_keys_option({}, "assistant=" + own), data_keys_option({}, "user=" + own)));
    count(notes.unknown_roles, own);
  }
}

Samples SampleMaker::of_answers(const AdaptedConversation& conversation, const Rendered& whole,
                                const std::vector<size_t>& answers, UnreadStrings& unread,
                                SampleNotes& notes) {
  AnswerFinder finder(renderer_, conversation, whole);
  Samples samples;
  const size_t all = conversation.messages->size();
  const auto add = [&](const Rendered& text, size_t messages, const std::vector<AnswerPart>& parts,
                       bool ends_at_control) {
    unread.add_sample(text, messages);
    samples.add(conversation_sample(text, parts, ends_at_control, notes));
  };
  if (!whole.generation.empty()) {
    std::vector<AnswerPart> parts;
    if (answers.size() == answer_count(conversation))
      for (const ByteRange& marked : whole.generation) parts.push_back({marked, false});
    else
      parts = finder.generated(answers);
    notes.unmarked += finder.unmarked(answers);
    add(whole, all, parts, false);
    return samples;
  }
  if (const auto parts = finder.in_whole(answers)) {
    add(whole, all, *parts, true);
    notes.opened += finder.opened();
    notes.opening = finder.opening();
    return samples;
  }
  // Answers are rendered one at a time, so that only one text of a long conversation is in memory.
  for (const size_t answer : answers) {
    const AnswerText turn = finder.alone(answer);
    unread.add_sample(turn.text, answer + 1);
    samples.add(next_sample(turn.text, {{turn.answer, false}}, true, notes));
    if (turn.opening.empty()) continue;
    ++notes.opened;
    if (notes.opening.empty()) notes.opening = turn.opening;
  }
  last_ = {};
  return samples;
}

Samples SampleMaker::of_conversation(const Conversation& given, SampleNotes& notes) {
  AdaptedConversation conversation = renderer_.adapted(given, notes);
  check_roles(conversation, notes);
  check_calls(given);
  const Rendered whole = rendered(given, false, conversation);
  const std::vector<size_t> answers = chosen_answers(conversation, choices_.train_on);
  UnreadStrings unread(conversation, given);
  Samples samples;
  if (choices_.train_on == TrainOn::all) {
    notes.masked += conversation.masked;
    unread.add_sample(whole, conversation.messages->size());
    samples.add(conversation_sample(whole, all_of(whole), false, notes));
  } else {
    for (const std::string& mark : conversation.asked) count(notes.unread, mark);
    notes.unwanted += answers.empty() && conversation.masked > 0;
    try {
      samples = of_answers(conversation, whole, answers, unread, notes);
    } catch (const RefusedRecord&) {
      SampleNotes ignored;  // if no text has an answer at all, note() throws a more helpful reason
      unread.add_sample(whole, conversation.messages->size());
      unread.note(renderer_, answers, ignored);
      throw;
    }
  }
  unread.note(renderer_, answers, notes);
  return samples;
}

// Spellings of control tokens become tokens where the choices say so, and in a text that was rendered
// before.
Encoding SampleMaker::encoded_text(const Rendered& rendered, bool& was_rendered) {
  Encoding encoding = encoder_.encode(rendered.text, rendered.content);
  if (encoding.spelled_controls == 0 && choices_.control_tokens != ControlTokens::anywhere) return encoding;
  Encoding other = encoder_.encode(rendered.text);
  const size_t first = rendered.text.find_first_not_of(" \t\r\n"),
               last = rendered.text.find_last_not_of(" \t\r\n");
  const auto is_control_at = [&](size_t byte) {
    const std::optional<uint32_t> token = token_at(other, byte);
    return token && model_.tokenizer.is_special(*token);
  };
  was_rendered = first != std::string::npos && (is_control_at(first) || is_control_at(last));
  return was_rendered || choices_.control_tokens == ControlTokens::anywhere ? other : encoding;
}

Samples SampleMaker::of_text(const PlainText& text, SampleNotes& notes) {
  const Rendered rendered{text.prompt + text.text, {}, {{0, text.prompt.size() + text.text.size()}}, {}};
  bool was_rendered = false;
  Encoding encoding = encoded_text(rendered, was_rendered);
  if (!text.whole && !was_rendered && (model_.chat || !text.system.empty())) {
    Json messages = Json::array();
    if (!text.system.empty()) messages.push_back({{"role", "system"}, {"content", text.system}});
    messages.push_back({{"role", "user"}, {"content", text.prompt}});
    messages.push_back({{"role", "assistant"}, {"content", text.text}});
    Conversation conversation{std::make_shared<const Json>(std::move(messages)), nullptr, {}};
    conversation.trained_messages.assign(conversation.messages->size(), false);
    conversation.trained_messages.back() = true;
    return of_conversation(conversation, notes);
  }
  Samples samples;
  if (is_blank(text.text)) {
    notes.unwanted += text.whole;
    samples.add({.is_text = text.whole});
    return samples;
  }
  if (!text.system.empty()) count(notes.unread, "system");
  notes.whole += text.whole && choices_.train_on == TrainOn::last;
  notes.rendered += was_rendered && choices_.control_tokens == ControlTokens::of_template;
  const bool is_all = text.whole || choices_.train_on == TrainOn::all;
  SampleNotes before_suffix;  // not kept: the end is noted with the suffix
  std::vector<uint32_t> ids = std::move(encoding.ids);
  Sample sample =
      sample_of(rendered, std::move(ids), encoding,
                {{{is_all ? 0 : text.prompt.size(), rendered.text.size()}, false}}, false, before_suffix);
  const bool has_end = !before_suffix.ends.empty();
  const std::vector<uint32_t>& prefix = model_.tokenizer.prefix();
  if (!std::ranges::equal(std::span(sample.ids).first(std::min(prefix.size(), sample.ids.size())), prefix)) {
    sample.ids.insert(sample.ids.begin(), prefix.begin(), prefix.end());
    sample.trained.insert(sample.trained.begin(), prefix.size(), false);
  }
  std::vector<uint32_t> suffix = model_.tokenizer.suffix();
  if (suffix.empty() && model_.end) suffix = {*model_.end};
  if (was_rendered && has_end) suffix.clear();
  sample.ids.insert(sample.ids.end(), suffix.begin(), suffix.end());
  sample.trained.insert(sample.trained.end(), suffix.size(), true);
  note_end(sample.ids, 0, sample.ids.size(), notes);
  sample.is_text = text.whole;
  samples.add(std::move(sample));
  return samples;
}

}  // namespace sluice
