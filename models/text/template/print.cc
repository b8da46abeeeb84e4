#include "models/text/template/print.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "models/text/template/unicode.h"

namespace sluice::jinja {
namespace {

// ---- repr ----

std::string escaped_code_point(char32_t c) {
  const auto code = static_cast<uint32_t>(c);
  return c < 0x100     ? fmt::format("\\x{:02x}", code)
         : c < 0x10000 ? fmt::format("\\u{:04x}", code)
                       : fmt::format("\\U{:08x}", code);
}

void append_repr(Text& to, const Text& text, Budget& budget) {
  budget.make(text.bytes.size());
  budget.step(text.bytes.size());  // by code points
  const bool has_single = text.bytes.find('\'') != std::string::npos;
  const char quote = has_single && text.bytes.find('"') == std::string::npos ? '"' : '\'';
  const std::string quotes(1, quote);
  append(to, quotes);
  for (size_t at = 0; at < text.bytes.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text.bytes, at);
    const Text part = slice(text, begin, at);
    if (c == '\\' || c == static_cast<char32_t>(quote))
      append_derived(to, "\\" + part.bytes, part);
    else if (c == '\n' || c == '\r' || c == '\t')
      append_derived(to, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t", part);
    else if (is_printable(c))
      append(to, part);
    else
      append_derived(to, escaped_code_point(c), part);
  }
  append(to, quotes);
}

void append_repr(Text& to, const Value& value, Budget& budget);

void append_sequence(Text& to, const Sequence& sequence, Budget& budget) {
  static constexpr const char* kOpen[] = {"[", "(", "", "dict_keys([", "dict_values([", "dict_items(["};
  static constexpr const char* kClose[] = {"]", ")", "", "])", "])", "])"};
  if (sequence.kind == SequenceKind::range) throw refusal("printing a range");
  const auto kind = static_cast<size_t>(sequence.kind);
  append(to, kOpen[kind]);
  for (size_t i = 0; i < sequence.items.size(); ++i) {
    if (i > 0) append(to, ", ");
    append_repr(to, sequence.items[i], budget);
  }
  if (sequence.kind == SequenceKind::tuple && sequence.items.size() == 1) append(to, ",");
  append(to, kClose[kind]);
}

void append_repr(Text& to, const Value& value, Budget& budget) {
  budget.step();
  budget.make(8);  // for quotes or brackets around a value
  if (const Text* text = value.text()) {
    if (text->safe) append(to, "Markup(");
    append_repr(to, *text, budget);
    if (text->safe) append(to, ")");
  } else if (value.is<Undefined>()) {
    append(to, "Undefined");
  } else if (value.is<None>()) {
    append(to, "None");
  } else if (const bool* b = value.get<bool>()) {
    append(to, *b ? "True" : "False");
  } else if (const int64_t* i = value.get<int64_t>()) {
    append(to, std::to_string(*i));
  } else if (const double* d = value.get<double>()) {
    append(to, float_repr(*d));
  } else if (const Sequence* sequence = value.sequence()) {
    append_sequence(to, *sequence, budget);
  } else if (const Dict* dict = value.dict()) {
    append(to, "{");
    for (size_t k = 0; k < dict->entries.size(); ++k) {
      if (k > 0) append(to, ", ");
      append_repr(to, dict->entries[k].first, budget);
      append(to, ": ");
      append_repr(to, dict->entries[k].second, budget);
    }
    append(to, "}");
  } else {
    throw refusal(fmt::format("printing a value of type '{}'", type_name(value)));
  }
}

// ---- JSON ----

void append_json_escape(std::string& to, char32_t unit) {
  to += fmt::format("\\u{:04x}", static_cast<uint32_t>(unit));
}

// The escape sequence of a code point in a JSON string; empty if it stands for itself.
std::string json_escape(char32_t c, bool ensure_ascii) {
  static constexpr std::string_view kFrom = "\"\\\n\r\t\b\f", kTo = "\"\\nrtbf";
  std::string out;
  if (const size_t simple = c < 0x80 ? kFrom.find(static_cast<char>(c)) : std::string_view::npos;
      simple != std::string_view::npos) {
    out = {'\\', kTo[simple]};
  } else if (c < 0x20 || (ensure_ascii && c >= 0x7F && c < 0x10000)) {
    append_json_escape(out, c);
  } else if (ensure_ascii && c >= 0x10000) {  // a pair of surrogates
    append_json_escape(out, 0xD800 + ((c - 0x10000) >> 10));
    append_json_escape(out, 0xDC00 + ((c - 0x10000) & 0x3FF));
  }
  return out;
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  void write(const Value& value, int level) {
    budget_.step();
    budget_.make(8);  // for quotes or brackets around a value
    if (const Text* text = value.text()) {
      string(*text);
    } else if (const Sequence* sequence = value.sequence()) {
      if (sequence->kind != SequenceKind::list && sequence->kind != SequenceKind::tuple) fail(value);
      append(out_, "[");
      for (size_t i = 0; i < sequence->items.size(); ++i) {
        begin_item(i, level);
        write(sequence->items[i], level + 1);
      }
      end_items(sequence->items.size(), level);
      append(out_, "]");
    } else if (const Dict* dict = value.dict()) {
      object(*dict, level);
    } else {
      append(out_, scalar(value));
    }
  }
  Text take() { return std::move(out_); }

 private:
  [[noreturn]] static void fail(const Value& value) {
    throw Fault(fmt::format("a value of type '{}' cannot be written as JSON", type_name(value)));
  }

  static std::string scalar(const Value& value) {
    if (value.is<None>()) return "null";
    if (const bool* b = value.get<bool>()) return *b ? "true" : "false";
    if (const int64_t* i = value.get<int64_t>()) return std::to_string(*i);
    const double* d = value.get<double>();
    if (d == nullptr) fail(value);
    if (std::isnan(*d)) return "NaN";
    if (std::isinf(*d)) return *d > 0 ? "Infinity" : "-Infinity";
    return float_repr(*d);
  }

  void string(const Text& text) {
    budget_.make(text.bytes.size());
    budget_.step(text.bytes.size() / 8);
    append(out_, "\"");
    size_t copied = 0;  // runs between escapes are copied whole
    for (size_t at = 0; at < text.bytes.size();) {
      const size_t begin = at;
      const std::string escape = json_escape(next_code_point(text.bytes, at), style_.ensure_ascii);
      if (escape.empty()) continue;
      append(out_, slice(text, copied, begin));
      append_derived(out_, escape, slice(text, begin, at));
      copied = at;
    }
    append(out_, slice(text, copied, text.bytes.size()));
    append(out_, "\"");
  }

  void object(const Dict& dict, int level) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys)
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const auto* a, const auto* b) { return less(a->first, b->first, budget_); });
    append(out_, "{");
    for (size_t i = 0; i < entries.size(); ++i) {
      begin_item(i, level);
      string(entries[i]->first.text() ? *entries[i]->first.text() : literal(scalar(entries[i]->first)));
      budget_.make(style_.key_separator.bytes.size());
      append(out_, style_.key_separator);
      write(entries[i]->second, level + 1);
    }
    end_items(entries.size(), level);
    append(out_, "}");
  }

  void begin_item(size_t index, int level) {
    if (index > 0) {
      budget_.make(style_.item_separator.bytes.size());
      append(out_, style_.item_separator);
    }
    newline(level + 1);
  }
  void end_items(size_t count, int level) {
    if (count > 0) newline(level);
  }
  void newline(int level) {
    if (!style_.indent) return;
    budget_.make(style_.indent->bytes.size() * static_cast<size_t>(level));
    append(out_, "\n");
    for (int i = 0; i < level; ++i) append(out_, *style_.indent);
  }

  const JsonStyle& style_;
  Budget& budget_;
  Text out_;
};

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific).ptr;
  const std::string shortest(digits, end);  // [-]d[.ddd]e[+-]dd
  const size_t e = shortest.find('e');
  const int exponent = std::stoi(shortest.substr(e + 1));
  // float.__repr__ writes a number with 'e' if its exponent is outside of these limits.
  if (exponent < -4 || exponent >= 16) return shortest;
  const bool negative = shortest[0] == '-';
  std::string mantissa = shortest.substr(negative ? 1 : 0, e - (negative ? 1 : 0));
  std::erase(mantissa, '.');
  if (exponent < 0) {
    mantissa = "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + mantissa;
  } else {
    const auto whole = static_cast<size_t>(exponent) + 1;
    if (mantissa.size() <= whole)
      mantissa += std::string(whole - mantissa.size(), '0') + ".0";
    else
      mantissa.insert(whole, ".");
  }
  return (negative ? "-" : "") + mantissa;
}

Text str(const Value& value, Budget& budget) {
  if (value.is<Undefined>()) return {};
  if (const Text* text = value.text()) {
    budget.make(text->bytes.size());
    return *text;
  }
  return repr(value, budget);
}

Text repr(const Value& value, Budget& budget) {
  Text to;
  append_repr(to, value, budget);
  return to;
}

Text to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace sluice::jinja
