// 1. Added tokens that match the input are found.
// 2. Each text between them is normalized, and the other added tokens are found in it.
// 3. What is left is cut into pieces, and each piece becomes tokens.
#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "models/text/tokenizer/parts.h"
#include "models/text/tokenizer/tokenizer.h"
#include "models/text/unicode.h"

namespace sluice {
namespace {

void check(std::string_view text) {
  check_size(text);
  for (size_t at = 0, size = 0; at < text.size(); at += size) {
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

constexpr size_t kKeptTextBytes = size_t{2} << 20;

}  // namespace

struct Encoder::Memory {
  CutMemory cuts;
  BpeMemory bpe;
  std::vector<Piece> parts;
  PieceText text;
  std::vector<Symbol> symbols;

  // What a long text took: seldom is another one as long.
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
  check(input);
  Encoding encoding;
  if (has_patterns_) encoding.unknown_characters = count_unassigned(input);
  PieceText& text = memory_->text;
  const auto add = [&](uint32_t id, size_t begin) {
    encoding.ids.push_back(id);
    encoding.begins.push_back(begin);
  };
  memory_->cuts.matcher.start_text(input.size());
  memory_->parts.clear();
  encoding.spelled_controls = parts_.added.find(false, input, {plain, {}}, memory_->parts);
  for (const Piece& part : memory_->parts) {
    if (part.id) {
      add(*part.id, part.begin);
      continue;
    }
    start(input, part, text);
    normalize(parts_.normalizers, text.text, text.origin);
    encoding.spelled_controls += parts_.added.find(true, text.text, {plain, text.origin}, text.pieces);
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
  return encoding;
}

}  // namespace sluice
