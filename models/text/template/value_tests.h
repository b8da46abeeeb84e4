// Tests: `value is name(arguments)`.
//
// Callers: the parser asks which exist; evaluation and the filters select and reject apply them.
#pragma once

#include "models/text/template/call_arguments.h"
#include "models/text/template/value.h"

namespace sluice::jinja {

bool has_test(std::string_view name);
bool is_test_of_jinja(std::string_view name);  // also those that the subset lacks

// Throws Fault, also if there is no such test.
bool apply_test(std::string_view name, const Value& value, const CallArguments& given, Budget& budget);

}  // namespace sluice::jinja
