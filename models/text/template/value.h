// Values of a template, with the behaviour of Python's.
//
// Strings, lists, tuples and objects never change, as in the sandbox of transformers; they are shared. What
// does change is a namespace, a cycler, a joiner, a loop, or a generator. Namespaces and the frames of macros
// belong to the render, so that a namespace that holds itself does not leak. Nesting is at most
// kValueDepthMax, so recursion over a value needs little stack. The recursion charges the Budget, because a
// value of n levels may have 2^n paths. Callers: everything that evaluates.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "models/text/template/limits.h"
#include "models/text/template/text.h"

namespace sluice::jinja {

struct Value;
struct MacroDefinition;
struct Frame;
class Loop;
using Values = std::vector<Value>;

struct Undefined {
  std::shared_ptr<const std::string> reason;  // for messages: what is undefined
};
struct None {
  bool operator==(const None&) const = default;
};
using TextPtr = std::shared_ptr<const Text>;

enum class SequenceKind : uint8_t {
  list,
  tuple,
  range,
  keys,
  values,
  items
};  // the last three: views of objects
struct Sequence;
using SequencePtr = std::shared_ptr<const Sequence>;
struct Dict;
using DictPtr = std::shared_ptr<const Dict>;
struct Generator;  // what filters such as map return: to be read once
struct Method;     // bound to its object
enum class Function : uint8_t { raise_exception, strftime_now, make_namespace, dict, range, cycler, joiner };
struct Namespace;
struct Cycler;
struct Joiner;
struct MacroValue {
  const MacroDefinition* definition;
  Frame* scope;  // where it was defined
};

struct Value {
  using Data =
      std::variant<Undefined, None, bool, int64_t, double, TextPtr, SequencePtr, DictPtr,
                   std::shared_ptr<Generator>, std::shared_ptr<const Method>, Function, Namespace*,
                   std::shared_ptr<Cycler>, std::shared_ptr<Joiner>, MacroValue, std::shared_ptr<Loop>>;
  Data data;

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(data);
  }
  template <typename T>
  const T* get() const {
    return std::get_if<T>(&data);
  }
  const Text* text() const;          // null if it is no string
  const Sequence* sequence() const;  // null if it is none
  const Dict* dict() const;          // null if it is none
};

struct Sequence {
  SequenceKind kind;
  Values items;
  int depth;
};
struct Dict {
  std::vector<std::pair<Value, Value>> entries;  // in the order in which keys were first set
  int depth;
};
struct Generator {
  Values items;
  size_t next = 0;
  int depth = 1;
};
struct Method {
  Value object;
  std::string name;
  int depth;
};
struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};
struct Cycler {
  Values items;
  size_t next = 0;
  int depth = 1;
};
struct Joiner {
  Value separator;
  int depth = 1;
  bool is_used = false;
};

// ---- Making values; all charge the budget, and throw Fault where nesting is too deep ----

Value undefined(const std::string& reason);
// The start of a name, for reasons and messages.
std::string_view shown(std::string_view name);
Value text_value(Text text, Budget& budget);
Value literal_value(std::string_view bytes, Budget& budget);
Value sequence_value(SequenceKind kind, Values items, Budget& budget);
Value dict_value(std::vector<std::pair<Value, Value>> entries, Budget& budget);
Value generator_value(Values items, Budget& budget);
Value method_value(const Value& object, std::string_view name);
// The depth of a value that holds others; 0 for a value that holds none.
int depth_of(const Value& value);
int depth_with(const Values& items);  // of a value that holds these; throws Fault beyond kValueDepthMax

// Strings of the JSON are content unless `is_control`. Strings that are values are numbered from `source` on,
// and `source` becomes the next number.
Value value_of_json(const nlohmann::ordered_json& json, bool is_control, uint32_t& source, Budget& budget);

// ---- Asking values ----

// The name of the value's type in messages: "str", "dict", ...
std::string_view type_name(const Value& value);
bool truth(const Value& value);
// The value of an int or a bool. number_of() takes a float, too. Nothing for values of other types.
std::optional<int64_t> integer_of(const Value& value);
std::optional<double> number_of(const Value& value);

// Python's ==.
bool equal(const Value& a, const Value& b, Budget& budget);
// Python's <; throws Fault where the types have no order.
bool less(const Value& a, const Value& b, Budget& budget);

// len(); throws Fault where there is none.
int64_t length_of(const Value& value);
// The items that a loop over the value sees. Of a generator, it takes the items that are left. Throws Fault
// if the value is not iterable.
Values items_of(const Value& value, Budget& budget);
bool is_iterable(const Value& value);

// The entry of a key, or null. Throws Fault if `key` is of a type that no key may have.
const Value* find(const Dict& dict, const Value& key, Budget& budget);
const Value* find(const Dict& dict, std::string_view key, Budget& budget);
// Adds an entry or changes its value.
void assign(std::vector<std::pair<Value, Value>>& entries, const Value& key, Value value, Budget& budget);

}  // namespace sluice::jinja
