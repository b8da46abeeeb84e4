// "Did you mean": finds the known names that an unknown word may mean.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace sluice {

// The candidates that `word` may mean, the likeliest first. The first rule that finds any decides. No rule
// looks at case.
//   1. The same letters and digits: "rtx4090" is rtx-4090.
//   2. Names that contain the word's letters and digits, three or more: "4090" is rtx-4090 or rtx-4090-4nvme.
//   3. The name with the fewest edits (insert, delete, replace, swap two neighbours), the first of equals. It
//      is at most max(1, L / 3) edits away, and fewer than L, where L is the length of the longer word.
//      Optimal string alignment distance: Boytsov, "Indexing methods for approximate dictionary searching"
//      (2011), section 2.2.
//   4. Names that share the most letters in whole parts, one of which has a digit and four letters or more:
//      "a100-sxm4-80gb" is a100-80gb.
// Of several names, the shortest comes first. The result is empty if more than eight names are found, or if
// the word has more than 256 letters.
std::vector<std::string> near_names(const std::string& word, std::span<const std::string> candidates);

// "Did you mean A?", or "Did you mean A, B or C?"; "" if no candidate is near. `before` stands before each
// name.
std::string did_you_mean(const std::string& word, std::span<const std::string> candidates,
                         const std::string& before = "");

// The sentence that errors append: did_you_mean() or, when nothing is near, "Known are A, B, C."
std::string suggestion(const std::string& word, std::span<const std::string> candidates);

}  // namespace sluice
