#include "engine/base/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

namespace sluice {
namespace {

// Words longer than this are not compared: the cost grows with the product of the lengths, and no name is
// that long.
constexpr size_t kLengthMax = 256;

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

size_t edit_distance(const std::string& a, const std::string& b) {
  const size_t columns = b.size() + 1;
  std::vector<size_t> table((a.size() + 1) * columns);
  const auto at = [&](size_t i, size_t j) -> size_t& { return table[i * columns + j]; };
  for (size_t i = 0; i <= a.size(); ++i) at(i, 0) = i;
  for (size_t j = 0; j <= b.size(); ++j) at(0, j) = j;
  for (size_t i = 1; i <= a.size(); ++i)
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = at(i - 1, j - 1) + (a[i - 1] != b[j - 1]);
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
    }
  return at(a.size(), b.size());
}

}  // namespace

std::string nearest(const std::string& word, std::span<const std::string> candidates) {
  if (word.empty() || word.size() > kLengthMax) return "";
  const std::string wanted = lower(word);
  std::string best;
  size_t fewest = SIZE_MAX;
  for (const std::string& candidate : candidates) {
    const size_t longer = std::max(word.size(), candidate.size());
    if (longer > kLengthMax) continue;
    const size_t edits = edit_distance(wanted, lower(candidate));
    if (edits <= std::max<size_t>(1, longer / 3) && edits < longer && edits < fewest) {
      fewest = edits;
      best = candidate;
    }
  }
  return best;
}

std::string suggestion(const std::string& word, std::span<const std::string> candidates) {
  const std::string near = nearest(word, candidates);
  if (!near.empty()) return fmt::format("Did you mean {}?", near);
  return fmt::format("Known are {}.", fmt::join(candidates, ", "));
}

}  // namespace sluice
