#include "models/text/template/value_tests.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "models/text/template/loop.h"
#include "models/text/template/methods.h"
#include "models/text/template/operators.h"

namespace sluice::jinja {
namespace {

// ---- Tests without arguments ----

bool is_undefined(const Value& v) { return v.is<Undefined>(); }
bool is_defined(const Value& v) { return !v.is<Undefined>(); }
bool is_none(const Value& v) { return v.is<None>(); }
bool is_boolean(const Value& v) { return v.is<bool>(); }
bool is_true(const Value& v) { return v.is<bool>() && truth(v); }
bool is_false(const Value& v) { return v.is<bool>() && !truth(v); }
bool is_integer(const Value& v) { return v.is<int64_t>(); }
bool is_float(const Value& v) { return v.is<double>(); }
bool has_number(const Value& v) { return number_of(v).has_value(); }
bool is_string(const Value& v) { return v.text() != nullptr; }
bool is_mapping(const Value& v) { return v.dict() != nullptr; }
bool is_sequence(const Value& v) {
  return v.is<Undefined>() || v.text() != nullptr || v.dict() != nullptr ||
         (v.sequence() != nullptr && v.sequence()->kind <= SequenceKind::range);
}
bool is_callable(const Value& v) {
  return v.is<Undefined>() || v.is<std::shared_ptr<const Method>>() || v.is<Function>() ||
         v.is<MacroValue>() || v.is<std::shared_ptr<Joiner>>() || v.is<std::shared_ptr<Loop>>();
}

int64_t remainder(const Value& v, int64_t divisor) {
  const auto integer = integer_of(v);
  if (!integer) throw Fault(fmt::format("the test needs an integer, not '{}'", type_name(v)));
  if (divisor == 0) throw Fault("division by zero");
  return divisor == -1 ? 0 : *integer % divisor;
}
bool is_even(const Value& v) { return remainder(v, 2) == 0; }
bool is_odd(const Value& v) { return remainder(v, 2) != 0; }

struct PlainTest {
  const char* name;
  bool (*holds)(const Value&);
};
constexpr PlainTest kPlainTests[] = {
    {"undefined", is_undefined}, {"defined", is_defined}, {"none", is_none},       {"boolean", is_boolean},
    {"true", is_true},           {"false", is_false},     {"integer", is_integer}, {"float", is_float},
    {"number", has_number},      {"string", is_string},   {"mapping", is_mapping}, {"iterable", is_iterable},
    {"sequence", is_sequence},   {"even", is_even},       {"odd", is_odd},         {"callable", is_callable},
};

struct ComparisonTest {
  const char* name;
  Comparison op;
};
constexpr ComparisonTest kComparisonTests[] = {
    {"eq", Comparison::equal},      {"equalto", Comparison::equal},    {"==", Comparison::equal},
    {"ne", Comparison::unequal},    {"!=", Comparison::unequal},       {"lt", Comparison::less},
    {"lessthan", Comparison::less}, {"<", Comparison::less},           {"le", Comparison::less_equal},
    {"<=", Comparison::less_equal}, {"gt", Comparison::greater},       {"greaterthan", Comparison::greater},
    {">", Comparison::greater},     {"ge", Comparison::greater_equal}, {">=", Comparison::greater_equal},
    {"in", Comparison::in},
};

// Other tests of jinja2. Those of the second list are missing here.
constexpr std::string_view kOtherTests[] = {"divisibleby", "sameas"};
constexpr std::string_view kMissingTests[] = {"escaped", "filter", "lower", "test", "upper"};

template <typename Table>
auto row_of(const Table& table, std::string_view name) {
  return std::find_if(std::begin(table), std::end(table), [&](const auto& row) { return row.name == name; });
}

bool same_object(const Value& a, const Value& b) {
  if (a.is<None>() || b.is<None>() || a.is<bool>() || b.is<bool>())
    return (a.is<None>() && b.is<None>()) || (a.is<bool>() && b.is<bool>() && truth(a) == truth(b));
  throw refusal("test 'sameas' of anything but none, true and false");
}

}  // namespace

bool has_test(std::string_view name) {
  return row_of(kPlainTests, name) != std::end(kPlainTests) ||
         row_of(kComparisonTests, name) != std::end(kComparisonTests) ||
         std::count(std::begin(kOtherTests), std::end(kOtherTests), name) > 0;
}

bool is_test_of_jinja(std::string_view name) {
  return has_test(name) || std::count(std::begin(kMissingTests), std::end(kMissingTests), name) > 0;
}

bool apply_test(std::string_view name, const Value& value, const CallArguments& given, Budget& budget) {
  budget.step();
  if (const auto plain = row_of(kPlainTests, name); plain != std::end(kPlainTests)) {
    bind(name, given, {}, 0);
    return plain->holds(value);
  }
  if (!has_test(name)) {
    if (is_test_of_jinja(name)) throw refusal(fmt::format("test '{}'", name));
    throw Fault(fmt::format("there is no test '{}'", name));
  }
  const Value& other = *bind(name, given, {""}, 1)[0];
  if (const auto comparison = row_of(kComparisonTests, name); comparison != std::end(kComparisonTests))
    return compare(comparison->op, value, other, budget);
  if (name == "sameas") return same_object(value, other);
  return remainder(value, integer_argument(name, &other, 0)) == 0;
}

}  // namespace sluice::jinja
