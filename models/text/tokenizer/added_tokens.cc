#include "models/text/tokenizer/added_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "engine/base/error.h"
#include "models/text/unicode.h"

namespace sluice {
namespace {

// \w of the regular expressions in Rust, with which Hugging Face tokenizers look at neighbours of a token.
constexpr const char* kWord = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}])";

size_t character_before(std::string_view text, size_t at) {
  do --at;
  while ((text[at] & 0xC0) == 0x80);
  return at;
}

// Where the white space in front of `at` begins, but not before `limit`.
size_t space_before(std::string_view text, size_t at, size_t limit) {
  while (at > limit) {
    const size_t begin = character_before(text, at);
    size_t end = begin;
    if (!is_white_space(next_code_point(text, end))) break;
    at = begin;
  }
  return at;
}

size_t space_behind(std::string_view text, size_t at) {
  while (at < text.size()) {
    size_t end = at;
    if (!is_white_space(next_code_point(text, end))) break;
    at = end;
  }
  return at;
}

// For [begin, end) of a text, returns bytes of the input: from the start of the first character to the first
// byte of the last character.
ByteRange source(const UserText& plain, size_t begin, size_t end) {
  if (plain.origin.empty()) return {begin, end};
  return {plain.origin[begin], size_t{plain.origin[end - 1]} + 1};
}

// The first plain range that ends behind `byte`.
auto first_behind(const UserText& plain, size_t byte) {
  return std::partition_point(plain.ranges.begin(), plain.ranges.end(),
                              [&](const ByteRange& range) { return range.end <= byte; });
}

}  // namespace

bool AddedTokens::Trie::add(std::string_view content, uint32_t token) {
  uint32_t node = 0;
  for (const char c : content) {
    uint32_t& child = children_.at(uint64_t{node} << 8 | static_cast<uint8_t>(c));
    if (child == 0) {
      child = static_cast<uint32_t>(tokens_.size());
      tokens_.push_back(UINT32_MAX);
    }
    node = child;
  }
  if (tokens_[node] != UINT32_MAX) return false;
  tokens_[node] = token;
  begins_[static_cast<uint8_t>(content.front())] = true;
  return true;
}

template <typename Visit>
void AddedTokens::Trie::at(std::string_view text, size_t begin, const Visit& visit) const {
  uint32_t node = 0;
  for (size_t at = begin; at < text.size(); ++at) {
    const uint32_t* child = children_.find(uint64_t{node} << 8 | static_cast<uint8_t>(text[at]));
    if (child == nullptr) return;
    node = *child;
    if (tokens_[node] != UINT32_MAX) visit(at + 1, tokens_[node]);
  }
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const std::vector<Normalizer>& normalizers)
    : tokens_(std::move(tokens)) {
  const auto fail = [](const AddedToken& token, const char* what) {
    throw std::invalid_argument(fmt::format("added token \"{}\" {}", printable(token.content), what));
  };
  for (const AddedToken& token : tokens_) {
    std::string decoded = token.content;
    if (token.normalized) {
      std::vector<uint32_t> origin(decoded.size());
      normalize(normalizers, decoded, origin);
    }
    if (decoded.empty()) fail(token, "is empty");
    decoded_.push_back(std::move(decoded));
    if (token.special) specials_.insert(token.content);
    if (token.single_word && !word_) word_ = Pattern(kWord);
  }
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    if (!by_content_.emplace(tokens_[i].content, i).second) fail(tokens_[i], "is given twice");
    if (!by_id_.emplace(tokens_[i].id, i).second) fail(tokens_[i], "has the id of another");
    if (!(tokens_[i].normalized ? normalized_ : raw_).add(decoded_[i], i))
      fail(tokens_[i], "is the same as another when normalized");
    if (!tokens_[i].normalized) longest_content_ = std::max(longest_content_, decoded_[i].size());
  }
}

const AddedToken* AddedTokens::by_content(std::string_view content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::by_id(uint32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const std::string& AddedTokens::decoded(const AddedToken& token) const {
  return decoded_[static_cast<size_t>(&token - tokens_.data())];
}

uint32_t AddedTokens::id_end() const {
  uint32_t end = 0;
  for (const AddedToken& token : tokens_) end = std::max(end, token.id + 1);
  return end;
}

// The longest content at `begin`. If it is a special token inside plain text, it does not count, and the
// search goes on behind it, as in Hugging Face tokenizers where special tokens are switched off. If a
// special token reaches across the border of plain text, a shorter content counts: text of users cannot hide
// the template's control tokens.
std::optional<AddedTokens::Found> AddedTokens::longest(const Trie& trie, std::string_view text, size_t begin,
                                                       const UserText& plain) const {
  std::optional<Found> found;
  trie.at(text, begin, [&](size_t end, uint32_t token) {
    bool counts = true;
    if (tokens_[token].special && !plain.ranges.empty()) {
      const ByteRange from = source(plain, begin, end);
      const auto range = first_behind(plain, from.begin);
      counts = range == plain.ranges.end() || range->begin >= from.end;
      const bool inside = !counts && range->begin <= from.begin && range->end >= from.end;
      if (!counts && !inside) return;
    }
    found = Found{end, token, counts};
  });
  return found;
}

bool AddedTokens::stands_alone(std::string_view text, size_t begin, size_t end) const {
  Matcher matcher;
  const auto is_word = [&](size_t at) {
    size_t next = at;
    next_code_point(text, next);
    return matcher.find(*word_, text.substr(at, next - at), 0).has_value();
  };
  return (begin == 0 || !is_word(character_before(text, begin))) && (end == text.size() || !is_word(end));
}

std::vector<size_t> AddedTokens::find(bool normalized, std::string_view text, size_t begin_of_text,
                                      const UserText& plain, std::vector<Piece>& to) const {
  const Trie& trie = normalized ? normalized_ : raw_;
  std::vector<size_t> spelled;
  size_t done = begin_of_text;
  const auto add_text = [&](size_t end) {
    if (done < end) to.push_back({static_cast<uint32_t>(done), static_cast<uint32_t>(end)});
  };
  for (size_t at = begin_of_text; at < text.size();) {
    const auto found = trie.may_begin(text[at]) ? longest(trie, text, at, plain) : std::nullopt;
    if (!found) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[found->token];
    size_t begin = at, end = found->end;
    at = found->end;
    if (!found->counts) spelled.push_back(begin);
    if (!found->counts || (token.single_word && !stands_alone(text, begin, end))) continue;
    if (token.lstrip) begin = std::max(space_before(text, begin, done), done);
    if (token.rstrip) end = space_behind(text, end);
    if (begin >= end) continue;               // a token only of white space, which the token before has taken
    if (begin < done) to.back().end = begin;  // the token before gives back white space of this content
    add_text(begin);
    to.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end), token.id});
    done = end;
  }
  add_text(text.size());
  return spelled;
}

}  // namespace sluice
