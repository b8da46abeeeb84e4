#include "models/text/template/call_arguments.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::jinja {

std::vector<const Value*> bind(std::string_view callee, const CallArguments& given,
                               std::initializer_list<std::string_view> parameters, size_t required) {
  if (given.positional.size() > parameters.size())
    throw Fault(fmt::format("{}() takes {} arguments, {} are given", callee, parameters.size(),
                            given.positional.size()));
  std::vector<const Value*> bound(parameters.size());
  for (size_t i = 0; i < given.positional.size(); ++i) bound[i] = &given.positional[i];
  for (const auto& [name, value] : given.named) {
    const auto parameter = std::find(parameters.begin(), parameters.end(), name);
    const auto index = static_cast<size_t>(parameter - parameters.begin());
    if (parameter == parameters.end() || bound[index] != nullptr)
      throw Fault(fmt::format("{}() does not take an argument '{}' here", callee, name));
    bound[index] = &value;
  }
  for (size_t i = 0; i < required; ++i)
    if (bound[i] == nullptr) throw Fault(fmt::format("{}() lacks an argument", callee));
  return bound;
}

const Text& text_argument(std::string_view callee, const Value* value) {
  if (value->text() == nullptr)
    throw Fault(fmt::format("{}() needs a string, not '{}'", callee, type_name(*value)));
  return *value->text();
}

int64_t integer_argument(std::string_view callee, const Value* value, int64_t fallback) {
  if (value == nullptr) return fallback;
  const auto integer = integer_of(*value);
  if (!integer) throw Fault(fmt::format("{}() needs an integer, not '{}'", callee, type_name(*value)));
  return *integer;
}

bool truth_argument(const Value* value, bool fallback) { return value == nullptr ? fallback : truth(*value); }

}  // namespace sluice::jinja
