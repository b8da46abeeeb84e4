// Regular expressions of tokenizers, matched by Oniguruma, as Hugging Face tokenizers match them.
//
// A Pattern never changes and may be used from several threads, each with a Matcher of its own. Classes such
// as \p{L} are those of the Unicode version that the installed Oniguruma has: 14 in Debian 12. All steps of a
// search are counted, so a pattern that takes time without end, or a quadratic one on a long word, is an
// Error and not a hang. Callers: steps of the tokenizer, added tokens.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "models/text/byte_range.h"

namespace sluice {

class Pattern {
 public:
  // Throws Error: malformed_file when `source` is no regular expression of Oniguruma's syntax or has what
  // cannot be counted (counted_pattern.h), environment when the library is not installed.
  explicit Pattern(const std::string& source);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

 private:
  friend class Matcher;
  struct Compiled;
  std::unique_ptr<const Compiled> compiled_;
};

// The memory of one thread's searches.
class Matcher {
 public:
  Matcher();
  ~Matcher();
  Matcher(Matcher&&) noexcept;
  Matcher& operator=(Matcher&&) noexcept;

  // The first match in `text`, valid UTF-8, that begins at `from` or behind it; characters before `from` are
  // seen by look-behind. Throws Error(malformed_file) when the search takes more than the limits allow.
  std::optional<ByteRange> find(const Pattern& pattern, std::string_view text, size_t from);

  // Renews the limits, for the searches in a text of `bytes` bytes. Before the first call, the limits are
  // those of an empty text.
  void start_text(size_t bytes);

 private:
  struct State;
  int search(const Pattern& pattern, std::string_view text, size_t from);  // what Oniguruma returns
  std::unique_ptr<State> state_;  // made by the first search: a tokenizer without patterns needs no library
  size_t text_bytes_ = 0;
};

// Characters of `text`, valid UTF-8, that no class of a Pattern takes for a letter, a mark, a number or the
// like, because the Unicode version of the installed Oniguruma has not assigned them. Throws
// Error(environment) as Pattern.
size_t count_unassigned(std::string_view text);

// Calls visit(ByteRange) for each match in `text`, ascending and not overlapping. An empty match directly
// behind the match before it does not count.
template <typename Visit>
void for_each_match(const Pattern& pattern, Matcher& matcher, std::string_view text, const Visit& visit) {
  std::optional<size_t> last;
  for (size_t from = 0; from <= text.size();) {
    const std::optional<ByteRange> match = matcher.find(pattern, text, from);
    if (!match) return;
    if (match->begin == match->end && last == match->end) {
      ++from;
      while (from < text.size() && (text[from] & 0xC0) == 0x80) ++from;
      continue;
    }
    visit(*match);
    last = from = match->end;
  }
}

}  // namespace sluice
