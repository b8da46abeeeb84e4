#include <fmt/format.h>

#include <algorithm>

#include "models/text/template/format.h"
#include "models/text/template/methods.h"
#include "models/text/template/unicode.h"

namespace sluice::jinja {
namespace {

bool holds(std::string_view characters, std::string_view character, Budget& budget) {
  budget.step(1 + characters.size() / 64);
  return characters.find(character) != std::string_view::npos;  // both are UTF-8: no match across borders
}

Values text_values(const std::vector<Text>& parts, Budget& budget) {
  budget.make_elements(parts.size());
  Values values;
  for (const Text& part : parts) values.push_back(text_value(part, budget));
  return values;
}

std::vector<Text> split_at_space(const Text& text, int64_t splits_max, Budget& budget) {
  std::vector<Text> parts;
  const std::string_view bytes = text.bytes;
  size_t at = leading_space(bytes);
  while (at < bytes.size()) {
    budget.make(sizeof(Text));
    if (static_cast<int64_t>(parts.size()) == splits_max) {  // the rest keeps the space at its end
      parts.push_back(slice(text, at, bytes.size()));
      break;
    }
    size_t end = at;
    for (size_t next = at; next < bytes.size() && !is_space(next_code_point(bytes, next));) end = next;
    parts.push_back(slice(text, at, end));
    at = end + leading_space(bytes.substr(end));
  }
  return parts;
}

std::vector<Text> split_at(const Text& text, const Text& separator, int64_t splits_max, Budget& budget) {
  std::vector<Text> parts;
  size_t at = 0;
  while (static_cast<int64_t>(parts.size()) != splits_max) {
    const size_t found = find_bytes(text.bytes, separator.bytes, at);
    if (found == std::string::npos) break;
    budget.make(sizeof(Text));
    parts.push_back(slice(text, at, found));
    at = found + separator.bytes.size();
  }
  parts.push_back(slice(text, at, text.bytes.size()));
  return parts;
}

std::vector<Text> split_at_last(const Text& text, const Text& separator, int64_t splits_max, Budget& budget) {
  std::vector<Text> parts = split_at(text, separator, -1, budget);
  if (splits_max < 0 || static_cast<int64_t>(parts.size()) - 1 <= splits_max) return parts;
  // Right splits of a separator that overlaps itself may fall elsewhere.
  if (separator.bytes.size() > 1) throw refusal("method 'rsplit' with a limit and a long separator");
  const size_t kept = parts.size() - static_cast<size_t>(splits_max);
  size_t head = kept - 1;
  for (size_t i = 0; i < kept; ++i) head += parts[i].bytes.size();
  std::vector<Text> result = {slice(text, 0, head)};
  result.insert(result.end(), parts.begin() + static_cast<std::ptrdiff_t>(kept), parts.end());
  return result;
}

Value split(const Text& text, std::string_view name, const CallArguments& given, Budget& budget) {
  const auto bound = bind(name, given, {"sep", "maxsplit"}, 0);
  const int64_t splits_max = integer_argument(name, bound[1], -1);
  const bool from_right = name == "rsplit";
  std::vector<Text> parts;
  if (bound[0] == nullptr || bound[0]->is<None>()) {
    if (from_right && splits_max >= 0) throw refusal("method 'rsplit' at white space with a limit");
    parts = split_at_space(text, splits_max, budget);
  } else {
    const Text& separator = text_argument(name, bound[0]);
    if (separator.bytes.empty()) throw Fault("split() at an empty separator");
    parts = from_right ? split_at_last(text, separator, splits_max, budget)
                       : split_at(text, separator, splits_max, budget);
  }
  return sequence_value(SequenceKind::list, text_values(parts, budget), budget);
}

Value starts_or_ends(const Text& text, std::string_view name, const CallArguments& given, Budget& budget) {
  if (given.positional.size() > 1) throw refusal(fmt::format("bounds of the method '{}'", name));
  const Value& affix = *bind(name, given, {""}, 1)[0];
  const auto has = [&](const Value& v) {
    const Text& part = text_argument(name, &v);
    budget.read(64 + std::min(text.bytes.size(), part.bytes.size()));
    return name == "startswith" ? text.bytes.starts_with(part.bytes) : text.bytes.ends_with(part.bytes);
  };
  const Sequence* several = affix.sequence();
  if (several == nullptr || several->kind != SequenceKind::tuple) return {has(affix)};
  return {std::any_of(several->items.begin(), several->items.end(), has)};
}

Value find_or_count(const Text& text, std::string_view name, const CallArguments& given, Budget& budget) {
  if (given.positional.size() > 1) throw refusal(fmt::format("bounds of the method '{}'", name));
  const std::string& part = text_argument(name, bind(name, given, {""}, 1)[0]).bytes;
  if (name == "count") {
    if (part.empty()) return {static_cast<int64_t>(count_code_points(text.bytes)) + 1};
    int64_t count = 0;
    for (size_t at = 0; (at = find_bytes(text.bytes, part, at)) != std::string::npos; at += part.size()) {
      budget.step();
      ++count;
    }
    return {count};
  }
  size_t found = find_bytes(text.bytes, part, 0);
  if (name.starts_with('r') && found != std::string::npos) {
    if (part.empty()) found = text.bytes.size();
    for (size_t at = found; !part.empty() && at != std::string::npos;
         at = find_bytes(text.bytes, part, at + 1)) {
      budget.step(1 + part.size() / 64);  // matches may overlap
      found = at;
    }
  }
  if (found == std::string::npos) {
    if (name.ends_with("index")) throw Fault(fmt::format("{}() does not find the string", name));
    return {int64_t{-1}};
  }
  return {static_cast<int64_t>(count_code_points(std::string_view(text.bytes).substr(0, found)))};
}

Text without_affix(const Text& text, std::string_view name, const CallArguments& given) {
  const std::string& affix = text_argument(name, bind(name, given, {""}, 1)[0]).bytes;
  if (name == "removeprefix" && text.bytes.starts_with(affix))
    return slice(text, affix.size(), text.bytes.size());
  if (name == "removesuffix" && text.bytes.ends_with(affix))
    return slice(text, 0, text.bytes.size() - affix.size());
  return text;
}

Value partition(const Text& text, const CallArguments& given, Budget& budget) {
  const Text& separator = text_argument("partition", bind("partition", given, {""}, 1)[0]);
  if (separator.bytes.empty()) throw Fault("partition() at an empty separator");
  const size_t found = find_bytes(text.bytes, separator.bytes, 0);
  const size_t end = found == std::string::npos ? text.bytes.size() : found;
  const size_t next = found == std::string::npos ? end : found + separator.bytes.size();
  const std::vector<Text> parts = {slice(text, 0, end), slice(text, end, next),
                                   slice(text, next, text.bytes.size())};
  return sequence_value(SequenceKind::tuple, text_values(parts, budget), budget);
}

Value join(const Text& separator, const CallArguments& given, Budget& budget) {
  const Value& values = *bind("join", given, {""}, 1)[0];
  std::vector<Text> parts;
  for (const Value& item : items_of(values, budget)) {
    budget.make(sizeof(Text) + text_argument("join", &item).bytes.size());
    parts.push_back(*item.text());
  }
  return text_value(joined(separator, parts, budget), budget);
}

Value replace(const Text& text, const CallArguments& given, Budget& budget) {
  const auto bound = bind("replace", given, {"", "", "count"}, 2);
  return text_value(replaced(text, text_argument("replace", bound[0]), text_argument("replace", bound[1]),
                             integer_argument("replace", bound[2], -1), budget),
                    budget);
}

// The whole result is content if any of the text is: a character's cases may differ in length.
Value in_case(const Text& text, std::string (*change)(std::string_view), Budget& budget) {
  Text result;
  append_derived(result, change(text.bytes), text);
  result.safe = text.safe;
  return text_value(std::move(result), budget);
}

bool is_all_space(const Text& text) {
  return !text.bytes.empty() && leading_space(text.bytes) == text.bytes.size();
}

bool is_all_digits(const Text& text) {
  if (std::any_of(text.bytes.begin(), text.bytes.end(), [](char c) { return (c & 0x80) != 0; }))
    throw refusal("method 'isdigit' beyond ASCII");
  return !text.bytes.empty() &&
         std::all_of(text.bytes.begin(), text.bytes.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

Text stripped(const Text& text, const Value* characters, bool left, bool right, Budget& budget) {
  size_t begin = 0, end = text.bytes.size();
  if (characters == nullptr || characters->is<None>()) {
    if (left) begin = leading_space(text.bytes);
    if (right) end -= trailing_space(std::string_view(text.bytes).substr(begin));
    return slice(text, begin, end);
  }
  const std::string& set = text_argument("strip", characters).bytes;
  const std::string_view bytes = text.bytes;
  while (left && begin < end) {
    size_t next = begin;
    next_code_point(bytes, next);
    if (!holds(set, bytes.substr(begin, next - begin), budget)) break;
    begin = next;
  }
  while (right && begin < end) {
    size_t last = end - 1;
    while ((bytes[last] & 0xC0) == 0x80) --last;
    if (!holds(set, bytes.substr(last, end - last), budget)) break;
    end = last;
  }
  return slice(text, begin, end);
}

Text replaced(const Text& text, const Text& from, const Text& to, int64_t count, Budget& budget) {
  Text result;
  result.safe = text.safe;
  size_t at = 0;
  for (int64_t done = 0; done != count; ++done) {
    size_t found = find_bytes(text.bytes, from.bytes, at);
    // An empty string is found in front of each character and at the end.
    if (from.bytes.empty() && done > 0) {
      if (at == text.bytes.size()) break;
      next_code_point(text.bytes, found = at);
    }
    if (found == std::string::npos) break;
    budget.step();
    budget.make(to.bytes.size());
    append(result, slice(text, at, found));
    append(result, to);
    at = found + from.bytes.size();
  }
  append(result, slice(text, at, text.bytes.size()));
  return result;
}

Text joined(const Text& separator, const std::vector<Text>& parts, Budget& budget) {
  Text result;
  for (size_t i = 0; i < parts.size(); ++i) {
    budget.make(separator.bytes.size() + parts[i].bytes.size());
    if (i > 0) append(result, separator);
    append(result, parts[i]);
  }
  return result;
}

std::vector<Text> lines_of(const Text& text, Budget& budget) {
  const auto is_break = [](char32_t c) {
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
  };
  std::vector<Text> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.bytes.size();) {
    const size_t end = at;
    const char32_t c = next_code_point(text.bytes, at);
    if (!is_break(c)) continue;
    budget.make(sizeof(Text));
    lines.push_back(slice(text, begin, end));
    if (c == '\r' && at < text.bytes.size() && text.bytes[at] == '\n') ++at;
    begin = at;
  }
  if (begin < text.bytes.size()) lines.push_back(slice(text, begin, text.bytes.size()));
  return lines;
}

Value call_string_method(const Text& text, std::string_view name, const CallArguments& given,
                         Budget& budget) {
  budget.step(1 + text.bytes.size() / 64);
  const bool strips = name == "strip" || name == "lstrip" || name == "rstrip";
  if (strips) {
    const auto bound = bind(name, given, {""}, 0);
    return text_value(stripped(text, bound[0], name != "rstrip", name != "lstrip", budget), budget);
  }
  if (name == "startswith" || name == "endswith") return starts_or_ends(text, name, given, budget);
  if (text.safe) throw refusal(fmt::format("method '{}' of a safe string", name));
  if (name == "split" || name == "rsplit") return split(text, name, given, budget);
  if (name == "replace") return replace(text, given, budget);
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex" || name == "count")
    return find_or_count(text, name, given, budget);
  if (name == "join") return join(text, given, budget);
  if (name == "format") return text_value(brace_format(text, given, budget), budget);
  if (name == "removeprefix" || name == "removesuffix")
    return text_value(without_affix(text, name, given), budget);
  if (name == "partition") return partition(text, given, budget);
  static constexpr std::string_view kWithoutArguments[] = {"upper",      "lower",   "title",  "capitalize",
                                                           "splitlines", "isspace", "isdigit"};
  if (std::find(std::begin(kWithoutArguments), std::end(kWithoutArguments), name) ==
      std::end(kWithoutArguments))
    throw refusal(fmt::format("method '{}' of a string", name));
  if (name == "splitlines" && (!given.positional.empty() || !given.named.empty()))
    throw refusal("method 'splitlines' that keeps line ends");
  bind(name, given, {}, 0);
  if (name == "upper") return in_case(text, upper, budget);
  if (name == "lower") return in_case(text, lower, budget);
  if (name == "title") return in_case(text, title, budget);
  if (name == "capitalize") return in_case(text, capitalize, budget);
  if (name == "isspace") return {is_all_space(text)};
  if (name == "isdigit") return {is_all_digits(text)};
  return sequence_value(SequenceKind::list, text_values(lines_of(text, budget), budget), budget);
}

}  // namespace sluice::jinja
