#include "models/text/template/subscript.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "models/text/template/loop.h"
#include "models/text/template/methods.h"
#include "models/text/template/unicode.h"

namespace sluice::jinja {
namespace {

Value missing(const Value& object, std::string_view what) {
  std::string reason = "'";  // put together by hand, since templates ask for much that is not there
  reason.append(type_name(object)).append("' has no '").append(shown(what)).append("'");
  return undefined(reason);
}

Value named_attribute(const Namespace& object, std::string_view name, Budget& budget) {
  budget.search(object.attributes.size(), name.size());
  for (const auto& [key, value] : object.attributes)
    if (key == name) return value;
  return undefined(fmt::format("the namespace has no '{}'", shown(name)));
}

// A method or a property of the type; nothing if the type has no such attribute.
std::optional<Value> type_attribute(const Value& object, std::string_view name) {
  if (const auto* loop = object.get<std::shared_ptr<Loop>>())
    if (auto value = (*loop)->attribute(name)) return value;
  if (const auto* cycler = object.get<std::shared_ptr<Cycler>>())
    if (name == "current") return (*cycler)->items[(*cycler)->next];
  // Every object in Python has these; the sandbox hides them.
  if (name.starts_with("__") && name.ends_with("__")) return missing(object, name);
  switch (find_method(object, name)) {
    case MethodKind::none:
      return std::nullopt;
    case MethodKind::changing:
      return undefined(
          fmt::format("'{}' of '{}' would change it, which templates may not do", name, type_name(object)));
    case MethodKind::harmless:
      break;
  }
  return method_value(object, name);
}

// Characters at ascending or descending code points of a text.
Value sliced_text(const Text& text, int64_t first, int64_t count, int64_t step, Budget& budget) {
  if (count == 0) return text_value({}, budget);
  if (step == 1) {
    const size_t begin = byte_of(text.bytes, static_cast<size_t>(first));
    const std::string_view rest = std::string_view(text.bytes).substr(begin);
    return text_value(slice(text, begin, begin + byte_of(rest, static_cast<size_t>(count))), budget);
  }
  std::vector<size_t> begins;
  budget.make(text.bytes.size() * sizeof(size_t));
  for (size_t at = 0; at < text.bytes.size(); next_code_point(text.bytes, at)) begins.push_back(at);
  begins.push_back(text.bytes.size());
  Text result;
  result.safe = text.safe;
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(first + i * step);
    append(result, slice(text, begins[at], begins[at + 1]));
  }
  return text_value(std::move(result), budget);
}

// Python's slice.indices(): a bound in [0, length], or [-1, length - 1] for negative steps.
int64_t clamped(int64_t bound, int64_t length, bool backwards) {
  const int64_t low = backwards ? -1 : 0, high = backwards ? length - 1 : length;
  if (bound < 0) bound = bound < -length ? low : bound + length;
  return std::clamp(bound, low, high);
}

}  // namespace

Value attribute_of(const Value& object, std::string_view name, Budget& budget) {
  budget.step();
  if (const Undefined* none = object.get<Undefined>()) throw Fault(*none->reason);
  if (const auto* names = object.get<Namespace*>()) return named_attribute(**names, name, budget);
  if (auto value = type_attribute(object, name)) return *value;
  if (const Dict* dict = object.dict())
    if (const Value* value = find(*dict, name, budget)) return *value;
  return missing(object, name);
}

Value item_of(const Value& object, const Value& key, Budget& budget) {
  budget.step();
  if (const Undefined* none = object.get<Undefined>()) throw Fault(*none->reason);
  if (const Dict* dict = object.dict()) {
    const bool hashable =
        key.dict() == nullptr && (!key.sequence() || key.sequence()->kind != SequenceKind::list);
    const Value* value = hashable ? find(*dict, key, budget) : nullptr;
    if (value != nullptr) return *value;
  }
  if (const auto integer = integer_of(key)) {
    const Text* text = object.text();
    const Sequence* sequence = object.sequence();
    const bool indexed = text != nullptr || (sequence != nullptr && sequence->kind <= SequenceKind::range);
    const int64_t length = indexed ? length_of(object) : 0;
    if (text != nullptr) budget.make(text->bytes.size() / 8);  // counting its code points takes time
    if (const int64_t at = *integer < 0 ? *integer + length : *integer; at >= 0 && at < length)
      return text != nullptr ? sliced_text(*text, at, 1, 1, budget)
                             : sequence->items[static_cast<size_t>(at)];
  }
  if (const Text* name = key.text()) {
    budget.read(name->bytes.size());
    if (const auto* names = object.get<Namespace*>()) return named_attribute(**names, name->bytes, budget);
    if (auto value = type_attribute(object, name->bytes)) return *value;
    return missing(object, name->bytes);
  }
  return undefined(fmt::format("'{}' has no such item", type_name(object)));
}

Value slice_of(const Value& object, const Value* first, const Value* last, const Value* step,
               Budget& budget) {
  if (const Undefined* none = object.get<Undefined>()) throw Fault(*none->reason);
  const Sequence* sequence = object.sequence();
  if (object.text() == nullptr && (sequence == nullptr || sequence->kind > SequenceKind::range))
    return undefined(fmt::format("'{}' has no slices", type_name(object)));
  std::optional<int64_t> bounds[3];
  for (int i = 0; const Value* bound : {first, last, step}) {
    if (bound != nullptr && !bound->is<None>()) {
      bounds[i] = integer_of(*bound);
      if (!bounds[i]) return undefined("a bound of the slice is no integer");
    }
    ++i;
  }
  const int64_t length = length_of(object), by = bounds[2].value_or(1);
  if (by == 0) throw Fault("a slice has step zero");
  const bool backwards = by < 0;
  const int64_t begin = bounds[0] ? clamped(*bounds[0], length, backwards) : backwards ? length - 1 : 0;
  const int64_t end = bounds[1] ? clamped(*bounds[1], length, backwards) : backwards ? -1 : length;
  const int64_t span = backwards ? begin - end : end - begin;
  // A step beyond the length takes one item, however long it is. Clamping keeps the products below small.
  const int64_t stride = std::clamp(by, -length - 1, length + 1);
  const int64_t width = std::abs(stride);
  const int64_t count = span <= 0 ? 0 : (span + width - 1) / width;
  if (object.text() != nullptr) {
    budget.make(object.text()->bytes.size() / 8);
    return sliced_text(*object.text(), begin, count, stride, budget);
  }
  Values items;
  budget.make_elements(static_cast<uint64_t>(count));
  for (int64_t i = 0; i < count; ++i)
    items.push_back(sequence->items[static_cast<size_t>(begin + i * stride)]);
  return sequence_value(sequence->kind, std::move(items), budget);
}

Value item_at_path(const Value& object, const Value& path, const Value* fallback, Budget& budget) {
  const auto step = [&](const Value& from, const Value& key) {
    const Value item = item_of(from, key, budget);
    return item.is<Undefined>() && fallback != nullptr ? *fallback : item;
  };
  if (path.text() == nullptr) return step(object, path);
  Value value = object;
  const std::string& names = path.text()->bytes;
  if (names.find(',') != std::string::npos) throw refusal("an attribute with a comma");
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find('.', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    int64_t index = 0;
    const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool is_index = error == std::errc() && rest == name.data() + name.size() && index >= 0;
    value = step(value, is_index ? Value{index} : literal_value(name, budget));
    begin = end + 1;
  }
  return value;
}

}  // namespace sluice::jinja
