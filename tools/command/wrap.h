// Wraps text into lines of at most 100 columns.
#pragma once

#include <string>
#include <vector>

namespace sluice {

// Appends `head`, then `text` from column `indent` on: in the line of `head`, or in the next one where `head`
// is too long. Further lines are indented likewise. Lines break at blanks; only a line of a single word can
// be longer than 100 columns.
void append_wrapped(std::string& out, const std::string& head, const std::string& text, size_t indent);

// The same for a list with commas between its items. No item is broken.
void append_list(std::string& out, const std::string& head, const std::vector<std::string>& items,
                 size_t indent);

}  // namespace sluice
