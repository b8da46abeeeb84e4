#include "models/text/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "models/text/tokenizer/byte_alphabet.h"

namespace sluice {
namespace {

using Cut = CutMemory::Cut;

// Covers `text` with matches and what lies between them.
template <typename ForEachMatch>
void find_cuts(size_t size, bool invert, const ForEachMatch& for_each, std::vector<Cut>& cuts) {
  cuts.clear();
  size_t done = 0;
  for_each([&](const ByteRange& match) {
    if (done != match.begin)
      cuts.push_back({static_cast<uint32_t>(done), static_cast<uint32_t>(match.begin), invert});
    cuts.push_back({static_cast<uint32_t>(match.begin), static_cast<uint32_t>(match.end), !invert});
    done = match.end;
  });
  if (done != size) cuts.push_back({static_cast<uint32_t>(done), static_cast<uint32_t>(size), invert});
}

template <typename Visit>
void for_each_match(const std::string& pattern, Matcher&, std::string_view text, const Visit& visit) {
  for (size_t at = text.find(pattern); at != std::string_view::npos;
       at = text.find(pattern, at + pattern.size()))
    visit(ByteRange{at, at + pattern.size()});
}

// Joins cuts that the behavior puts into one piece. merged_with_previous and contiguous ask whether the cut
// before was a match, merged_with_next whether the cut behind is one.
void join_cuts(SplitBehavior behavior, std::vector<Cut>& cuts) {
  if (behavior == SplitBehavior::isolated) return;
  if (behavior == SplitBehavior::removed) {
    std::erase_if(cuts, [](const Cut& cut) { return cut.is_match; });
    return;
  }
  const bool backwards = behavior == SplitBehavior::merged_with_next;
  if (backwards) std::reverse(cuts.begin(), cuts.end());
  size_t kept = 0;
  bool was_match = false;
  for (const Cut cut : cuts) {
    const bool joins =
        behavior == SplitBehavior::contiguous ? cut.is_match == was_match : cut.is_match && !was_match;
    if (joins && kept > 0)
      (backwards ? cuts[kept - 1].begin : cuts[kept - 1].end) = backwards ? cut.begin : cut.end;
    else
      cuts[kept++] = cut;
    was_match = cut.is_match;
  }
  cuts.resize(kept);
  if (backwards) std::reverse(cuts.begin(), cuts.end());
}

void split(const SplitStep& step, PieceText& text, CutMemory& memory) {
  std::vector<Piece>& next = memory.next.pieces;
  next.clear();
  for (const Piece& piece : text.pieces) {
    if (piece.id) {
      next.push_back(piece);
      continue;
    }
    const std::string_view part = text.of(piece);
    std::visit(
        [&](const auto& pattern) {
          find_cuts(
              part.size(), step.invert,
              [&](const auto& visit) { for_each_match(pattern, memory.matcher, part, visit); }, memory.cuts);
        },
        step.pattern);
    join_cuts(step.behavior, memory.cuts);
    for (const Cut& cut : memory.cuts)
      if (cut.begin != cut.end) next.push_back({piece.begin + cut.begin, piece.begin + cut.end});
  }
  text.pieces.swap(next);
}

// Writes the text anew, piece by piece: write(piece, to) appends to text and origin.
template <typename Write>
void rewrite(PieceText& text, PieceText& to, const Write& write) {
  to.text.clear();
  to.origin.clear();
  to.pieces.clear();
  for (const Piece& piece : text.pieces) {
    const auto begin = static_cast<uint32_t>(to.text.size());
    if (piece.id) {
      to.text += text.of(piece);
      to.origin.insert(to.origin.end(), text.origin.begin() + piece.begin, text.origin.begin() + piece.end);
    } else {
      write(piece, to);
    }
    to.pieces.push_back({begin, static_cast<uint32_t>(to.text.size()), piece.id});
  }
  std::swap(text, to);
}

void append(PieceText& to, std::string_view bytes, uint32_t origin) {
  to.text += bytes;
  to.origin.insert(to.origin.end(), bytes.size(), origin);
}

void apply(const SplitStep& step, PieceText& text, CutMemory& memory) { split(step, text, memory); }

void apply(const ByteLevelStep& step, PieceText& text, CutMemory& memory) {
  if (step.add_prefix_space)
    rewrite(text, memory.next, [&](const Piece& piece, PieceText& to) {
      if (text.text[piece.begin] != ' ') append(to, " ", text.origin[piece.begin]);
      for (uint32_t at = piece.begin; at < piece.end; ++at) append(to, {&text.text[at], 1}, text.origin[at]);
    });
  if (step.split) split(*step.split, text, memory);
  rewrite(text, memory.next, [&](const Piece& piece, PieceText& to) {
    for (uint32_t at = piece.begin; at < piece.end; ++at)
      append(to, character_of(static_cast<uint8_t>(text.text[at])), text.origin[at]);
  });
}

void apply(const MetaspaceStep& step, PieceText& text, CutMemory& memory) {
  rewrite(text, memory.next, [&](const Piece& piece, PieceText& to) {
    const std::string_view part = text.of(piece);
    const uint32_t first = text.origin[piece.begin];
    const bool has_one = part.front() == ' ' || part.starts_with(step.replacement);
    const bool wants_one =
        step.prepend == PrependScheme::always || (step.prepend == PrependScheme::first && first == 0);
    if (wants_one && !has_one) append(to, step.replacement, first);
    for (uint32_t at = piece.begin; at < piece.end; ++at) {
      const std::string_view byte(&text.text[at], 1);
      append(to, byte == " " ? step.replacement : byte, text.origin[at]);
    }
  });
  if (step.split) split({step.replacement, SplitBehavior::merged_with_next, false}, text, memory);
}

}  // namespace

SplitStep gpt2_split() {
  return {Pattern(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)")};
}

SplitStep digits_split(bool individual) {
  return {Pattern(R"(\p{N})"), individual ? SplitBehavior::isolated : SplitBehavior::contiguous};
}

void pre_tokenize(const std::vector<PreTokenizer>& steps, PieceText& text, CutMemory& memory) {
  for (const PreTokenizer& step : steps) {
    check_size(text.text);
    std::visit([&](const auto& chosen) { apply(chosen, text, memory); }, step);
  }
}

}  // namespace sluice
