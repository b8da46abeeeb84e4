// Filters: `value|name(arguments)`.
//
// A filter that returns a generator in jinja2 (map, select, unique, ...) does so here, too, but fills it at
// once. Callers: the parser asks which filters exist; evaluation applies them.
#pragma once

#include "models/text/template/call_arguments.h"
#include "models/text/template/value.h"

namespace sluice::jinja {

bool has_filter(std::string_view name);
bool is_filter_of_jinja(std::string_view name);  // also those that the subset lacks

// Throws Fault, also if there is no such filter.
Value apply_filter(std::string_view name, const Value& value, const CallArguments& given, Budget& budget);

// A filter by its function. sequence_filters.cc has those of sequences.
struct FilterRow {
  const char* name;
  Value (*apply)(const Value& value, const CallArguments& given, Budget& budget);
};
const std::vector<FilterRow>& sequence_filters();

}  // namespace sluice::jinja
