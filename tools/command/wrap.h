// Text broken at blanks into lines of a page's width.
#pragma once

#include <string>
#include <vector>

namespace sluice {

// Appends `head` and `text`, which begins in column `indent` of a line: of head's, or of the next one where
// head is too long. Further lines are indented as far. No line but one of a single word is longer than a page
// is wide, 100 columns.
void append_wrapped(std::string& out, const std::string& head, const std::string& text, size_t indent);

// The same of a list with commas between its items, none of which is broken.
void append_list(std::string& out, const std::string& head, const std::vector<std::string>& items,
                 size_t indent);

}  // namespace sluice
