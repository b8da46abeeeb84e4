// Functions that every template may call: raise_exception, strftime_now, namespace, dict, range, cycler,
// joiner.
//
// Caller: evaluation.
#pragma once

#include <deque>
#include <optional>

#include "models/text/template/call_arguments.h"
#include "models/text/template/value.h"

namespace sluice::jinja {

// What the functions of one render share.
struct Surroundings {
  const std::optional<std::tm>& now;
  Budget& budget;
  std::deque<Namespace> namespaces = {};  // addresses stay
};

// Nothing if there is no function of that name.
std::optional<Value> find_function(std::string_view name);
Value call_function(Function function, const CallArguments& given, Surroundings& surroundings);

// Sets an attribute. Throws Fault for names with an underscore in front, as transformers does.
void set_attribute(Namespace& space, const std::string& name, Value value, Budget& budget);

}  // namespace sluice::jinja
