#include "models/text/template/text.h"

#include <algorithm>
#include <cstring>

namespace sluice::jinja {
namespace {

void mark(Text& text, size_t begin, size_t end, uint32_t source) {
  if (begin == end) return;
  if (!text.content.empty() && text.content.back().end == begin && text.content.back().source == source)
    text.content.back().end = end;
  else
    text.content.push_back({begin, end, source});
}

// The first span that ends behind `byte`.
auto first_behind(const Text& text, size_t byte) {
  return std::partition_point(text.content.begin(), text.content.end(),
                              [&](const SourceRange& span) { return span.end <= byte; });
}

}  // namespace

Text literal(std::string_view bytes) { return {std::string(bytes), {}, false}; }

Text content(std::string_view bytes, uint32_t source) {
  Text text = literal(bytes);
  mark(text, 0, bytes.size(), source);
  return text;
}

void append(Text& to, std::string_view literal) { to.bytes += literal; }

void append(Text& to, const Text& part) {
  const size_t begin = to.bytes.size();
  to.bytes += part.bytes;
  for (const SourceRange& span : part.content) mark(to, begin + span.begin, begin + span.end, span.source);
}

void append_derived(Text& to, std::string_view bytes, const Text& source) {
  const size_t begin = to.bytes.size();
  to.bytes += bytes;
  if (!source.content.empty()) mark(to, begin, to.bytes.size(), source.content.front().source);
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
    mark(part, std::max(span->begin, begin) - begin, std::min(span->end, end) - begin, span->source);
  return part;
}

}  // namespace sluice::jinja
