#include "models/text/template/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "models/text/template/print.h"
#include "models/text/template/unicode.h"

namespace sluice::jinja {
namespace {

constexpr size_t kWidthMax = 10'000;  // of a field: a width is for alignment

// Digits at `at` as a number; moves `at` behind them.
size_t take_number(const std::string& text, size_t& at) {
  size_t number = 0;
  for (; at < text.size() && is_digit(text[at]); ++at) {
    number = number * 10 + static_cast<size_t>(text[at] - '0');
    if (number > kWidthMax) throw refusal("a width or precision beyond 10000");
  }
  return number;
}

struct Conversion {
  std::string flags;
  size_t width = 0;
  std::optional<size_t> precision;
  char type = 's';

  bool has(char flag) const { return flags.find(flag) != std::string::npos; }
};

// Takes the conversion at `at`, which is behind its '%'.
Conversion take_conversion(const std::string& format, size_t& at) {
  Conversion c;
  if (at < format.size() && format[at] == '(') throw refusal("a name in a % format");
  for (; at < format.size() && std::string_view("-+ 0#").find(format[at]) != std::string_view::npos; ++at)
    c.flags += format[at];
  c.width = take_number(format, at);
  if (at < format.size() && format[at] == '.') c.precision = take_number(format, ++at);
  if (at == format.size()) throw Fault("a % format is incomplete");
  c.type = format[at++];
  return c;
}

std::string formatted_integer(const Conversion& c, const Value& value) {
  auto integer = integer_of(value);
  if (const double* d = value.get<double>(); d != nullptr && c.type != 'x') {
    if (!std::isfinite(*d)) throw Fault("no integer for a % format");
    if (std::abs(*d) >= 9e18) throw refusal("an integer beyond 64 bits");
    integer = static_cast<int64_t>(*d);
  }
  if (!integer) throw Fault(fmt::format("%{} needs a number, not '{}'", c.type, type_name(value)));
  if (c.precision || c.has('#')) throw refusal("a precision or '#' in the % format of an integer");
  if (*integer == INT64_MIN) throw refusal("an integer beyond 64 bits");
  const std::string digits =
      c.type == 'x' ? fmt::format("{:x}", std::abs(*integer)) : std::to_string(std::abs(*integer));
  return (*integer < 0 ? "-" : c.has('+') ? "+" : c.has(' ') ? " " : "") + digits;
}

std::string formatted_float(const Conversion& c, const Value& value) {
  const auto number = number_of(value);
  if (!number) throw Fault(fmt::format("%f needs a number, not '{}'", type_name(value)));
  if (!std::isfinite(*number)) throw refusal("an infinite number in a % format");
  const std::string digits = fmt::format("{:.{}f}", std::abs(*number), c.precision.value_or(6));
  return (std::signbit(*number) ? "-" : c.has('+') ? "+" : c.has(' ') ? " " : "") + digits;
}

Text converted(const Conversion& c, const Value& value, Budget& budget) {
  switch (c.type) {
    case 's':
    case 'r': {
      const Text text = c.type == 's' ? str(value, budget) : repr(value, budget);
      return c.precision ? slice(text, 0, byte_of(text.bytes, *c.precision)) : text;
    }
    case 'd':
    case 'i':
    case 'x':
      return literal(formatted_integer(c, value));
    case 'f':
      return literal(formatted_float(c, value));
    default:
      throw refusal(fmt::format("%{} in a format", c.type));
  }
}

void append_padded(Text& to, const Conversion& c, const Text& field, Budget& budget) {
  const size_t length = count_code_points(field.bytes);
  const size_t padding = c.width > length ? c.width - length : 0;
  budget.make(field.bytes.size() + padding);
  const bool is_number = c.type != 's' && c.type != 'r';
  if (c.has('-')) {
    append(to, field);
    append(to, std::string(padding, ' '));
  } else if (is_number && c.has('0')) {
    const bool has_sign = !field.bytes.empty() && !is_digit(field.bytes[0]) && c.type != 'x';
    if (c.type == 'x' && field.bytes[0] == '-') throw refusal("a negative number in %x with zeros");
    append(to, slice(field, 0, has_sign ? 1 : 0));
    append(to, std::string(padding, '0'));
    append(to, slice(field, has_sign ? 1 : 0, field.bytes.size()));
  } else {
    append(to, std::string(padding, ' '));
    append(to, field);
  }
}

// The field of a str.format string at `at`, behind its '{': its name and whether repr() is asked for.
std::pair<std::string, bool> take_field(const std::string& format, size_t& at) {
  const size_t end = format.find('}', at);
  if (end == std::string::npos) throw Fault("a format lacks '}'");
  std::string name = format.substr(at, end - at);
  at = end + 1;
  const bool is_repr = name.ends_with("!r");
  if (is_repr || name.ends_with("!s")) name.resize(name.size() - 2);
  if (name.find_first_of("!:.[{") != std::string::npos)
    throw refusal("a field of a format that is more than a number or a name");
  return {name, is_repr};
}

}  // namespace

Text percent_format(const Text& format, const Value& values, Budget& budget) {
  const Sequence* tuple = values.sequence();
  if (tuple != nullptr && tuple->kind != SequenceKind::tuple) tuple = nullptr;
  if (values.dict() != nullptr) throw refusal("an object behind a % format");
  const size_t count = tuple != nullptr ? tuple->items.size() : 1;
  size_t used = 0, copied = 0;
  Text to;
  budget.make(format.bytes.size());
  for (size_t at = 0; (at = format.bytes.find('%', at)) != std::string::npos; copied = at) {
    append(to, slice(format, copied, at++));
    const Conversion c = take_conversion(format.bytes, at);
    if (c.type == '%') {
      append(to, slice(format, at - 1, at));
      continue;
    }
    if (used == count) throw Fault("a % format has too few values");
    append_padded(to, c, converted(c, tuple != nullptr ? tuple->items[used] : values, budget), budget);
    ++used;
  }
  append(to, slice(format, copied, format.bytes.size()));
  // Python accepts a list, but no string or number, behind a format that does not use it.
  if (used < count) {
    if (tuple == nullptr && values.sequence() != nullptr) throw refusal("a list behind a % format");
    throw Fault("a % format has too many values");
  }
  return to;
}

Text brace_format(const Text& format, const CallArguments& given, Budget& budget) {
  const std::string& bytes = format.bytes;
  Text to;
  size_t automatic = 0, copied = 0;
  bool is_numbered = false;
  const auto value_of = [&](const std::string& name) -> const Value& {
    size_t index = automatic;
    if (name.empty()) {
      if (is_numbered) throw Fault("a format mixes {} and numbers");
      ++automatic;
    } else if (is_digit(name[0])) {
      const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
      if (automatic > 0) throw Fault("a format mixes {} and numbers");
      if (error != std::errc() || end != name.data() + name.size()) index = given.positional.size();
      is_numbered = true;
    } else {
      for (const auto& [key, value] : given.named)
        if (key == name) return value;
      throw Fault(fmt::format("a format has no value '{}'", name));
    }
    if (index >= given.positional.size()) throw Fault("a format has too few values");
    return given.positional[index];
  };
  budget.make(bytes.size());
  for (size_t at = 0; (at = bytes.find_first_of("{}", at)) != std::string::npos; copied = at) {
    append(to, slice(format, copied, at));
    const char brace = bytes[at++];
    if (at < bytes.size() && bytes[at] == brace) {
      append(to, slice(format, at, at + 1));
      ++at;
      continue;
    }
    if (brace == '}') throw Fault("a format has a single '}'");
    const auto [name, is_repr] = take_field(bytes, at);
    const Value& value = value_of(name);
    append(to, is_repr ? repr(value, budget) : str(value, budget));
  }
  append(to, slice(format, copied, bytes.size()));
  return to;
}

}  // namespace sluice::jinja
