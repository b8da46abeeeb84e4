// 1. Added tokens that match the input are found.
// 2. Each text between them is normalized, and the other added tokens are found in it.
// 3. What is left is cut into pieces, and each piece becomes tokens.
// So the text before an added token of the first step and the text behind it become tokens independently. If
// two texts begin alike, such a token in that part is found in both, unless a longer added token could
// reach into what differs.
#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "models/text/tokenizer/parts.h"
#include "models/text/tokenizer/tokenizer.h"
#include "models/text/unicode.h"

namespace sluice {
namespace {

void check(std::string_view text, size_t begin) {
  check_size(text);
  for (size_t at = begin, size = 0; at < text.size(); at += size) {
    size = static_cast<unsigned char>(text[at]) < 0x80 ? 1 : sequence_length(text, at);
    if (size == 0)
      throw Error(ExitCode::malformed_file,
                  fmt::format("A text to be tokenized is not UTF-8 at its byte {}.", at),
                  "Convert it to UTF-8.");
  }
}

// The part [begin, end) of the input, before any step.
void start(std::string_view input, const Piece& part, PieceText& text) {
  text.text = input.substr(part.begin, part.end - part.begin);
  text.origin.resize(text.text.size());
  uint32_t begin = part.begin;
  for (uint32_t i = 0; i < text.text.size(); ++i) {
    if ((text.text[i] & 0xC0) != 0x80) begin = part.begin + i;
    text.origin[i] = begin;
  }
  text.pieces.clear();
}

bool has_pattern(const PreTokenizer& step) {
  if (const auto* const bytes = std::get_if<ByteLevelStep>(&step))
    return bytes->split && std::holds_alternative<Pattern>(bytes->split->pattern);
  const auto* const split = std::get_if<SplitStep>(&step);
  return split && std::holds_alternative<Pattern>(split->pattern);
}

// How many bytes two texts with their plain ranges have in common at their starts.
size_t shared_bytes(std::string_view a, std::span<const ByteRange> plain_a, std::string_view b,
                    std::span<const ByteRange> plain_b) {
  const auto differ = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  auto shared = static_cast<size_t>(differ.first - a.begin());
  const auto [x, y] = std::mismatch(plain_a.begin(), plain_a.end(), plain_b.begin(), plain_b.end());
  const bool has_x = x != plain_a.end(), has_y = y != plain_b.end();
  if (has_x && has_y && x->begin == y->begin) return std::min({shared, x->end, y->end});
  if (has_x) shared = std::min(shared, x->begin);
  if (has_y) shared = std::min(shared, y->begin);
  return shared;
}

constexpr size_t kKeptTextBytes = size_t{2} << 20;

}  // namespace

struct Encoder::Memory {
  CutMemory cuts;
  BpeMemory bpe;
  std::vector<Piece> parts;
  PieceText text;
  std::vector<Symbol> symbols;

  // Frees what a long text took, since another as long seldom follows.
  void give_back() {
    cuts.cuts = {};
    cuts.next = {};
    parts = {};
    text = {};
    symbols = {};
  }
};

Encoder::Encoder(const Tokenizer& tokenizer)
    : parts_(*tokenizer.parts_),
      has_patterns_(std::any_of(parts_.pre_tokenizers.begin(), parts_.pre_tokenizers.end(), has_pattern)),
      memory_(std::make_unique<Memory>()) {}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;

Encoding Encoder::encode(std::string_view input, std::span<const ByteRange> plain) {
  Encoding encoding;
  encode_from({}, input, plain, encoding, nullptr);
  return encoding;
}

void Encoder::encode_next(std::string_view input, std::span<const ByteRange> plain, EncodedText& last) {
  constexpr size_t kCharacterMost = 4;  // bytes of the character behind a single_word token, which it checks
  const size_t shared = shared_bytes(last.text, last.plain, input, plain);
  const size_t reach = parts_.added.longest_content() + kCharacterMost;
  while (!last.borders.empty() && last.borders.back().byte + reach > shared) last.borders.pop_back();
  const EncodedText::Border begin = last.borders.empty() ? EncodedText::Border() : last.borders.back();
  last.text.assign(input);
  last.plain.assign(plain.begin(), plain.end());
  encode_from(begin, input, plain, last.encoding, &last.borders);
}

// Replaces all tokens of `encoding` from `from` on, and appends borders.
void Encoder::encode_from(const EncodedText::Border& from, std::string_view input,
                          std::span<const ByteRange> plain, Encoding& encoding,
                          std::vector<EncodedText::Border>* borders) {
  check(input, from.byte);
  encoding.ids.resize(from.tokens);
  encoding.begins.resize(from.tokens);
  while (!encoding.left_out.empty() && encoding.left_out.back().begin >= from.byte)
    encoding.left_out.pop_back();
  encoding.unknown_characters = from.unknown_characters;
  encoding.spelled_controls = from.spelled_controls;
  PieceText& text = memory_->text;
  const auto add = [&](uint32_t id, size_t begin) {
    encoding.ids.push_back(id);
    encoding.begins.push_back(begin);
  };
  memory_->cuts.matcher.start_text(input.size() - from.byte);
  memory_->parts.clear();
  const std::vector<size_t> spelled = parts_.added.find(false, input, from.byte, {plain, {}}, memory_->parts);
  auto next_spelled = spelled.begin();
  for (const Piece& part : memory_->parts) {
    for (; next_spelled != spelled.end() && *next_spelled < part.end; ++next_spelled)
      ++encoding.spelled_controls;
    if (has_patterns_)
      encoding.unknown_characters += count_unassigned(input.substr(part.begin, part.end - part.begin));
    if (part.id) {
      add(*part.id, part.begin);
      if (borders && !parts_.added.by_id(*part.id)->rstrip)
        borders->push_back(
            {part.end, encoding.ids.size(), encoding.unknown_characters, encoding.spelled_controls});
      continue;
    }
    start(input, part, text);
    normalize(parts_.normalizers, text.text, text.origin);
    encoding.spelled_controls +=
        parts_.added.find(true, text.text, 0, {plain, text.origin}, text.pieces).size();
    pre_tokenize(parts_.pre_tokenizers, text, memory_->cuts);
    for (const Piece& piece : text.pieces) {
      if (piece.id) {
        add(*piece.id, text.origin[piece.begin]);
        continue;
      }
      memory_->symbols.clear();
      parts_.bpe.tokenize(text.of(piece), memory_->bpe, memory_->symbols);
      size_t at = piece.begin;
      const auto leave_out = [&](size_t end) {
        if (end > at)
          encoding.left_out.push_back(
              {text.origin[at], end < text.text.size() ? size_t{text.origin[end]} : part.end});
        at = end;
      };
      for (const Symbol& symbol : memory_->symbols) {
        leave_out(at + symbol.left_out);
        add(symbol.id, text.origin[at]);
        at += symbol.bytes;
      }
      leave_out(piece.end);
    }
  }
  if (input.size() > kKeptTextBytes) memory_->give_back();
}

}  // namespace sluice
