// A string that knows which of its bytes came from the input.
//
// Bytes of the template's own literals are not marked. Bytes of string values of the input are content, and
// stay content through every operation. An operation that cannot tell marks its whole result. Bytes are valid
// UTF-8, and spans lie on borders of code points. Callers: values and whatever makes strings of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/text/template/chat_template.h"

namespace sluice::jinja {

struct Text {
  std::string bytes;
  // The ranges that came from the input; ascending, disjoint, none empty. Adjacent ranges differ in source.
  std::vector<SourceRange> content;
  bool safe = false;  // the result of filter 'safe': Python's Markup, where + escapes what it adds
};

Text literal(std::string_view bytes);
Text content(std::string_view bytes, uint32_t source);

void append(Text& to, std::string_view literal);
void append(Text& to, const Text& part);
// Appends `bytes` that stand for characters of `source` in another form (escaped, in another case). They are
// content if any of `source` is.
void append_derived(Text& to, std::string_view bytes, const Text& source);

// The first place of `needle` at `from` or behind it; npos if there is none. Linear in the haystack, whatever
// the needle, unlike std::string::find.
size_t find_bytes(std::string_view haystack, std::string_view needle, size_t from);

// Bytes [begin, end), with their marks.
Text slice(const Text& text, size_t begin, size_t end);

}  // namespace sluice::jinja
