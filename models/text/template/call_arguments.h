// Arguments of a call, and their assignment to parameters.
//
// Callers: methods, filters, tests and functions.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/text/template/value.h"

namespace sluice::jinja {

struct CallArguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Returns one pointer for each parameter, null for a parameter that is not given. The first `required`
// parameters must be given. A parameter without a name has an empty name here. Throws Fault.
std::vector<const Value*> bind(std::string_view callee, const CallArguments& given,
                               std::initializer_list<std::string_view> parameters, size_t required);

// Values of arguments; `callee` is for messages. If `value` is null, they return `fallback`.
const Text& text_argument(std::string_view callee, const Value* value);  // which must be given
int64_t integer_argument(std::string_view callee, const Value* value, int64_t fallback);
bool truth_argument(const Value* value, bool fallback);

}  // namespace sluice::jinja
