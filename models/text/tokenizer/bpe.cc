#include "models/text/tokenizer/bpe.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <stdexcept>

#include "engine/base/error.h"
#include "models/text/unicode.h"

namespace sluice {
namespace {

constexpr size_t kCacheEntries = size_t{1} << 16;
constexpr size_t kCachedBytesMax = 64;  // longer pieces seldom come again
constexpr size_t kWholeBytesMax = 32;   // longer pieces are cut where no merge joins
constexpr uint32_t kNone = UINT32_MAX;
constexpr char32_t kLowEnd = 0x10000;

uint64_t pair_of(uint32_t a, uint32_t b) { return uint64_t{a} << 32 | b; }

// Calls visit(a, b) for each two neighbouring characters.
template <typename Visit>
void for_each_neighbours(std::string_view text, const Visit& visit) {
  size_t at = 0;
  char32_t before = next_code_point(text, at);
  while (at < text.size()) {
    const char32_t c = next_code_point(text, at);
    visit(before, c);
    before = c;
  }
}

}  // namespace

BpeMemory::BpeMemory() : cache_(kCacheEntries) {}

Bpe::Bpe(Vocabulary vocabulary, const std::vector<Merge>& merges, BpeOptions options)
    : vocabulary_(std::move(vocabulary)), options_(std::move(options)), low_ids_(kLowEnd, kNone) {
  for (const std::string& content : vocabulary_.contents()) {
    size_t end = 0;
    const char32_t c = content.empty() ? kLowEnd : next_code_point(content, end);
    if (end == content.size() && c < kLowEnd) low_ids_[c] = *vocabulary_.id_of(content);
  }
  const auto id_of = [&](const std::string& content) {
    const auto id = vocabulary_.id_of(content);
    if (!id)
      throw std::invalid_argument(
          fmt::format("a merge needs token \"{}\", which the vocabulary lacks", printable(content)));
    return *id;
  };
  std::vector<bool> seen(vocabulary_.id_end());  // a token may be the result of several merges
  for (uint32_t rank = 0; const auto& [left, right] : merges) {
    const std::string result = left + right;
    const uint32_t id = id_of(result);
    merges_.at(pair_of(id_of(left), id_of(right))) = {rank++, id};
    if (!seen[id])
      for_each_neighbours(result, [&](char32_t a, char32_t b) { joined_.at(pair_of(a, b)) = true; });
    seen[id] = true;
  }
}

std::optional<uint32_t> Bpe::id_of(char32_t c, std::string_view character) const {
  if (c >= kLowEnd) return vocabulary_.id_of(character);
  return low_ids_[c] == kNone ? std::nullopt : std::optional(low_ids_[c]);
}

// A character without an id becomes bytes or the unknown token, which merges may join with any neighbour.
bool Bpe::may_join(char32_t a, char32_t b) const {
  const auto known = [&](char32_t c) { return c < kLowEnd && low_ids_[c] != kNone; };
  return !known(a) || !known(b) || joined_.find(pair_of(a, b)) != nullptr;
}

void Bpe::tokenize(std::string_view piece, BpeMemory& memory, std::vector<Symbol>& to) const {
  if (options_.ignore_merges) {
    if (const auto id = vocabulary_.id_of(piece)) {
      to.push_back({*id, static_cast<uint32_t>(piece.size())});
      return;
    }
  }
  if (piece.size() <= kWholeBytesMax) return tokenize_part(piece, memory, to);
  size_t begin = 0, at = 0;
  char32_t before = next_code_point(piece, at);
  while (at < piece.size()) {
    const size_t border = at;
    const char32_t c = next_code_point(piece, at);
    if (!may_join(before, c)) {
      tokenize_part(piece.substr(begin, border - begin), memory, to);
      begin = border;
    }
    before = c;
  }
  tokenize_part(piece.substr(begin), memory, to);
}

void Bpe::tokenize_part(std::string_view part, BpeMemory& memory, std::vector<Symbol>& to) const {
  BpeMemory::Entry* entry = nullptr;
  if (part.size() <= kCachedBytesMax) {
    entry = &memory.cache_[XXH3_64bits(part.data(), part.size()) % kCacheEntries];
    if (entry->piece == part) {
      to.insert(to.end(), entry->symbols.begin(), entry->symbols.end());
      return;
    }
  }
  const size_t first = to.size();
  make_links(part, memory);
  merge(memory);
  for (const auto& link : memory.links_)
    if (link.bytes != 0) to.push_back({link.id, link.bytes, link.left_out});
  if (entry != nullptr) {
    entry->piece = part;
    entry->symbols.assign(to.begin() + static_cast<std::ptrdiff_t>(first), to.end());
  }
}

uint32_t Bpe::unknown_id() const {
  const auto id = vocabulary_.id_of(*options_.unknown);
  if (!id)
    throw Error(ExitCode::malformed_file,
                fmt::format("The tokenizer's unknown token \"{}\" is not in its vocabulary.",
                            printable(*options_.unknown)),
                "Take the tokenizer.json of the model's release.");
  return *id;
}

// Adds a token for each byte of the character. If a byte has no token, returns false and adds nothing.
bool Bpe::add_bytes(std::string_view character, BpeMemory& memory) const {
  const size_t size = memory.links_.size();
  for (const char c : character) {
    const auto id = vocabulary_.id_of(fmt::format("<0x{:02X}>", static_cast<uint8_t>(c)));
    if (!id) {
      memory.links_.resize(size);
      return false;
    }
    memory.links_.push_back({*id, 1, kNone, kNone});
  }
  return true;
}

// An unknown token is added only when the next character with an id comes. So it stands behind the byte
// tokens of the characters between, as in Hugging Face tokenizers.
void Bpe::make_links(std::string_view part, BpeMemory& memory) const {
  memory.links_.clear();
  uint32_t unknown_bytes = 0, left_out = 0;
  const auto add_unknown = [&] {
    if (unknown_bytes > 0) memory.links_.push_back({unknown_id(), unknown_bytes, kNone, kNone});
    unknown_bytes = 0;
  };
  for (size_t at = 0; at < part.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(part, at);
    const std::string_view character = part.substr(begin, at - begin);
    const auto bytes = static_cast<uint32_t>(character.size());
    const size_t first = memory.links_.size();
    if (const auto id = id_of(c, character)) {
      add_unknown();
      memory.links_.push_back({*id, bytes, kNone, kNone});
    } else if (options_.byte_fallback && add_bytes(character, memory)) {
      // The character has a token for each byte.
    } else if (options_.unknown) {
      if (!options_.fuse_unknown) add_unknown();
      unknown_bytes += bytes;
    } else {
      left_out += bytes;
    }
    if (memory.links_.size() > first) memory.links_[first].left_out = std::exchange(left_out, 0);
  }
  add_unknown();
  for (uint32_t i = 1; i < memory.links_.size(); ++i) {
    memory.links_[i].previous = i - 1;
    memory.links_[i - 1].next = i;
  }
}

// Adds to the heap the merge of the link at `place` with the next link, if there is such a merge.
void Bpe::push(uint32_t place, BpeMemory& memory) const {
  const auto& left = memory.links_[place];
  if (left.next == kNone) return;
  if (const Merged* merged = merges_.find(pair_of(left.id, memory.links_[left.next].id))) {
    memory.heap_.push_back({merged->rank, place, merged->id});
    std::push_heap(memory.heap_.begin(), memory.heap_.end());
  }
}

void Bpe::merge(BpeMemory& memory) const {
  auto& links = memory.links_;
  auto& heap = memory.heap_;
  heap.clear();
  for (uint32_t place = 0; place < links.size(); ++place) push(place, memory);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const BpeMemory::Candidate top = heap.back();
    heap.pop_back();
    auto& left = links[top.place];
    if (left.bytes == 0 || left.next == kNone) continue;
    auto& right = links[left.next];
    const Merged* merged = merges_.find(pair_of(left.id, right.id));
    if (merged == nullptr || merged->id != top.id) continue;  // one of the two has been merged since
    left.id = top.id;
    left.bytes += right.left_out + right.bytes;
    left.next = right.next;
    right.bytes = 0;
    if (right.next != kNone) links[right.next].previous = top.place;
    if (left.previous != kNone) push(left.previous, memory);
    push(top.place, memory);
  }
}

}  // namespace sluice
