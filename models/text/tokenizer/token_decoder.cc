#include "models/text/tokenizer/token_decoder.h"

#include <algorithm>
#include <charconv>

#include "models/text/tokenizer/byte_alphabet.h"
#include "models/text/unicode.h"

namespace sluice {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

bool makes_one_token(const DecoderStep& step) {
  return std::holds_alternative<FuseDecoder>(step) || std::holds_alternative<ByteLevelDecoder>(step);
}

// Whether the step can take a token part by part. A strip that cuts only at a token's start can.
bool works_on_parts(const DecoderStep& step) {
  const auto* strip = std::get_if<StripDecoder>(&step);
  return strip != nullptr && strip->stop == 0;
}

std::optional<uint8_t> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with(">")) return std::nullopt;
  // As Rust reads numbers: a sign may stand before one digit.
  const std::string_view digits = token.substr(token[3] == '+' ? 4 : 3, token[3] == '+' ? 1 : 2);
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return byte;
}

struct Sequence {
  size_t bytes;  // of a character, or of the longest part of one (Unicode 14, section 3.9, table 3-8)
  bool is_character, may_go_on;
};

Sequence sequence_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t k) { return static_cast<uint8_t>(text[at + k]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {1, true, false};
  if (first < 0xC2 || first > 0xF4) return {1, false, false};
  const size_t size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  const int low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;  // of the second byte
  const int high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  size_t k = 1;
  while (k < size && at + k < text.size() && byte(k) >= (k == 1 ? low : 0x80) &&
         byte(k) <= (k == 1 ? high : 0xBF))
    ++k;
  return {k, k == size, at + k == text.size()};
}

}  // namespace

TextDecoder::TextDecoder(const TokenDecoder& decoder) : decoder_(decoder), states_(decoder.steps.size() + 1) {
  const auto& steps = decoder.steps;
  const auto fuse = std::find_if(steps.begin(), steps.end(), makes_one_token);
  fuse_ = static_cast<size_t>(fuse - steps.begin());
  waits_ = fuse != steps.end() && !std::all_of(fuse + 1, steps.end(), works_on_parts);
}

void TextDecoder::push(std::string_view token, std::string& to) {
  if (decoder_.joins_with_blanks && states_[0].count++ > 0) to += ' ';
  feed(0, token, to);
}

void TextDecoder::finish(std::string& to) {
  for (size_t i = 0; i < decoder_.steps.size(); ++i) {
    if (std::holds_alternative<ByteFallbackDecoder>(decoder_.steps[i])) release_bytes(i, to);
    if (makes_one_token(decoder_.steps[i])) release_characters(i, true, to);
  }
}

void TextDecoder::feed(size_t step, std::string_view token, std::string& to) {
  if (step == decoder_.steps.size()) {
    to += token;
    return;
  }
  std::visit([&](const auto& chosen) { apply(chosen, step, token, to); }, decoder_.steps[step]);
}

void TextDecoder::apply(const ReplaceDecoder& step, size_t index, std::string_view token, std::string& to) {
  std::string changed;
  size_t copied = 0;
  for (size_t at = token.find(step.pattern); at != std::string_view::npos;
       at = token.find(step.pattern, copied)) {
    changed += token.substr(copied, at - copied);
    changed += step.content;
    copied = at + step.pattern.size();
  }
  feed(index + 1, changed += token.substr(copied), to);
}

void TextDecoder::apply(const ByteFallbackDecoder&, size_t index, std::string_view token, std::string& to) {
  if (const auto byte = byte_of_token(token)) {
    states_[index].held += static_cast<char>(*byte);
    return;
  }
  release_bytes(index, to);
  feed(index + 1, token, to);
}

void TextDecoder::release_bytes(size_t index, std::string& to) {
  const std::string bytes = std::move(states_[index].held);
  states_[index].held.clear();
  if (bytes.empty()) return;
  if (is_utf8(bytes)) return feed(index + 1, bytes, to);
  for (size_t i = 0; i < bytes.size(); ++i) feed(index + 1, kReplacement, to);
}

void TextDecoder::apply(const FuseDecoder&, size_t index, std::string_view token, std::string& to) {
  states_[index].held += token;
  release_characters(index, false, to);
}

void TextDecoder::apply(const ByteLevelDecoder&, size_t index, std::string_view token, std::string& to) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const auto byte = byte_of_character(next_code_point(token, at));
    if (!byte) {  // not of the alphabet: a token that was added as it is
      bytes = token;
      break;
    }
    bytes += static_cast<char>(*byte);
  }
  states_[index].held += bytes;
  release_characters(index, false, to);
}

// Passes on what a later token cannot change: whole characters, if the steps behind work on parts. Bytes that
// are no character become U+FFFD.
void TextDecoder::release_characters(size_t index, bool all, std::string& to) {
  if (!all && (waits_ || index != fuse_)) return;
  const std::string held = std::move(states_[index].held);
  states_[index].held.clear();
  std::string text;
  for (size_t at = 0; at < held.size();) {
    const Sequence sequence = sequence_at(held, at);
    if (!sequence.is_character && sequence.may_go_on && !all) {
      states_[index].held = held.substr(at);
      break;
    }
    text += sequence.is_character ? std::string_view(held).substr(at, sequence.bytes) : kReplacement;
    at += sequence.bytes;
  }
  if (!text.empty()) feed(index + 1, text, to);
}

void TextDecoder::apply(const StripDecoder& step, size_t index, std::string_view token, std::string& to) {
  const bool is_part = index > fuse_ && !waits_;
  size_t cut = is_part ? states_[index].count : 0;
  size_t begin = 0, end = token.size();
  while (cut < step.start && begin < token.size()) {
    size_t next = begin;
    const bool same = next_code_point(token, next) == step.content;
    cut = same ? cut + 1 : step.start;
    if (same) begin = next;
  }
  states_[index].count = cut;
  for (size_t k = 0; k < step.stop && end > begin; ++k) {
    size_t last = end - 1;
    while ((token[last] & 0xC0) == 0x80) --last;
    size_t next = last;
    if (next_code_point(token, next) != step.content) break;
    end = last;
  }
  feed(index + 1, token.substr(begin, end - begin), to);
}

void TextDecoder::apply(const MetaspaceDecoder& step, size_t index, std::string_view token, std::string& to) {
  const bool drops = step.drops_first && states_[index].count++ == 0;
  apply(ReplaceDecoder{step.replacement, drops ? "" : " "}, index, token, to);
}

}  // namespace sluice
