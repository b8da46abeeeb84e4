#include "models/text/template/filters.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "models/text/template/format.h"
#include "models/text/template/methods.h"
#include "models/text/template/print.h"
#include "models/text/template/unicode.h"

namespace sluice::jinja {
namespace {

// ---- Strings ----

Value string(const Value& value, const CallArguments& given, Budget& budget) {
  bind("string", given, {}, 0);
  return text_value(str(value, budget), budget);
}

Value safe(const Value& value, const CallArguments& given, Budget& budget) {
  bind("safe", given, {}, 0);
  Text text = str(value, budget);
  text.safe = true;
  return text_value(std::move(text), budget);
}

Value trim(const Value& value, const CallArguments& given, Budget& budget) {
  const auto bound = bind("trim", given, {"chars"}, 0);
  return text_value(stripped(str(value, budget), bound[0], true, true, budget), budget);
}

Value method_of_string(std::string_view name, const Value& value, const CallArguments& given,
                       Budget& budget) {
  return call_string_method(str(value, budget), name, given, budget);
}
Value lower_case(const Value& value, const CallArguments& given, Budget& budget) {
  return method_of_string("lower", value, given, budget);
}
Value upper_case(const Value& value, const CallArguments& given, Budget& budget) {
  return method_of_string("upper", value, given, budget);
}
Value capitalized(const Value& value, const CallArguments& given, Budget& budget) {
  return method_of_string("capitalize", value, given, budget);
}

// Words begin behind spaces, hyphens and opening brackets, unlike those of str.title.
Value title_case(const Value& value, const CallArguments& given, Budget& budget) {
  bind("title", given, {}, 0);
  const Text text = str(value, budget);
  std::string result;
  size_t word = 0;
  const auto finish = [&](size_t end) {
    if (word == end) return;
    size_t rest = word;
    next_code_point(text.bytes, rest);
    const std::string_view bytes = text.bytes;
    result += upper(bytes.substr(word, rest - word)) + lower(bytes.substr(rest, end - rest));
  };
  for (size_t at = 0; at < text.bytes.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text.bytes, at);
    if (!is_space(c) &&
        (c >= 0x80 || std::string_view("-({[<").find(static_cast<char>(c)) == std::string_view::npos))
      continue;
    finish(begin);
    result += text.bytes.substr(begin, at - begin);
    word = at;
  }
  finish(text.bytes.size());
  Text titled;
  append_derived(titled, result, text);
  return text_value(std::move(titled), budget);
}

Value replace(const Value& value, const CallArguments& given, Budget& budget) {
  const auto bound = bind("replace", given, {"old", "new", "count"}, 2);
  const bool all = bound[2] == nullptr || bound[2]->is<None>();
  Text text = str(value, budget);
  text.safe = false;
  return text_value(replaced(text, str(*bound[0], budget), str(*bound[1], budget),
                             all ? -1 : integer_argument("replace", bound[2], -1), budget),
                    budget);
}

// `width` spaces, or `width` itself if it is a string.
Text indentation(std::string_view callee, const Value& width) {
  if (width.text() != nullptr) return *width.text();
  constexpr int64_t kWidthMax = 1000;
  const int64_t spaces = integer_argument(callee, &width, 0);
  if (spaces > kWidthMax) throw refusal("an indentation of more than 1000 spaces");
  return literal(std::string(static_cast<size_t>(std::max<int64_t>(spaces, 0)), ' '));
}

Value indent(const Value& value, const CallArguments& given, Budget& budget) {
  const auto bound = bind("indent", given, {"width", "first", "blank"}, 0);
  const Text indention = indentation("indent", bound[0] != nullptr ? *bound[0] : Value{int64_t{4}});
  const bool blank = truth_argument(bound[2], false);
  if (value.text() == nullptr)
    throw Fault(fmt::format("filter 'indent' needs a string, not '{}'", type_name(value)));
  Text text = str(value, budget);
  if (text.safe) throw refusal("filter 'indent' of a safe string");
  append(text, "\n");  // so that an empty last line counts, as in jinja2
  const std::vector<Text> lines = lines_of(text, budget);
  Text result;
  if (truth_argument(bound[1], false)) append(result, indention);
  for (size_t i = 0; i < lines.size(); ++i) {
    budget.make(lines[i].bytes.size() + indention.bytes.size() + 1);
    if (i > 0) append_derived(result, "\n", text);
    if (i > 0 && (blank || !lines[i].bytes.empty())) append(result, indention);
    append(result, lines[i]);
  }
  return text_value(std::move(result), budget);
}

Value format(const Value& value, const CallArguments& given, Budget& budget) {
  if (!given.named.empty()) throw refusal("a name in a % format");
  const Value values = sequence_value(SequenceKind::tuple, given.positional, budget);
  return text_value(percent_format(str(value, budget), values, budget), budget);
}

JsonStyle json_style(const CallArguments& given, Budget& budget) {
  const auto bound = bind("tojson", given, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  JsonStyle style;
  style.ensure_ascii = truth_argument(bound[0], false);
  style.sort_keys = truth_argument(bound[3], false);
  if (bound[1] != nullptr && !bound[1]->is<None>()) style.indent = indentation("tojson", *bound[1]);
  style.item_separator = literal(style.indent ? "," : ", ");
  style.key_separator = literal(": ");
  if (bound[2] != nullptr && !bound[2]->is<None>()) {
    const Values separators = items_of(*bound[2], budget);
    if (separators.size() != 2) throw Fault("tojson needs two separators");
    style.item_separator = text_argument("tojson", &separators[0]);
    style.key_separator = text_argument("tojson", &separators[1]);
  }
  return style;
}

Value tojson(const Value& value, const CallArguments& given, Budget& budget) {
  return text_value(to_json(value, json_style(given, budget), budget), budget);
}

// ---- Numbers ----

std::string_view without_space(std::string_view text) {
  text.remove_prefix(leading_space(text));
  text.remove_suffix(trailing_space(text));
  return text;
}

void require_plain_number(std::string_view text) {
  if (std::any_of(text.begin(), text.end(), [](char c) { return (c & 0x80) != 0 || c == '_'; }))
    throw refusal("a number with '_' or characters beyond ASCII");
}

// Parses as float(text) does in Python.
std::optional<double> parsed_float(std::string_view text) {
  require_plain_number(text = without_space(text));
  const bool has_sign = text.starts_with('+') || text.starts_with('-');
  const std::string_view digits = text.substr(has_sign ? 1 : 0);
  if (digits.starts_with('+') || digits.starts_with('-')) return std::nullopt;  // from_chars would take "-"
  if (digits.find('(') != std::string_view::npos) return std::nullopt;          // and would take "nan(...)"
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (end != digits.data() + digits.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) throw refusal("a number beyond the range of double precision");
  if (error != std::errc()) return std::nullopt;
  return text.starts_with('-') ? -value : value;
}

std::optional<int64_t> truncated(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  if (std::abs(value) >= 9e18) throw refusal("an integer beyond 64 bits");
  return static_cast<int64_t>(value);
}

std::optional<int64_t> parsed_integer(std::string_view text) {
  require_plain_number(text = without_space(text));
  if (text.starts_with('+')) {
    text.remove_prefix(1);
    if (text.starts_with('-')) return std::nullopt;
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) throw refusal("an integer beyond 64 bits");
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Value to_integer(const Value& value, const CallArguments& given, Budget&) {
  const auto bound = bind("int", given, {"default", "base"}, 0);
  if (integer_argument("int", bound[1], 10) != 10) throw refusal("a base of the filter 'int'");
  std::optional<int64_t> result = integer_of(value);
  if (const double* d = value.get<double>()) result = truncated(*d);
  if (const Text* text = value.text()) {
    result = parsed_integer(text->bytes);
    const auto number = result ? std::nullopt : parsed_float(text->bytes);
    if (number) result = truncated(*number);
  }
  if (const Undefined* none = value.get<Undefined>()) throw Fault(*none->reason);
  if (result) return {*result};
  return bound[0] != nullptr ? *bound[0] : Value{int64_t{0}};
}

Value to_float(const Value& value, const CallArguments& given, Budget&) {
  const auto bound = bind("float", given, {"default"}, 0);
  auto result = number_of(value);
  if (const Text* text = value.text()) result = parsed_float(text->bytes);
  if (const Undefined* none = value.get<Undefined>()) throw Fault(*none->reason);
  if (result) return {*result};
  return bound[0] != nullptr ? *bound[0] : Value{0.0};
}

Value absolute(const Value& value, const CallArguments& given, Budget&) {
  bind("abs", given, {}, 0);
  if (const double* d = value.get<double>()) return {std::abs(*d)};
  const auto integer = integer_of(value);
  if (!integer) throw Fault(fmt::format("filter 'abs' needs a number, not '{}'", type_name(value)));
  if (*integer == INT64_MIN) throw refusal("an integer beyond 64 bits");
  return {std::abs(*integer)};
}

// ---- Anything ----

Value fallback(const Value& value, const CallArguments& given, Budget& budget) {
  const auto bound = bind("default", given, {"default_value", "boolean"}, 0);
  if (!value.is<Undefined>() && (!truth_argument(bound[1], false) || truth(value))) return value;
  return bound[0] != nullptr ? *bound[0] : literal_value("", budget);
}

constexpr FilterRow kScalarFilters[] = {
    {"abs", absolute},     {"capitalize", capitalized}, {"d", fallback},    {"default", fallback},
    {"float", to_float},   {"format", format},          {"indent", indent}, {"int", to_integer},
    {"lower", lower_case}, {"replace", replace},        {"safe", safe},     {"string", string},
    {"title", title_case}, {"tojson", tojson},          {"trim", trim},     {"upper", upper_case},
};

// The filters of jinja2 that are missing here.
constexpr std::string_view kMissing[] = {
    "attr",      "batch",  "center",    "e",        "escape", "filesizeformat", "forceescape",
    "groupby",   "pprint", "random",    "round",    "slice",  "striptags",      "truncate",
    "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr"};

const FilterRow* find_filter(std::string_view name) {
  const auto named = [&](const FilterRow& row) { return row.name == name; };
  const auto* scalar = std::find_if(std::begin(kScalarFilters), std::end(kScalarFilters), named);
  if (scalar != std::end(kScalarFilters)) return scalar;
  const auto& rows = sequence_filters();
  const auto row = std::find_if(rows.begin(), rows.end(), named);
  return row == rows.end() ? nullptr : &*row;
}

}  // namespace

bool has_filter(std::string_view name) { return find_filter(name) != nullptr; }

bool is_filter_of_jinja(std::string_view name) {
  return has_filter(name) || std::find(std::begin(kMissing), std::end(kMissing), name) != std::end(kMissing);
}

Value apply_filter(std::string_view name, const Value& value, const CallArguments& given, Budget& budget) {
  budget.step();
  if (const Text* text = value.text()) budget.read(text->bytes.size());
  const FilterRow* filter = find_filter(name);
  if (filter != nullptr) return filter->apply(value, given, budget);
  if (is_filter_of_jinja(name)) throw refusal(fmt::format("filter '{}'", name));
  throw Fault(fmt::format("there is no filter '{}'", name));
}

}  // namespace sluice::jinja
