#include <fmt/format.h>

#include <algorithm>

#include "models/text/template/loop.h"
#include "models/text/template/methods.h"

namespace sluice::jinja {
namespace {

// Names between spaces, so that a lookup is one search.
constexpr std::string_view kStringMethods =
    " capitalize casefold center count encode endswith expandtabs find format format_map index isalnum "
    "isalpha "
    "isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust "
    "lower lstrip maketrans partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit "
    "rstrip split splitlines startswith strip swapcase title translate upper zfill ";
constexpr std::string_view kSequenceMethods = " count index ";
constexpr std::string_view kListMethods = " copy ";
constexpr std::string_view kListChanges = " append clear extend insert pop remove reverse sort ";
constexpr std::string_view kRangeMethods = " start step stop ";
constexpr std::string_view kViewMethods = " isdisjoint mapping ";
constexpr std::string_view kDictMethods = " copy fromkeys get items keys values ";
constexpr std::string_view kDictChanges = " clear pop popitem setdefault update ";
constexpr std::string_view kIntegerMethods =
    " as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag numerator real to_bytes ";
constexpr std::string_view kFloatMethods = " as_integer_ratio conjugate fromhex hex imag is_integer real ";
constexpr std::string_view kGeneratorMethods =
    " close gi_code gi_frame gi_running gi_suspended gi_yieldfrom send throw ";
constexpr std::string_view kCyclerMethods = " items next pos reset ";
constexpr std::string_view kLoopMethods = " changed cycle ";
constexpr std::string_view kMacroMethods =
    " arguments caller catch_kwargs catch_varargs explicit_caller name ";
constexpr std::string_view kJoinerMethods = " sep used ";

bool names(std::string_view list, std::string_view name) {
  if (name.empty() || name.find(' ') != std::string_view::npos) return false;
  for (size_t at = list.find(name); at != std::string_view::npos; at = list.find(name, at + 1))
    if (list[at - 1] == ' ' && list[at + name.size()] == ' ') return true;
  return false;
}

Value dict_view(const Dict& dict, std::string_view name, Budget& budget) {
  const SequenceKind kind = name == "keys"     ? SequenceKind::keys
                            : name == "values" ? SequenceKind::values
                                               : SequenceKind::items;
  Values items;
  for (const auto& [key, value] : dict.entries) {
    if (kind == SequenceKind::items)
      items.push_back(sequence_value(SequenceKind::tuple, {key, value}, budget));
    else
      items.push_back(kind == SequenceKind::keys ? key : value);
  }
  return sequence_value(kind, std::move(items), budget);
}

Value call_dict_method(const Value& object, std::string_view name, const CallArguments& given,
                       Budget& budget) {
  const Dict& dict = *object.dict();
  if (name == "get") {
    const auto bound = bind(name, given, {"", ""}, 1);
    const Value* value = find(dict, *bound[0], budget);
    return value != nullptr ? *value : bound[1] != nullptr ? *bound[1] : Value{None{}};
  }
  if (name == "fromkeys") throw refusal("method 'fromkeys'");
  bind(name, given, {}, 0);
  return name == "copy" ? object : dict_view(dict, name, budget);
}

Value call_sequence_method(const Value& object, std::string_view name, const CallArguments& given,
                           Budget& budget) {
  const Values& items = object.sequence()->items;
  if (name == "copy") {
    bind(name, given, {}, 0);
    return object;
  }
  const bool counts = name == "count";
  if (!counts && name != "index") throw refusal(fmt::format("method '{}'", name));
  if (given.positional.size() > 1) throw refusal("bounds of the method 'index'");
  const auto bound = bind(name, given, {""}, 1);
  int64_t count = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!equal(items[i], *bound[0], budget)) continue;
    if (!counts) return {static_cast<int64_t>(i)};
    ++count;
  }
  if (!counts) throw Fault("index() does not find the value");
  return {count};
}

Value call_cycler_method(Cycler& cycler, std::string_view name, const CallArguments& given) {
  if (name != "next" && name != "reset") throw refusal(fmt::format("'{}' of a cycler", name));
  bind(name, given, {}, 0);
  const Value value = name == "next" ? cycler.items[cycler.next] : Value{None{}};
  cycler.next = name == "next" ? (cycler.next + 1) % cycler.items.size() : 0;
  return value;
}

}  // namespace

MethodKind find_method(const Value& object, std::string_view name) {
  const auto kind_in = [&](std::string_view harmless, std::string_view changing = "") {
    return names(harmless, name)   ? MethodKind::harmless
           : names(changing, name) ? MethodKind::changing
                                   : MethodKind::none;
  };
  if (object.text() != nullptr) return kind_in(kStringMethods);
  if (object.dict() != nullptr) return kind_in(kDictMethods, kDictChanges);
  if (const Sequence* sequence = object.sequence()) {
    if (sequence->kind > SequenceKind::range) return kind_in(kViewMethods);
    if (names(kSequenceMethods, name)) return MethodKind::harmless;
    if (sequence->kind == SequenceKind::range) return kind_in(kRangeMethods);
    return sequence->kind == SequenceKind::list ? kind_in(kListMethods, kListChanges) : MethodKind::none;
  }
  if (object.is<bool>() || object.is<int64_t>()) return kind_in(kIntegerMethods);
  if (object.is<double>()) return kind_in(kFloatMethods);
  if (object.is<std::shared_ptr<Generator>>()) return kind_in(kGeneratorMethods);
  if (object.is<std::shared_ptr<Cycler>>()) return kind_in(kCyclerMethods);
  if (object.is<std::shared_ptr<Joiner>>()) return kind_in(kJoinerMethods);
  if (object.is<std::shared_ptr<Loop>>()) return kind_in(kLoopMethods);
  if (object.is<MacroValue>()) return kind_in(kMacroMethods);
  return MethodKind::none;
}

Value call_method(const Method& method, const CallArguments& given, Budget& budget) {
  const Value& object = method.object;
  const std::string& name = method.name;
  if (const Text* text = object.text()) return call_string_method(*text, name, given, budget);
  if (object.dict() != nullptr) return call_dict_method(object, name, given, budget);
  if (object.sequence() != nullptr) return call_sequence_method(object, name, given, budget);
  if (const auto* cycler = object.get<std::shared_ptr<Cycler>>())
    return call_cycler_method(**cycler, name, given);
  if (const auto* loop = object.get<std::shared_ptr<Loop>>()) {
    if (!given.named.empty()) throw Fault(fmt::format("loop.{} takes no arguments with names", name));
    if (name == "cycle") return (*loop)->cycle(given.positional);
    return {(*loop)->changed(given.positional, budget)};
  }
  throw refusal(fmt::format("'{}' of a value of type '{}'", name, type_name(object)));
}

}  // namespace sluice::jinja
