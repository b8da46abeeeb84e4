#include "models/text/template/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/text/template/format.h"

namespace sluice::jinja {
namespace {

constexpr const char* kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};

[[noreturn]] void unsupported(BinaryOperator op, const Value& left, const Value& right) {
  const Value& odd = left.is<Undefined>() ? left : right;
  if (const Undefined* none = odd.get<Undefined>()) throw Fault(*none->reason);
  throw Fault(fmt::format("'{}' does not take '{}' and '{}'", kSigns[static_cast<size_t>(op)],
                          type_name(left), type_name(right)));
}

Fault overflow() { return refusal("an integer beyond 64 bits"); }

int64_t integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (; exponent > 0; --exponent) {
    const int64_t before = result;
    if (__builtin_mul_overflow(result, base, &result)) throw overflow();
    if (result == before && (base == 1 || base == 0)) break;
    if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  }
  return result;
}

Value integers(BinaryOperator op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflows = false;
  switch (op) {
    case BinaryOperator::add:
      overflows = __builtin_add_overflow(a, b, &result);
      break;
    case BinaryOperator::subtract:
      overflows = __builtin_sub_overflow(a, b, &result);
      break;
    case BinaryOperator::multiply:
      overflows = __builtin_mul_overflow(a, b, &result);
      break;
    case BinaryOperator::power:
      if (a == 0 && b < 0) throw Fault("division by zero");
      if (b < 0) return {std::pow(static_cast<double>(a), static_cast<double>(b))};
      return {integer_power(a, b)};
    default:
      if (b == 0) throw Fault("division by zero");
      if (a == INT64_MIN && b == -1) throw overflow();
      if (op == BinaryOperator::divide) {
        constexpr int64_t kExactMax = int64_t{1} << 53;  // beyond, a double does not hold every integer
        const auto is_exact = [](int64_t v) { return v >= -kExactMax && v <= kExactMax; };
        if (!is_exact(a) || !is_exact(b)) throw refusal("dividing integers beyond 2^53");
        return {static_cast<double>(a) / static_cast<double>(b)};
      }
      // Python rounds quotients down, and a remainder has the divisor's sign.
      const bool adjusts = a % b != 0 && (a % b < 0) != (b < 0);
      result = op == BinaryOperator::floor_divide ? a / b - (adjusts ? 1 : 0) : a % b + (adjusts ? b : 0);
  }
  if (overflows) throw overflow();
  return {result};
}

// float.__divmod__: the quotient rounded down, and the remainder with the divisor's sign.
std::pair<double, double> divide_down(double a, double b) {
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0) {
    if ((b < 0) != (remainder < 0)) {
      remainder += b;
      quotient -= 1;
    }
  } else {
    remainder = std::copysign(0.0, b);
  }
  if (quotient == 0) return {std::copysign(0.0, a / b), remainder};
  double whole = std::floor(quotient);
  if (quotient - whole > 0.5) whole += 1;
  return {whole, remainder};
}

Value floats(BinaryOperator op, double a, double b) {
  switch (op) {
    case BinaryOperator::add:
      return {a + b};
    case BinaryOperator::subtract:
      return {a - b};
    case BinaryOperator::multiply:
      return {a * b};
    case BinaryOperator::power: {
      const double result = std::pow(a, b);
      if (a == 0 && b < 0) throw Fault("division by zero");
      if (std::isnan(result) && !std::isnan(a) && !std::isnan(b)) throw refusal("a complex number");
      if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) throw Fault("the result is too large");
      return {result};
    }
    default:
      if (b == 0) throw Fault("division by zero");
      if (op == BinaryOperator::divide) return {a / b};
      const auto [quotient, remainder] = divide_down(a, b);
      return {op == BinaryOperator::floor_divide ? quotient : remainder};
  }
}

void refuse_safe(const Text& text) {
  if (text.safe) throw refusal("an operator on a safe string");
}

Value repeated(const Text& text, int64_t count, Budget& budget) {
  refuse_safe(text);
  Text result;
  for (int64_t i = 0; i < count && !text.bytes.empty(); ++i) {
    budget.step();
    budget.make(text.bytes.size());
    append(result, text);
  }
  return text_value(std::move(result), budget);
}

bool is_list_or_tuple(const Sequence* s) {
  return s != nullptr && (s->kind == SequenceKind::list || s->kind == SequenceKind::tuple);
}

Value repeated(const Sequence& sequence, int64_t count, Budget& budget) {
  Values items;
  for (int64_t i = 0; i < count && !sequence.items.empty(); ++i) {
    budget.make_elements(sequence.items.size());
    items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  }
  return sequence_value(sequence.kind, std::move(items), budget);
}

// As markupsafe.escape() does, for a string that is added to a safe one.
Text escaped(const Text& text, Budget& budget) {
  Text result;
  size_t copied = 0;
  for (size_t at = 0; (at = text.bytes.find_first_of("&<>'\"", at)) != std::string::npos; copied = ++at) {
    const char c = text.bytes[at];
    const char* entity = c == '&'    ? "&amp;"
                         : c == '<'  ? "&lt;"
                         : c == '>'  ? "&gt;"
                         : c == '\'' ? "&#39;"
                                     : "&#34;";
    budget.make(8);
    append(result, slice(text, copied, at));
    append_derived(result, entity, slice(text, at, at + 1));
  }
  append(result, slice(text, copied, text.bytes.size()));
  return result;
}

Value concatenated(const Text& left, const Text& right, Budget& budget) {
  budget.make(left.bytes.size() + right.bytes.size());
  const bool is_safe = left.safe || right.safe;
  Text result;
  result.bytes.reserve(left.bytes.size() + right.bytes.size());
  for (const Text* part : {&left, &right})
    append(result, is_safe && !part->safe ? escaped(*part, budget) : *part);
  result.safe = is_safe;
  return text_value(std::move(result), budget);
}

Value sum(const Value& left, const Value& right, Budget& budget) {
  if (left.text() != nullptr && right.text() != nullptr)
    return concatenated(*left.text(), *right.text(), budget);
  const Sequence *s = left.sequence(), *t = right.sequence();
  if (!is_list_or_tuple(s) || !is_list_or_tuple(t) || s->kind != t->kind)
    unsupported(BinaryOperator::add, left, right);
  budget.make_elements(s->items.size() + t->items.size());
  Values items = s->items;
  items.insert(items.end(), t->items.begin(), t->items.end());
  return sequence_value(s->kind, std::move(items), budget);
}

Value product(const Value& left, const Value& right, Budget& budget) {
  const bool count_first = integer_of(left).has_value();
  const Value& repeatee = count_first ? right : left;
  const auto count = integer_of(count_first ? left : right);
  if (count && repeatee.text() != nullptr) return repeated(*repeatee.text(), *count, budget);
  if (count && is_list_or_tuple(repeatee.sequence())) return repeated(*repeatee.sequence(), *count, budget);
  unsupported(BinaryOperator::multiply, left, right);
}

bool less_or_equal(const Value& a, const Value& b, Budget& budget) {
  // Not the same as !(b < a), which is true of NaN.
  return less(a, b, budget) || equal(a, b, budget);
}

}  // namespace

Value apply(BinaryOperator op, const Value& left, const Value& right, Budget& budget) {
  if (const auto a = integer_of(left), b = integer_of(right); a && b) return integers(op, *a, *b);
  if (const auto a = number_of(left), b = number_of(right); a && b) return floats(op, *a, *b);
  if (op == BinaryOperator::add) return sum(left, right, budget);
  if (op == BinaryOperator::multiply) return product(left, right, budget);
  if (op == BinaryOperator::modulo && left.text() != nullptr) {
    refuse_safe(*left.text());
    return text_value(percent_format(*left.text(), right, budget), budget);
  }
  unsupported(op, left, right);
}

Value apply(UnaryOperator op, const Value& operand) {
  if (op == UnaryOperator::negation) return {!truth(operand)};
  const bool negates = op == UnaryOperator::minus;
  if (const double* d = operand.get<double>()) return {negates ? -*d : *d};
  const auto integer = integer_of(operand);
  if (!integer) {
    if (const Undefined* none = operand.get<Undefined>()) throw Fault(*none->reason);
    throw Fault(fmt::format("a value of type '{}' has no sign", type_name(operand)));
  }
  if (negates && *integer == INT64_MIN) throw overflow();
  return {negates ? -*integer : *integer};
}

bool contains(const Value& haystack, const Value& needle, Budget& budget) {
  if (const Text* text = haystack.text()) {
    if (needle.text() == nullptr)
      throw Fault(fmt::format("'in' a string needs a string, not '{}'", type_name(needle)));
    budget.read(64 + text->bytes.size());
    return find_bytes(text->bytes, needle.text()->bytes, 0) != std::string::npos;
  }
  if (const Dict* dict = haystack.dict()) return find(*dict, needle, budget) != nullptr;
  const Values items = items_of(haystack, budget);
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& item) { return equal(item, needle, budget); });
}

bool compare(Comparison op, const Value& left, const Value& right, Budget& budget) {
  switch (op) {
    case Comparison::equal:
      return equal(left, right, budget);
    case Comparison::unequal:
      return !equal(left, right, budget);
    case Comparison::in:
      return contains(right, left, budget);
    case Comparison::not_in:
      return !contains(right, left, budget);
    default:
      break;
  }
  for (const Value* v : {&left, &right})
    if (const Undefined* none = v->get<Undefined>()) throw Fault(*none->reason);
  switch (op) {
    case Comparison::less:
      return less(left, right, budget);
    case Comparison::greater:
      return less(right, left, budget);
    case Comparison::less_equal:
      return less_or_equal(left, right, budget);
    default:
      return less_or_equal(right, left, budget);
  }
}

}  // namespace sluice::jinja
