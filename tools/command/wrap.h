// Breaks text into lines at blanks, so that no word is cut. Only a line of a single word can be longer than
// `columns`.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace sluice {

constexpr size_t kPageColumns = 100;  // the width of help and tables

// Appends `head`, then `text` from column `indent` on: in the line of `head`, or in the next one where `head`
// is too long. Further lines are indented likewise. A tab in `text` is a blank at which no line breaks.
void append_wrapped(std::string& out, const std::string& head, const std::string& text, size_t indent,
                    size_t columns = kPageColumns);

// Like append_wrapped(), for a list with commas between its items. No item is broken.
void append_list(std::string& out, const std::string& head, const std::vector<std::string>& items,
                 size_t indent);
// The items with commas between them, as a text that append_wrapped breaks between items only.
std::string unbroken_list(const std::vector<std::string>& items);

// The column of a line's second part: what follows a first part and two or more blanks. 0 if there is none.
size_t second_part(const std::string& line);

// The text with every line broken that is too long. The rest of a line is indented to its second part. If
// there is none in the left half, the rest is indented a little more than the line.
std::string fitted(const std::string& text, size_t columns);

}  // namespace sluice
