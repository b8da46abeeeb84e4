#include "models/text/samples/answer_finder.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

namespace sluice {

namespace {

constexpr uint64_t kExactBytes = uint64_t{16} << 20;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// Where the tag that is still open at `at` begins, if that is at `from` or later; else `at`.
size_t tag_begin(std::string_view text, size_t from, size_t at) {
  for (size_t i = at; i > from; --i) {
    if (text[i - 1] == '>') break;
    if (text[i - 1] == '<') return i - 1;
  }
  return at;
}

// Whether the text has only blanks and whole tags, such as </think>.
bool is_tags(std::string_view text) {
  bool is_open = false;
  for (const char c : text) {
    if (c == '<' && is_open) return false;
    if (c == '<' || c == '>')
      is_open = c == '<';
    else if (!is_open && !is_blank(c))
      return false;
  }
  return !is_open;
}

size_t end_of_content(const Rendered& text) { return text.sources.empty() ? 0 : text.sources.back().end; }

void add_given(const nlohmann::ordered_json& json, std::vector<uint64_t>& bytes) {
  if (json.is_string()) bytes.push_back(solid_bytes(json.get_ref<const std::string&>()));
  if (json.is_structured())
    for (const auto& inner : json) add_given(inner, bytes);
}

}  // namespace

uint64_t solid_bytes(std::string_view text) {
  return static_cast<uint64_t>(std::count_if(text.begin(), text.end(), [](char c) { return !is_blank(c); }));
}

std::vector<uint64_t> solid_bytes_by_source(const Rendered& text, size_t sources) {
  std::vector<uint64_t> bytes(sources);
  for (const SourceRange& range : text.sources)
    if (range.source < sources)
      bytes[range.source] +=
          solid_bytes(std::string_view(text.text).substr(range.begin, range.end - range.begin));
  return bytes;
}

AnswerFinder::AnswerFinder(const ChatRenderer& renderer, const AdaptedConversation& conversation,
                           const Rendered& whole)
    : renderer_(renderer), conversation_(conversation), whole_(whole), first_source_{0} {
  for (const auto& message : *conversation.messages) {
    for (const auto& [key, value] : message.items()) {
      add_given(value, given_bytes_);
      if (key != "role") continue;
      role_sources_.push_back(static_cast<uint32_t>(given_bytes_.size() - 1));
      given_bytes_.back() = 0;  // templates write a role or leave it out as they like
    }
    first_source_.push_back(given_bytes_.size());
  }
  std::copy_if(whole.sources.begin(), whole.sources.end(), std::back_inserter(content_),
               [&](const SourceRange& range) { return !is_role(range.source); });
  used_bytes_ = solid_bytes_by_source(whole, given_bytes_.size());
  spans_.assign(first_source_.size() - 1, {0, 0});
  for (const SourceRange& range : content_) {
    const auto next = std::upper_bound(first_source_.begin(), first_source_.end(), range.source);
    if (next == first_source_.end()) continue;
    Span& span = spans_[static_cast<size_t>(next - first_source_.begin()) - 1];
    if (span.end == 0) span.begin = range.begin;
    span.end = range.end;
  }
}

std::optional<AnswerFinder::Content> AnswerFinder::content_of(const Rendered& text, size_t message) const {
  std::optional<Content> content;
  size_t end_before = 0;
  std::vector<uint64_t> missing(
      given_bytes_.begin() + static_cast<std::ptrdiff_t>(first_source_[message]),
      given_bytes_.begin() + static_cast<std::ptrdiff_t>(first_source_[message + 1]));
  for (const SourceRange& range : text.sources) {
    if (is_role(range.source)) continue;
    if (range.source >= first_source_[message] && range.source < first_source_[message + 1]) {
      if (!content) content = Content{{range.begin, range.end}, end_before, false};
      content->end = range.end;
      uint64_t& left = missing[range.source - first_source_[message]];
      left -= std::min(left,
                       solid_bytes(std::string_view(text.text).substr(range.begin, range.end - range.begin)));
    } else if (!content) {
      end_before = range.end;
    }
  }
  if (content) content->is_complete = std::ranges::all_of(missing, [](uint64_t bytes) { return bytes == 0; });
  return content;
}

bool AnswerFinder::is_complete(size_t message) const {
  for (size_t s = first_source_[message]; s < first_source_[message + 1]; ++s)
    if (used_bytes_[s] < given_bytes_[s]) return false;
  return spans_[message].end > 0;
}

// Many templates refuse a conversation that begins with an answer.
Rendered AnswerFinder::prompt_of(size_t answer) const {
  try {
    return renderer_.render(conversation_, answer, true);
  } catch (const std::invalid_argument& error) {
    const auto& messages = *conversation_.messages;
    const bool has_others =
        std::any_of(messages.begin() + static_cast<std::ptrdiff_t>(answer) + 1, messages.end(),
                    [](const auto& message) { return message["role"] == "assistant"; });
    throw RefusedRecord(
        fmt::format("what stands before message {}, an answer, is no prompt: {}", answer + 1, error.what()),
        fmt::format(
            "Train every token with --train-on all{}, or leave such records out with --bad-records skip.",
            has_others ? ", or only the last answer with --train-on last" : ""));
  }
}

Rendered AnswerFinder::text_up_to(size_t answer) {
  const bool is_last = answer + 1 == conversation_.messages->size();
  Rendered text = is_last ? whole_ : renderer_.render(conversation_, answer + 1, false);
  rendered_bytes_ += text.text.size();
  return text;
}

AnswerText AnswerFinder::alone(size_t answer) {
  AnswerText out;
  const bool is_long = rendered_bytes_ > kExactBytes;
  if (is_long) {
    out.text = text_up_to(answer);
    if (begins_as_others(out, answer)) return out;
  }
  const Rendered prompt = prompt_of(answer);
  rendered_bytes_ += prompt.text.size();
  if (!is_long) out.text = text_up_to(answer);
  find_begin(prompt, answer, out);
  const auto content = content_of(out.text, answer);
  if (content && content->is_complete && out.answer.begin <= content->begin)
    begins_[literals_before(out.text, *content)] = {content->begin - out.answer.begin, out.opening};
  return out;
}

bool AnswerFinder::begins_as_others(AnswerText& out, size_t answer) const {
  const auto content = content_of(out.text, answer);
  if (!content || !content->is_complete) return false;
  const auto known = begins_.find(literals_before(out.text, *content));
  if (known == begins_.end()) return false;
  out.answer = {content->begin - known->second.reach, out.text.text.size()};
  out.opening = known->second.opening;
  return true;
}

void AnswerFinder::find_begin(const Rendered& prompt, size_t answer, AnswerText& out) const {
  const std::string& text = out.text.text;
  out.answer = {prompt.text.size(), text.size()};
  if (text.starts_with(prompt.text)) return;
  const size_t known = end_of_content(prompt);
  const auto content = content_of(out.text, answer);
  const size_t shared = std::min(common_prefix(prompt.text, text), content ? content->begin : text.size());
  const size_t begin = shared < known ? shared : tag_begin(text, known, shared);
  const bool has_header =
      begin > known && solid_bytes(std::string_view(text).substr(known, begin - known)) > 0;
  if (!has_header || !content || !is_tags(std::string_view(text).substr(begin, content->begin - begin)))
    throw RefusedRecord(
        fmt::format("the chat template's text of message {} does not begin as its prompt does, so that the "
                    "answer cannot be told apart",
                    answer + 1),
        "Give --chat-template FILE, a template that begins an answer as it begins its prompt, or that marks "
        "answers with {% generation %}; or train every token with --train-on all, or leave such records out "
        "with --bad-records skip.");
  out.answer.begin = begin;
  out.opening = prompt.text.substr(begin);
}

bool AnswerFinder::is_role(uint32_t source) const {
  return std::binary_search(role_sources_.begin(), role_sources_.end(), source);
}

// The first content that begins at `byte` or behind it.
std::vector<SourceRange>::const_iterator AnswerFinder::content_from(size_t byte) const {
  return std::partition_point(content_.begin(), content_.end(),
                              [&](const SourceRange& range) { return range.begin < byte; });
}

std::string AnswerFinder::literals_before(const Rendered& text, const Content& content) {
  return text.text.substr(content.end_before, content.begin - content.end_before);
}

std::string AnswerFinder::literals_before(size_t message) const {
  const auto own = content_from(spans_[message].begin);
  const size_t begin = own == content_.begin() ? 0 : std::prev(own)->end;
  return whole_.text.substr(begin, spans_[message].begin - begin);
}

std::string AnswerFinder::literals_behind(size_t message) const {
  const auto next = content_from(spans_[message].end);
  const size_t end = next == content_.end() ? whole_.text.size() : next->begin;
  return whole_.text.substr(spans_[message].end, end - spans_[message].end);
}

void AnswerFinder::count_opened(const std::string& opening) {
  ++opened_;
  if (opening_.empty()) opening_ = opening;
}

std::optional<AnswerPart> AnswerFinder::measured(size_t answer) {
  const AnswerText turn = alone(answer);
  AnswerPart part{turn.answer, false};
  if (!whole_.text.starts_with(turn.text.text)) {
    const size_t content_end = end_of_content(turn.text);
    const size_t parting = common_prefix(whole_.text, turn.text.text);
    if (parting < content_end || parting < part.bytes.begin) return std::nullopt;
    const size_t shared = tag_begin(whole_.text, content_end, parting);
    // Literals between the content and `shared` end the turn, so the texts differ only in how the text ends.
    // Without such literals, the turn itself ends otherwise.
    if (solid_bytes(std::string_view(whole_.text).substr(content_end, shared - content_end)) == 0)
      return std::nullopt;
    part = {{part.bytes.begin, shared}, true};
  }
  if (!turn.opening.empty()) count_opened(turn.opening);
  if (is_complete(answer)) {
    const Span& span = spans_[answer];
    if (part.bytes.begin <= span.begin && part.bytes.end >= span.end) {
      before_[literals_before(answer)] = {span.begin - part.bytes.begin, false, !turn.opening.empty()};
      behind_[literals_behind(answer)] = {part.bytes.end - span.end, part.end_is_cut, false};
    }
  }
  return part;
}

std::optional<AnswerPart> AnswerFinder::as_others(size_t answer) {
  if (!is_complete(answer)) return std::nullopt;
  const auto before = before_.find(literals_before(answer));
  const auto behind = behind_.find(literals_behind(answer));
  if (before == before_.end() || behind == behind_.end()) return std::nullopt;
  if (before->second.is_opened) count_opened(opening_);
  const Span& span = spans_[answer];
  return AnswerPart{{span.begin - before->second.reach, span.end + behind->second.reach},
                    behind->second.is_cut};
}

std::optional<std::vector<AnswerPart>> AnswerFinder::in_whole(const std::vector<size_t>& answers) {
  std::vector<AnswerPart> parts;
  for (const size_t answer : answers) {
    std::optional<AnswerPart> part;
    if (rendered_bytes_ > kExactBytes) part = as_others(answer);
    if (!part) part = measured(answer);
    if (!part) return std::nullopt;
    parts.push_back(*part);
  }
  return parts;
}

std::vector<AnswerPart> AnswerFinder::generated(const std::vector<size_t>& answers) const {
  // The message of the last content that begins before a byte; none where there is no such content.
  const auto message_before = [&](size_t byte) -> std::optional<size_t> {
    for (auto range = content_from(byte); range != content_.begin();)
      if ((--range)->source < first_source_.back())
        return static_cast<size_t>(
                   std::upper_bound(first_source_.begin(), first_source_.end(), range->source) -
                   first_source_.begin()) -
               1;
    return std::nullopt;
  };
  std::vector<AnswerPart> parts;
  for (const ByteRange& bytes : whole_.generation) {
    const auto message = message_before(bytes.end);
    if (message && std::binary_search(answers.begin(), answers.end(), *message))
      parts.push_back({bytes, false});
  }
  return parts;
}

uint64_t AnswerFinder::unmarked(const std::vector<size_t>& answers) const {
  const auto is_marked = [&](const SourceRange& range) {
    return std::ranges::any_of(whole_.generation, [&](const ByteRange& marked) {
      return marked.begin <= range.begin && range.end <= marked.end;
    });
  };
  return static_cast<uint64_t>(std::ranges::count_if(answers, [&](size_t answer) {
    return std::ranges::any_of(content_, [&](const SourceRange& range) {
      return range.source >= first_source_[answer] && range.source < first_source_[answer + 1] &&
             solid_bytes(std::string_view(whole_.text).substr(range.begin, range.end - range.begin)) > 0 &&
             !is_marked(range);
    });
  }));
}

}  // namespace sluice
