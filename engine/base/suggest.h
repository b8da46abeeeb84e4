// "Did you mean": the candidate nearest to a misspelt word.
#pragma once

#include <span>
#include <string>

namespace sluice {

// The candidate with the fewest edits (insert, delete, replace, swap two neighbours; case ignored), the first
// of equals. It is at most max(1, L / 3) edits away, and fewer than L, where L is the length of the longer
// word. "" if no candidate is as near, and for words of more than 256 letters. Optimal string alignment
// distance: Boytsov, "Indexing methods for approximate dictionary searching" (2011), section 2.2.
std::string nearest(const std::string& word, std::span<const std::string> candidates);

// The sentence that errors append: "Did you mean X?" or, when nothing is near, "Known are A, B, C."
std::string suggestion(const std::string& word, std::span<const std::string> candidates);

}  // namespace sluice
