#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "models/text/template/filters.h"
#include "models/text/template/methods.h"
#include "models/text/template/operators.h"
#include "models/text/template/print.h"
#include "models/text/template/subscript.h"
#include "models/text/template/unicode.h"
#include "models/text/template/value_tests.h"

namespace sluice::jinja {
namespace {

// ---- Keys to sort and compare by ----

struct KeyRule {
  const Value* path;  // of an attribute; null or none: the item itself
  bool case_sensitive;
};

Value key_of(const Value& item, const KeyRule& rule, Budget& budget) {
  const bool has_path = rule.path != nullptr && !rule.path->is<None>();
  const Value key = has_path ? item_at_path(item, *rule.path, nullptr, budget) : item;
  if (rule.case_sensitive || key.text() == nullptr) return key;
  return literal_value(lower(key.text()->bytes), budget);
}

using Keyed = std::pair<Value, Value>;  // key, item

std::vector<Keyed> keyed(const Values& items, const KeyRule& rule, Budget& budget) {
  std::vector<Keyed> result;
  for (const Value& item : items) result.emplace_back(key_of(item, rule, budget), item);
  return result;
}

// Equal keys keep their order, also if `reverse`.
void sort_by_key(std::vector<Keyed>& items, bool reverse, Budget& budget) {
  std::stable_sort(items.begin(), items.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? less(b.first, a.first, budget) : less(a.first, b.first, budget);
  });
}

Values items_without_keys(std::vector<Keyed> items) {
  Values result;
  for (Keyed& item : items) result.push_back(std::move(item.second));
  return result;
}

Value sort(const Value& value, const CallArguments& given, Budget& budget) {
  const auto bound = bind("sort", given, {"reverse", "case_sensitive", "attribute"}, 0);
  auto items = keyed(items_of(value, budget), {bound[2], truth_argument(bound[1], false)}, budget);
  sort_by_key(items, truth_argument(bound[0], false), budget);
  return sequence_value(SequenceKind::list, items_without_keys(std::move(items)), budget);
}

Value dictsort(const Value& value, const CallArguments& given, Budget& budget) {
  const auto bound = bind("dictsort", given, {"case_sensitive", "by", "reverse"}, 0);
  if (value.dict() == nullptr)
    throw Fault(fmt::format("filter 'dictsort' needs an object, not '{}'", type_name(value)));
  const std::string by = bound[1] == nullptr ? "key" : text_argument("dictsort", bound[1]).bytes;
  if (by != "key" && by != "value") throw Fault("filter 'dictsort' sorts by 'key' or 'value'");
  const KeyRule rule{nullptr, truth_argument(bound[0], false)};
  std::vector<Keyed> items;
  for (const auto& [key, item] : value.dict()->entries)
    items.emplace_back(key_of(by == "key" ? key : item, rule, budget),
                       sequence_value(SequenceKind::tuple, {key, item}, budget));
  sort_by_key(items, truth_argument(bound[2], false), budget);
  return sequence_value(SequenceKind::list, items_without_keys(std::move(items)), budget);
}

Value unique(const Value& value, const CallArguments& given, Budget& budget) {
  const auto bound = bind("unique", given, {"case_sensitive", "attribute"}, 0);
  const auto items = keyed(items_of(value, budget), {bound[1], truth_argument(bound[0], false)}, budget);
  std::vector<Keyed> kept;
  for (const Keyed& item : items)
    if (std::none_of(kept.begin(), kept.end(),
                     [&](const Keyed& other) { return equal(item.first, other.first, budget); }))
      kept.push_back(item);
  return generator_value(items_without_keys(std::move(kept)), budget);
}

Value extreme(std::string_view name, const Value& value, const CallArguments& given, Budget& budget) {
  const auto bound = bind(name, given, {"case_sensitive", "attribute"}, 0);
  const auto items = keyed(items_of(value, budget), {bound[1], truth_argument(bound[0], false)}, budget);
  if (items.empty()) return undefined(fmt::format("the sequence has no {}", name));
  const Keyed* best = &items[0];
  for (const Keyed& item : items)
    if (name == "min" ? less(item.first, best->first, budget) : less(best->first, item.first, budget))
      best = &item;
  return best->second;
}
Value min(const Value& value, const CallArguments& given, Budget& budget) {
  return extreme("min", value, given, budget);
}
Value max(const Value& value, const CallArguments& given, Budget& budget) {
  return extreme("max", value, given, budget);
}

// ---- Items ----

Value length(const Value& value, const CallArguments& given, Budget&) {
  bind("length", given, {}, 0);
  return {length_of(value)};
}

Value list(const Value& value, const CallArguments& given, Budget& budget) {
  bind("list", given, {}, 0);
  return sequence_value(SequenceKind::list, items_of(value, budget), budget);
}

Value first(const Value& value, const CallArguments& given, Budget& budget) {
  bind("first", given, {}, 0);
  const Values items = items_of(value, budget);
  return items.empty() ? undefined("the sequence has no first item") : items.front();
}

void refuse_generator(std::string_view filter, const Value& value) {
  if (value.is<std::shared_ptr<Generator>>())
    throw Fault(fmt::format("filter '{}' does not take a generator: put |list in front of it", filter));
}

Value last(const Value& value, const CallArguments& given, Budget& budget) {
  bind("last", given, {}, 0);
  refuse_generator("last", value);
  const Values items = items_of(value, budget);
  return items.empty() ? undefined("the sequence has no last item") : items.back();
}

Value reverse(const Value& value, const CallArguments& given, Budget& budget) {
  bind("reverse", given, {}, 0);
  if (value.text() != nullptr) {
    const Value step{int64_t{-1}};
    return slice_of(value, nullptr, nullptr, &step, budget);
  }
  Values items = items_of(value, budget);
  std::reverse(items.begin(), items.end());
  if (value.is<std::shared_ptr<Generator>>())
    return sequence_value(SequenceKind::list, std::move(items), budget);
  return generator_value(std::move(items), budget);
}

Value items(const Value& value, const CallArguments& given, Budget& budget) {
  bind("items", given, {}, 0);
  if (value.is<Undefined>()) return generator_value({}, budget);
  if (value.dict() == nullptr)
    throw Fault(fmt::format("filter 'items' needs an object, not '{}'", type_name(value)));
  Values pairs;
  for (const auto& [key, item] : value.dict()->entries)
    pairs.push_back(sequence_value(SequenceKind::tuple, {key, item}, budget));
  return generator_value(std::move(pairs), budget);
}

Value join(const Value& value, const CallArguments& given, Budget& budget) {
  const auto bound = bind("join", given, {"d", "attribute"}, 0);
  const bool has_path = bound[1] != nullptr && !bound[1]->is<None>();
  std::vector<Text> parts;
  for (const Value& item : items_of(value, budget)) {
    budget.make(sizeof(Text));
    parts.push_back(str(has_path ? item_at_path(item, *bound[1], nullptr, budget) : item, budget));
  }
  const Text separator = bound[0] == nullptr ? Text{} : str(*bound[0], budget);
  return text_value(joined(separator, parts, budget), budget);
}

Value sum(const Value& value, const CallArguments& given, Budget& budget) {
  const auto bound = bind("sum", given, {"attribute", "start"}, 0);
  const bool has_path = bound[0] != nullptr && !bound[0]->is<None>();
  Value total = bound[1] != nullptr ? *bound[1] : Value{int64_t{0}};
  if (total.text() != nullptr) throw Fault("filter 'sum' does not add strings");
  for (const Value& item : items_of(value, budget))
    total = apply(BinaryOperator::add, total,
                  has_path ? item_at_path(item, *bound[0], nullptr, budget) : item, budget);
  return total;
}

// The name of a filter or test that is the argument at `index`, and the arguments behind it.
std::pair<std::string, CallArguments> inner_call(std::string_view filter, const CallArguments& given,
                                                 size_t index) {
  CallArguments rest{{}, given.named};
  if (index >= given.positional.size()) throw Fault(fmt::format("filter '{}' lacks an argument", filter));
  rest.positional.assign(given.positional.begin() + static_cast<std::ptrdiff_t>(index) + 1,
                         given.positional.end());
  return {text_argument(filter, &given.positional[index]).bytes, std::move(rest)};
}

Value map_attribute(const Value& value, const CallArguments& given, Budget& budget) {
  const auto bound = bind("map", given, {"attribute", "default"}, 1);
  Values mapped;
  const Value* fallback = bound[1] != nullptr && !bound[1]->is<None>() ? bound[1] : nullptr;
  for (const Value& item : items_of(value, budget))
    mapped.push_back(item_at_path(item, *bound[0], fallback, budget));
  return generator_value(std::move(mapped), budget);
}

Value map(const Value& value, const CallArguments& given, Budget& budget) {
  if (!truth(value)) return generator_value({}, budget);
  if (given.positional.empty()) return map_attribute(value, given, budget);
  const auto [name, arguments] = inner_call("map", given, 0);
  Values mapped;
  for (const Value& item : items_of(value, budget))
    mapped.push_back(apply_filter(name, item, arguments, budget));
  return generator_value(std::move(mapped), budget);
}

// The items for which a test gives `wanted`. It tests the item or, if `by_attribute`, one of its attributes.
Value selected(std::string_view filter, bool wanted, bool by_attribute, const Value& value,
               const CallArguments& given, Budget& budget) {
  if (!truth(value)) return generator_value({}, budget);
  const size_t test_at = by_attribute ? 1 : 0;
  if (given.positional.size() < test_at) throw Fault(fmt::format("filter '{}' lacks an attribute", filter));
  const bool has_test_name = given.positional.size() > test_at;
  std::pair<std::string, CallArguments> test;
  if (has_test_name) test = inner_call(filter, given, test_at);
  Values kept;
  for (const Value& item : items_of(value, budget)) {
    const Value tested = by_attribute ? item_at_path(item, given.positional[0], nullptr, budget) : item;
    if ((has_test_name ? apply_test(test.first, tested, test.second, budget) : truth(tested)) == wanted)
      kept.push_back(item);
  }
  return generator_value(std::move(kept), budget);
}
Value select(const Value& value, const CallArguments& given, Budget& budget) {
  return selected("select", true, false, value, given, budget);
}
Value reject(const Value& value, const CallArguments& given, Budget& budget) {
  return selected("reject", false, false, value, given, budget);
}
Value selectattr(const Value& value, const CallArguments& given, Budget& budget) {
  return selected("selectattr", true, true, value, given, budget);
}
Value rejectattr(const Value& value, const CallArguments& given, Budget& budget) {
  return selected("rejectattr", false, true, value, given, budget);
}

}  // namespace

const std::vector<FilterRow>& sequence_filters() {
  static const std::vector<FilterRow> rows = {
      {"count", length},
      {"dictsort", dictsort},
      {"first", first},
      {"items", items},
      {"join", join},
      {"last", last},
      {"length", length},
      {"list", list},
      {"map", map},
      {"max", max},
      {"min", min},
      {"reject", reject},
      {"rejectattr", rejectattr},
      {"reverse", reverse},
      {"select", select},
      {"selectattr", selectattr},
      {"sort", sort},
      {"sum", sum},
      {"unique", unique},
  };
  return rows;
}

}  // namespace sluice::jinja
