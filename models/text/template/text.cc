#include "models/text/template/text.h"

#include <algorithm>
#include <cstring>

namespace sluice::jinja {
namespace {

void mark(Text& text, size_t begin, size_t end) {
  if (begin == end) return;
  if (!text.content.empty() && text.content.back().end == begin)
    text.content.back().end = end;
  else
    text.content.push_back({begin, end});
}

// The first span that ends behind `byte`.
auto first_behind(const Text& text, size_t byte) {
  return std::partition_point(text.content.begin(), text.content.end(),
                              [&](const ByteRange& span) { return span.end <= byte; });
}

}  // namespace

Text literal(std::string_view bytes) { return {std::string(bytes), {}, false}; }

Text content(std::string_view bytes) {
  Text text = literal(bytes);
  mark(text, 0, bytes.size());
  return text;
}

void append(Text& to, std::string_view literal) { to.bytes += literal; }

void append(Text& to, const Text& part) {
  const size_t begin = to.bytes.size();
  to.bytes += part.bytes;
  for (const ByteRange& span : part.content) mark(to, begin + span.begin, begin + span.end);
}

void append_derived(Text& to, std::string_view bytes, const Text& source) {
  const size_t begin = to.bytes.size();
  to.bytes += bytes;
  if (!source.content.empty()) mark(to, begin, to.bytes.size());
}

size_t find_bytes(std::string_view haystack, std::string_view needle, size_t from) {
  if (from > haystack.size()) return std::string_view::npos;
  const void* found = ::memmem(haystack.data() + from, haystack.size() - from, needle.data(), needle.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - haystack.data());
}

Text slice(const Text& text, size_t begin, size_t end) {
  Text part;
  part.safe = text.safe;
  if (begin >= end) return part;
  part.bytes = text.bytes.substr(begin, end - begin);
  for (auto span = first_behind(text, begin); span != text.content.end() && span->begin < end; ++span)
    mark(part, std::max(span->begin, begin) - begin, std::min(span->end, end) - begin);
  return part;
}

}  // namespace sluice::jinja
