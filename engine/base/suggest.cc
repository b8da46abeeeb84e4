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
constexpr size_t kNamesMax = 8;        // more would not help
constexpr size_t kContainedMin = 3;    // letters: many names contain any two
constexpr size_t kTellingPartMin = 4;  // letters: "100b" tells models apart, "7b" and "x8" do not

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// Letters and digits in a row, in lower case: "A100-80GB" has a100 and 80gb.
std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : lower(text))
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      parts.back() += c;
    else if (!parts.back().empty())
      parts.emplace_back();
  if (parts.back().empty()) parts.pop_back();
  return parts;
}

std::string letters_of(const std::string& text) { return fmt::format("{}", fmt::join(parts_of(text), "")); }

// Counts the letters of the parts that occur in both words. Returns 0 if none of these parts tells names
// apart.
size_t letters_shared(const std::string& word, const std::string& candidate) {
  const std::vector<std::string> parts = parts_of(word);
  size_t letters = 0;
  bool tells = false;
  for (const std::string& part : parts_of(candidate)) {
    if (std::find(parts.begin(), parts.end(), part) == parts.end()) continue;
    letters += part.size();
    tells |= part.size() >= kTellingPartMin && std::any_of(part.begin(), part.end(), is_digit);
  }
  return tells ? letters : 0;
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

std::string nearest(const std::string& word, std::span<const std::string> candidates) {
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

// The candidates with the highest mark, if that mark is above 0.
template <typename Mark>
std::vector<std::string> best_of(std::span<const std::string> candidates, Mark mark) {
  std::vector<std::string> best;
  size_t highest = 1;
  for (const std::string& candidate : candidates) {
    const size_t reached = mark(candidate);
    if (reached > highest) best.clear();
    highest = std::max(highest, reached);
    if (reached == highest) best.push_back(candidate);
  }
  std::stable_sort(best.begin(), best.end(),
                   [](const auto& a, const auto& b) { return a.size() < b.size(); });
  return best;
}

}  // namespace

std::vector<std::string> near_names(const std::string& word, std::span<const std::string> candidates) {
  const std::string letters = letters_of(word);
  if (letters.empty() || word.size() > kLengthMax) return {};
  const auto contains = [&](const std::string& candidate) -> size_t {
    const std::string all = letters_of(candidate);
    if (all == letters) return 2;
    return letters.size() >= kContainedMin && all.find(letters) != std::string::npos ? 1 : 0;
  };
  std::vector<std::string> names = best_of(candidates, contains);
  if (names.empty())
    if (std::string near = nearest(word, candidates); !near.empty()) names.push_back(std::move(near));
  if (names.empty())
    names =
        best_of(candidates, [&](const std::string& candidate) { return letters_shared(word, candidate); });
  if (names.size() > kNamesMax) names.clear();
  return names;
}

std::string did_you_mean(const std::string& word, std::span<const std::string> candidates,
                         const std::string& before) {
  const std::vector<std::string> names = near_names(word, candidates);
  std::string list;
  for (size_t i = 0; i < names.size(); ++i)
    list += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + before + names[i];
  return list.empty() ? "" : fmt::format("Did you mean {}?", list);
}

std::string suggestion(const std::string& word, std::span<const std::string> candidates) {
  const std::string near = did_you_mean(word, candidates);
  if (!near.empty()) return near;
  return fmt::format("Known are {}.", fmt::join(candidates, ", "));
}

}  // namespace sluice
