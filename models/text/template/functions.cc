#include "models/text/template/functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "models/text/template/print.h"

namespace sluice::jinja {
namespace {

// dict(mapping or pairs, name=value, ...)
std::vector<std::pair<Value, Value>> dict_entries(std::string_view callee, const CallArguments& given,
                                                  Budget& budget) {
  if (given.positional.size() > 1) throw Fault(fmt::format("{}() takes one argument without a name", callee));
  std::vector<std::pair<Value, Value>> entries;
  for (const Value& source : given.positional) {
    if (const Dict* dict = source.dict()) {
      entries = dict->entries;
      continue;
    }
    for (const Value& item : items_of(source, budget)) {
      const Values pair = items_of(item, budget);
      if (pair.size() != 2) throw Fault(fmt::format("{}() needs pairs", callee));
      assign(entries, pair[0], pair[1], budget);
    }
  }
  for (const auto& [name, value] : given.named) assign(entries, literal_value(name, budget), value, budget);
  return entries;
}

Value make_namespace(const CallArguments& given, Surroundings& surroundings) {
  Namespace space;
  for (const auto& [key, value] : dict_entries("namespace", given, surroundings.budget)) {
    if (key.text() == nullptr) throw refusal("an attribute of a namespace that is no string");
    set_attribute(space, key.text()->bytes, value, surroundings.budget);
  }
  surroundings.budget.make(sizeof(Namespace));
  return {&surroundings.namespaces.emplace_back(std::move(space))};
}

Value range(const CallArguments& given, Budget& budget) {
  constexpr uint64_t kItemsMax = 100'000;  // of jinja2's sandbox
  const auto bound = bind("range", given, {"", "", ""}, 1);
  const int64_t first = bound[1] != nullptr ? integer_argument("range", bound[0], 0) : 0;
  const int64_t last = integer_argument("range", bound[1] != nullptr ? bound[1] : bound[0], 0);
  const int64_t step = integer_argument("range", bound[2], 1);
  if (step == 0) throw Fault("range() has step zero");
  Values items;
  for (int64_t i = first; step > 0 ? i < last : i > last;) {
    if (items.size() == kItemsMax) throw Fault(fmt::format("range() has more than {} items", kItemsMax));
    items.push_back({i});
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return sequence_value(SequenceKind::range, std::move(items), budget);
}

Value strftime_now(const CallArguments& given, Surroundings& surroundings) {
  const std::string& format =
      text_argument("strftime_now", bind("strftime_now", given, {"format"}, 1)[0]).bytes;
  // Python and the C library write these conversions alike.
  constexpr std::string_view kConversions = "aAbBcCdDeFgGhHIjmMnprRStTuUVwWxXyY%";
  constexpr size_t kFormatBytesMax = 200;
  if (format.size() > kFormatBytesMax || format.find('\0') != std::string::npos)
    throw refusal("a long format of strftime_now");
  for (size_t at = 0; (at = format.find('%', at)) != std::string::npos; at += 2)
    if (at + 1 == format.size() || kConversions.find(format[at + 1]) == std::string_view::npos)
      throw refusal(fmt::format("'{}' of strftime_now", format.substr(at, 2)));
  if (!surroundings.now) throw Fault("strftime_now needs a time, and none is given");
  if (format.empty()) return literal_value("", surroundings.budget);
  char text[32 * kFormatBytesMax];  // a conversion of two bytes becomes at most 64
  const size_t length = std::strftime(text, sizeof text, format.c_str(), &*surroundings.now);
  return literal_value({text, length}, surroundings.budget);
}

}  // namespace

std::optional<Value> find_function(std::string_view name) {
  static constexpr std::pair<std::string_view, Function> kFunctions[] = {
      {"raise_exception", Function::raise_exception},
      {"strftime_now", Function::strftime_now},
      {"namespace", Function::make_namespace},
      {"dict", Function::dict},
      {"range", Function::range},
      {"cycler", Function::cycler},
      {"joiner", Function::joiner}};
  if (name == "lipsum") throw refusal("function 'lipsum'");
  for (const auto& [known, function] : kFunctions)
    if (known == name) return Value{function};
  return std::nullopt;
}

Value call_function(Function function, const CallArguments& given, Surroundings& surroundings) {
  Budget& budget = surroundings.budget;
  switch (function) {
    case Function::raise_exception: {
      const Text message = str(*bind("raise_exception", given, {"message"}, 1)[0], budget);
      throw Fault(message.bytes, FaultKind::raised);
    }
    case Function::strftime_now:
      return strftime_now(given, surroundings);
    case Function::make_namespace:
      return make_namespace(given, surroundings);
    case Function::dict:
      return dict_value(dict_entries("dict", given, budget), budget);
    case Function::range:
      return range(given, budget);
    case Function::cycler: {
      if (!given.named.empty()) throw Fault("cycler() takes no arguments with names");
      if (given.positional.empty()) throw Fault("cycler() needs an argument");
      budget.make_elements(given.positional.size());
      return {std::make_shared<Cycler>(Cycler{given.positional, 0, depth_with(given.positional)})};
    }
    case Function::joiner: {
      const Value* separator = bind("joiner", given, {"sep"}, 0)[0];
      budget.make(sizeof(Joiner));
      const Value given_or_comma = separator ? *separator : literal_value(", ", budget);
      return {std::make_shared<Joiner>(Joiner{given_or_comma, depth_with({given_or_comma})})};
    }
  }
  return {};
}

void set_attribute(Namespace& space, const std::string& name, Value value, Budget& budget) {
  if (name.starts_with('_'))
    throw Fault(fmt::format("a namespace takes no attribute '{}' with '_'", shown(name)));
  budget.search(space.attributes.size(), name.size());
  for (auto& [known, old] : space.attributes)
    if (known == name) {
      old = std::move(value);
      return;
    }
  budget.make(name.size() + 2 * kElementBytes);
  space.attributes.emplace_back(name, std::move(value));
}

}  // namespace sluice::jinja
