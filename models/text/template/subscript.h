// object.name, object[key] and object[first:last:step], as jinja2's sandbox has them.
//
// An attribute is looked for first as a method of the type, then as a key; with brackets, the other way
// round. An attribute or key that is not there is undefined. To ask an undefined value for either is a Fault.
// Methods that would change a list or an object are undefined, too. Callers: evaluation, filters with an
// `attribute`.
#pragma once

#include "models/text/template/value.h"

namespace sluice::jinja {

Value attribute_of(const Value& object, std::string_view name, Budget& budget);
Value item_of(const Value& object, const Value& key, Budget& budget);
// Null stands for a bound that is not given.
Value slice_of(const Value& object, const Value* first, const Value* last, const Value* step, Budget& budget);

// The path of a filter's `attribute`: an integer, or names and integers with dots between them. What is
// undefined on the way becomes `fallback`, if that is not null.
Value item_at_path(const Value& object, const Value& path, const Value* fallback, Budget& budget);

}  // namespace sluice::jinja
