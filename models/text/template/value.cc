#include "models/text/template/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "models/text/template/loop.h"
#include "models/text/template/unicode.h"

namespace sluice::jinja {
namespace {

int deeper(int depth) {
  if (depth >= kValueDepthMax)
    throw Fault(fmt::format("lists and objects are nested more than {} deep", kValueDepthMax),
                FaultKind::exhausted);
  return depth + 1;
}

bool is_number(const Value& v) { return v.is<bool>() || v.is<int64_t>() || v.is<double>(); }

// -1, 0 or 1; 2 if one of them is NaN. `long double` holds each int64 exactly on x86-64 and AArch64.
int compare_numbers(const Value& a, const Value& b) {
  static_assert(std::numeric_limits<long double>::digits >= 63);
  const auto exact = [](const Value& v) {
    if (const auto integer = integer_of(v)) return static_cast<long double>(*integer);
    return static_cast<long double>(*v.get<double>());
  };
  const long double x = exact(a), y = exact(b);
  return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
}

bool same_order(SequenceKind a, SequenceKind b) {  // kinds that compare item by item
  return a == b && (a == SequenceKind::list || a == SequenceKind::tuple || a == SequenceKind::range);
}

bool equal_sequences(const Sequence& a, const Sequence& b, Budget& budget) {
  if (!same_order(a.kind, b.kind)) {
    if (a.kind >= SequenceKind::keys && b.kind >= SequenceKind::keys)
      throw refusal("comparing views of objects");
    return false;
  }
  return std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(),
                    [&](const Value& x, const Value& y) { return equal(x, y, budget); });
}

bool equal_dicts(const Dict& a, const Dict& b, Budget& budget) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    const Value* other = find(b, key, budget);
    if (other == nullptr || !equal(value, *other, budget)) return false;
  }
  return true;
}

void require_key(const Value& key) {
  if (key.text() != nullptr || is_number(key) || key.is<None>()) return;
  if (key.dict() != nullptr || (key.sequence() != nullptr && key.sequence()->kind == SequenceKind::list))
    throw Fault(fmt::format("unhashable type: '{}'", type_name(key)));
  throw refusal(fmt::format("a key of type '{}'", type_name(key)));
}

// Charges the budget for a search for `key` among `count` keys.
void count_search(const Value& key, size_t count, Budget& budget) {
  budget.search(count, key.text() != nullptr ? key.text()->bytes.size() : 0);
}

bool same_key(const Value& a, const Value& b) {
  if (a.text() != nullptr && b.text() != nullptr) return a.text()->bytes == b.text()->bytes;
  if (is_number(a) && is_number(b)) return compare_numbers(a, b) == 0;
  return a.is<None>() && b.is<None>();
}

Values characters_of(const Text& text, Budget& budget) {
  budget.make_elements(text.bytes.size());
  Values items;
  for (size_t at = 0; at < text.bytes.size();) {
    const size_t begin = at;
    next_code_point(text.bytes, at);
    items.push_back(text_value(slice(text, begin, at), budget));
  }
  return items;
}

struct JsonReader {
  using Json = nlohmann::ordered_json;
  bool is_control;
  uint32_t& source;  // the number of the next string
  Budget& budget;

  Value string(const std::string& bytes, uint32_t number) const {
    if (!is_utf8(bytes)) throw Fault("a string of the conversation is not UTF-8");
    return text_value(is_control ? literal(bytes) : content(bytes, number), budget);
  }

  Value value(const Json& json, int level) const {
    deeper(level);  // checked early, since depths of values are known only on return
    switch (json.type()) {
      case Json::value_t::boolean:
        return {json.get<bool>()};
      case Json::value_t::number_integer:
        return {json.get<int64_t>()};
      case Json::value_t::number_unsigned:
        if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
          throw refusal("an integer of the conversation beyond 64 bits");
        return {json.get<int64_t>()};
      case Json::value_t::number_float:
        return {json.get<double>()};
      case Json::value_t::string:
        return string(json.get_ref<const std::string&>(), source++);
      case Json::value_t::array: {
        Values items;
        for (const Json& item : json) items.push_back(value(item, level + 1));
        return sequence_value(SequenceKind::list, std::move(items), budget);
      }
      case Json::value_t::object: {
        std::vector<std::pair<Value, Value>> entries;
        for (const auto& [key, item] : json.items())
          entries.emplace_back(string(key, SourceRange::kNoValue), value(item, level + 1));
        return dict_value(std::move(entries), budget);
      }
      default:
        return {None{}};
    }
  }
};

}  // namespace

const Text* Value::text() const {
  const auto* p = get<TextPtr>();
  return p == nullptr ? nullptr : p->get();
}
const Sequence* Value::sequence() const {
  const auto* p = get<SequencePtr>();
  return p == nullptr ? nullptr : p->get();
}
const Dict* Value::dict() const {
  const auto* p = get<DictPtr>();
  return p == nullptr ? nullptr : p->get();
}

Value undefined(const std::string& reason) {
  return {Undefined{std::make_shared<const std::string>(reason)}};
}

std::string_view shown(std::string_view name) {
  constexpr size_t kBytesMax = 100;
  size_t end = std::min(name.size(), kBytesMax);
  while (end > 0 && end < name.size() && (name[end] & 0xC0) == 0x80) --end;  // between code points
  return name.substr(0, end);
}

Value text_value(Text text, Budget& budget) {
  budget.make(sizeof(Text) + text.bytes.size() + text.content.size() * sizeof(SourceRange));
  return {std::make_shared<const Text>(std::move(text))};
}

Value literal_value(std::string_view bytes, Budget& budget) { return text_value(literal(bytes), budget); }

Value sequence_value(SequenceKind kind, Values items, Budget& budget) {
  budget.make_elements(items.size());
  const int depth = depth_with(items);
  return {std::make_shared<const Sequence>(Sequence{kind, std::move(items), depth})};
}

Value dict_value(std::vector<std::pair<Value, Value>> entries, Budget& budget) {
  budget.make_elements(2 * entries.size());
  int depth = 0;
  for (const auto& [key, value] : entries) depth = std::max(depth, depth_of(value));
  return {std::make_shared<const Dict>(Dict{std::move(entries), deeper(depth)})};
}

Value generator_value(Values items, Budget& budget) {
  budget.make_elements(items.size());
  const int depth = depth_with(items);
  return {std::make_shared<Generator>(Generator{std::move(items), 0, depth})};
}

Value method_value(const Value& object, std::string_view name) {
  return {std::make_shared<const Method>(Method{object, std::string(name), deeper(depth_of(object))})};
}

int depth_of(const Value& value) {
  if (const Sequence* sequence = value.sequence()) return sequence->depth;
  if (const Dict* dict = value.dict()) return dict->depth;
  if (const auto* p = value.get<std::shared_ptr<Generator>>()) return (*p)->depth;
  if (const auto* p = value.get<std::shared_ptr<const Method>>()) return (*p)->depth;
  if (const auto* p = value.get<std::shared_ptr<Cycler>>()) return (*p)->depth;
  if (const auto* p = value.get<std::shared_ptr<Joiner>>()) return (*p)->depth;
  if (const auto* p = value.get<std::shared_ptr<Loop>>()) return (*p)->depth();
  return 0;
}

int depth_with(const Values& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, depth_of(item));
  return deeper(depth);
}

Value value_of_json(const nlohmann::ordered_json& json, bool is_control, uint32_t& source, Budget& budget) {
  return JsonReader{is_control, source, budget}.value(json, 0);
}

std::string_view type_name(const Value& value) {
  static constexpr std::array<std::string_view, 16> kNames = {
      "Undefined", "NoneType", "bool",     "int",       "float",  "str",    "list",  "dict",
      "generator", "method",   "function", "Namespace", "Cycler", "Joiner", "Macro", "LoopContext"};
  static_assert(kNames.size() == std::variant_size_v<Value::Data>);
  static constexpr std::array<std::string_view, 6> kSequences = {"list",      "tuple",       "range",
                                                                 "dict_keys", "dict_values", "dict_items"};
  if (const Sequence* sequence = value.sequence()) return kSequences[static_cast<size_t>(sequence->kind)];
  return kNames[value.data.index()];
}

bool truth(const Value& value) {
  if (value.is<Undefined>() || value.is<None>()) return false;
  if (const bool* b = value.get<bool>()) return *b;
  if (const int64_t* i = value.get<int64_t>()) return *i != 0;
  if (const double* d = value.get<double>()) return *d != 0;
  if (const Text* text = value.text()) return !text->bytes.empty();
  if (const Sequence* sequence = value.sequence()) return !sequence->items.empty();
  if (const Dict* dict = value.dict()) return !dict->entries.empty();
  if (const auto* loop = value.get<std::shared_ptr<Loop>>()) return (*loop)->length() != 0;
  return true;
}

std::optional<int64_t> integer_of(const Value& value) {
  if (const bool* b = value.get<bool>()) return *b ? 1 : 0;
  if (const int64_t* i = value.get<int64_t>()) return *i;
  return std::nullopt;
}

std::optional<double> number_of(const Value& value) {
  if (const double* d = value.get<double>()) return *d;
  if (const auto integer = integer_of(value)) return static_cast<double>(*integer);
  return std::nullopt;
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (is_number(a) && is_number(b)) return compare_numbers(a, b) == 0;
  if (a.data.index() != b.data.index()) return false;
  if (const Text* text = a.text()) {
    const std::string &left = text->bytes, &right = b.text()->bytes;
    if (left.size() == right.size()) budget.read(left.size());
    return left == right;
  }
  if (const Sequence* sequence = a.sequence()) return equal_sequences(*sequence, *b.sequence(), budget);
  if (const Dict* dict = a.dict()) return equal_dicts(*dict, *b.dict(), budget);
  if (a.is<Undefined>() || a.is<None>()) return true;
  if (const Function* function = a.get<Function>()) return *function == *b.get<Function>();
  if (const auto* names = a.get<Namespace*>()) return *names == *b.get<Namespace*>();
  throw refusal(fmt::format("comparing values of type '{}'", type_name(a)));
}

bool less(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (is_number(a) && is_number(b)) return compare_numbers(a, b) == -1;
  if (a.text() != nullptr && b.text() != nullptr) {
    const std::string &left = a.text()->bytes, &right = b.text()->bytes;
    budget.read(std::min(left.size(), right.size()));
    return left < right;  // UTF-8 has the order of code points
  }
  const Sequence *s = a.sequence(), *t = b.sequence();
  if (s != nullptr && t != nullptr && s->kind != SequenceKind::range && same_order(s->kind, t->kind)) {
    for (size_t i = 0; i < s->items.size() && i < t->items.size(); ++i)
      if (!equal(s->items[i], t->items[i], budget)) return less(s->items[i], t->items[i], budget);
    return s->items.size() < t->items.size();
  }
  throw Fault(fmt::format("'{}' and '{}' have no order", type_name(a), type_name(b)));
}

int64_t length_of(const Value& value) {
  if (const Text* text = value.text()) return static_cast<int64_t>(count_code_points(text->bytes));
  if (const Sequence* sequence = value.sequence()) return static_cast<int64_t>(sequence->items.size());
  if (const Dict* dict = value.dict()) return static_cast<int64_t>(dict->entries.size());
  if (const auto* loop = value.get<std::shared_ptr<Loop>>()) return (*loop)->length();
  if (value.is<Undefined>()) return 0;
  throw Fault(fmt::format("a value of type '{}' has no length", type_name(value)));
}

bool is_iterable(const Value& value) {
  return value.is<Undefined>() || value.is<TextPtr>() || value.is<SequencePtr>() || value.is<DictPtr>() ||
         value.is<std::shared_ptr<Generator>>() || value.is<std::shared_ptr<Loop>>();
}

Values items_of(const Value& value, Budget& budget) {
  if (value.is<Undefined>()) return {};
  if (const Text* text = value.text()) return characters_of(*text, budget);
  if (const Sequence* sequence = value.sequence()) {
    budget.make_elements(sequence->items.size());
    return sequence->items;
  }
  if (const Dict* dict = value.dict()) {
    budget.make_elements(dict->entries.size());
    Values keys;
    for (const auto& [key, item] : dict->entries) keys.push_back(key);
    return keys;
  }
  if (const auto* p = value.get<std::shared_ptr<Generator>>()) {
    Generator& generator = **p;
    const auto begin = generator.items.begin() + static_cast<std::ptrdiff_t>(generator.next);
    generator.next = generator.items.size();
    return {begin, generator.items.end()};
  }
  if (value.is<std::shared_ptr<Loop>>()) throw refusal("reading a loop's items from 'loop'");
  throw Fault(fmt::format("a value of type '{}' is not iterable", type_name(value)));
}

const Value* find(const Dict& dict, const Value& key, Budget& budget) {
  require_key(key);
  count_search(key, dict.entries.size(), budget);
  const auto found = std::find_if(dict.entries.begin(), dict.entries.end(),
                                  [&](const auto& entry) { return same_key(entry.first, key); });
  return found == dict.entries.end() ? nullptr : &found->second;
}

const Value* find(const Dict& dict, std::string_view key, Budget& budget) {
  budget.search(dict.entries.size(), key.size());
  const auto found = std::find_if(dict.entries.begin(), dict.entries.end(), [&](const auto& entry) {
    return entry.first.text() != nullptr && entry.first.text()->bytes == key;
  });
  return found == dict.entries.end() ? nullptr : &found->second;
}

void assign(std::vector<std::pair<Value, Value>>& entries, const Value& key, Value value, Budget& budget) {
  require_key(key);
  count_search(key, entries.size(), budget);
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const auto& entry) { return same_key(entry.first, key); });
  if (found == entries.end())
    entries.emplace_back(key, std::move(value));
  else
    found->second = std::move(value);
}

}  // namespace sluice::jinja
