#include "models/text/samples/sample_maker.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/base/error.h"
#include "engine/base/strict_json.h"

namespace sluice {

namespace {

// What strftime_now tells, so that the same data make the same samples on every day.
std::tm fixed_day() {
  std::tm day{};
  day.tm_year = 2025 - 1900;
  day.tm_mday = 1;
  day.tm_wday = 3;  // Wednesday
  return day;
}

bool is_blank(const std::string& text) { return text.find_first_not_of(" \t\r\n") == text.npos; }

// The answers that are to be trained, as indices of messages.
std::vector<size_t> chosen_answers(const Conversation& conversation, TrainOn train_on) {
  std::vector<size_t> answers;
  for (size_t i = 0; i < conversation.trained_messages.size(); ++i)
    if (conversation.trained_messages[i]) answers.push_back(i);
  if (train_on == TrainOn::last && !answers.empty()) answers = {answers.back()};
  return answers;
}

size_t answer_count(const Conversation& conversation) {
  return static_cast<size_t>(
      std::ranges::count_if(*conversation.messages, [](const auto& m) { return m["role"] == "assistant"; }));
}

// Which of the assistant's messages, counted from 0, message `index` is.
size_t answer_number(const Conversation& conversation, size_t index) {
  size_t number = 0;
  for (size_t i = 0; i < index; ++i) number += (*conversation.messages)[i]["role"] == "assistant";
  return number;
}

}  // namespace

size_t Sample::trained_tokens() const {
  return trained.empty() ? 0 : static_cast<size_t>(std::count(trained.begin() + 1, trained.end(), true));
}

SampleMaker::SampleMaker(const TextModel& model, const SampleChoices& choices)
    : model_(model),
      choices_(choices),
      template_values_(
          std::make_shared<const nlohmann::ordered_json>(parse_strict_json_line(choices.template_values))),
      encoder_(model.tokenizer) {
  if (!template_values_->is_object()) throw std::invalid_argument("the template's values are no JSON object");
  render_options_.now = fixed_day();
  for (const auto& [name, content] : model.controls) render_options_.control_variables.push_back(name);
}

std::vector<Sample> SampleMaker::make(const Record& record) {
  const auto* const conversation = std::get_if<Conversation>(&record);
  return conversation ? of_conversation(*conversation) : of_text(std::get<PlainText>(record));
}

// The first `messages` of the conversation; with the begin of the next answer if it `prompts`.
Rendered SampleMaker::render(const Conversation& conversation, size_t messages, bool prompts) const {
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  for (const auto& [name, content] : model_.controls) variables[name] = content;
  auto& list = variables["messages"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < messages; ++i) list.push_back((*conversation.messages)[i]);
  if (conversation.tools) variables["tools"] = *conversation.tools;
  variables["add_generation_prompt"] = prompts;
  for (const auto& [name, value] : template_values_->items()) variables[name] = value;
  try {
    return model_.chat->render(variables, render_options_);
  } catch (const Error& error) {
    std::string what = error.what();
    if (what.ends_with('.')) what.pop_back();  // it becomes a part of a sentence
    throw std::invalid_argument("the chat template refuses it: " + what);
  }
}

Sample SampleMaker::whole_sample(const Rendered& text) {
  return sample_of(text, {{0, text.text.size()}}, false);
}

// `parts` are trained; ascending. `ends_at_control`: of each part, what lies behind its last control token is
// not, if it is blank.
Sample SampleMaker::sample_of(const Rendered& text, const std::vector<ByteRange>& parts,
                              bool ends_at_control) {
  const bool is_plain = choices_.control_tokens == ControlTokens::of_template;
  Encoding encoding =
      encoder_.encode(text.text, is_plain ? std::span(text.content) : std::span<const ByteRange>{});
  Sample sample{.ids = std::move(encoding.ids),
                .unknown_characters = encoding.unknown_characters,
                .spelled_controls = encoding.spelled_controls};
  sample.trained.resize(sample.ids.size());
  size_t token = 0;
  for (const ByteRange& part : parts) {
    while (token < sample.ids.size() && encoding.begins[token] < part.begin) ++token;
    // The token before it may have the part's first byte, too.
    const bool is_border = token == sample.ids.size() || encoding.begins[token] > part.begin;
    const size_t first = token > 0 && part.begin < part.end && is_border ? token - 1 : token;
    while (token < sample.ids.size() && encoding.begins[token] < part.end) ++token;
    size_t end = token;
    if (ends_at_control) {
      size_t last = token;
      while (last > first && !model_.tokenizer.is_special(sample.ids[last - 1])) --last;
      const size_t rest = last < token ? encoding.begins[last] : part.end;
      if (last > first && is_blank(text.text.substr(rest, part.end - rest))) end = last;
    }
    std::fill(sample.trained.begin() + static_cast<std::ptrdiff_t>(first),
              sample.trained.begin() + static_cast<std::ptrdiff_t>(end), true);
  }
  return sample;
}

void SampleMaker::require_chat_template() const {
  if (!model_.chat) throw NoChatTemplate("it is a conversation, and the tokenizer has no chat template");
}

std::vector<uint32_t> SampleMaker::prompt(const Conversation& conversation) {
  require_chat_template();
  return whole_sample(render(conversation, conversation.messages->size(), true)).ids;
}

std::vector<uint32_t> SampleMaker::prompt(const std::string& text) {
  std::vector<uint32_t> ids = model_.tokenizer.prefix();
  const Sample sample = whole_sample({text, {}, {{0, text.size()}}});
  ids.insert(ids.end(), sample.ids.begin(), sample.ids.end());
  return ids;
}

SampleMaker::Turn SampleMaker::turn_of(const Conversation& conversation, size_t answer,
                                       const Rendered& full) const {
  const std::string prompt = render(conversation, answer, true).text;
  const bool is_last = answer + 1 == conversation.messages->size();
  Rendered text = is_last ? full : render(conversation, answer + 1, false);
  if (!text.text.starts_with(prompt))
    throw std::invalid_argument(
        fmt::format("the chat template's text of message {} does not begin as its prompt does, so that the "
                    "answer cannot be told apart",
                    answer + 1));
  const ByteRange added{prompt.size(), text.text.size()};
  return {std::move(text), added};
}

std::vector<Sample> SampleMaker::of_conversation(const Conversation& conversation) {
  require_chat_template();
  const Rendered full = render(conversation, conversation.messages->size(), false);
  std::vector<Sample> samples;
  if (choices_.train_on == TrainOn::all) {
    samples.push_back(whole_sample(full));
    return samples;
  }
  const std::vector<size_t> answers = chosen_answers(conversation, choices_.train_on);
  if (full.generation.size() == answer_count(conversation) && !full.generation.empty()) {
    std::vector<ByteRange> parts;
    for (const size_t answer : answers) parts.push_back(full.generation[answer_number(conversation, answer)]);
    samples.push_back(sample_of(full, parts, false));
    return samples;
  }
  // All answers in one text, if each adds to it only. Else an answer at a time, so that only one text of a
  // long conversation is in memory.
  std::vector<ByteRange> parts;
  for (const size_t answer : answers) {
    const Turn turn = turn_of(conversation, answer, full);
    if (!full.text.starts_with(turn.text.text)) break;
    parts.push_back(turn.answer);
  }
  if (parts.size() == answers.size()) {
    samples.push_back(sample_of(full, parts, true));
    return samples;
  }
  for (const size_t answer : answers) {
    const Turn turn = turn_of(conversation, answer, full);
    samples.push_back(sample_of(turn.text, {turn.answer}, true));
  }
  return samples;
}

std::vector<Sample> SampleMaker::of_text(const PlainText& text) {
  if (!text.whole && model_.chat) {
    nlohmann::ordered_json messages = nlohmann::ordered_json::array();
    messages.push_back({{"role", "user"}, {"content", text.prompt}});
    messages.push_back({{"role", "assistant"}, {"content", text.text}});
    return of_conversation(
        {std::make_shared<const nlohmann::ordered_json>(std::move(messages)), nullptr, {false, true}});
  }
  if (is_blank(text.text)) return {Sample{.is_text = text.whole}};
  Rendered rendered{text.prompt + text.text, {}, {}};
  const ByteRange all{0, rendered.text.size()};
  rendered.content = {all};
  Sample sample = text.whole || choices_.train_on == TrainOn::all
                      ? whole_sample(rendered)
                      : sample_of(rendered, {{text.prompt.size(), all.end}}, false);
  const std::vector<uint32_t>& prefix = model_.tokenizer.prefix();
  sample.ids.insert(sample.ids.begin(), prefix.begin(), prefix.end());
  sample.trained.insert(sample.trained.begin(), prefix.size(), false);
  std::vector<uint32_t> suffix = model_.tokenizer.suffix();
  if (suffix.empty() && model_.end) suffix = {*model_.end};
  sample.ids.insert(sample.ids.end(), suffix.begin(), suffix.end());
  sample.trained.insert(sample.trained.end(), suffix.size(), true);
  sample.is_text = text.whole;
  std::vector<Sample> samples;
  samples.push_back(std::move(sample));
  return samples;
}

}  // namespace sluice
