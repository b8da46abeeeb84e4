// Formatting of strings: `template % values` and `template.format(values)`.
//
// Of Python's formats, %s %r %d %i %x %f %% with flags, width and precision, and {} {0} {name} with !s and
// !r; others are refused. Callers: operators, methods of strings, the filter `format`.
#pragma once

#include "models/text/template/call_arguments.h"
#include "models/text/template/value.h"

namespace sluice::jinja {

// `values` is a tuple, or the only value.
Text percent_format(const Text& format, const Value& values, Budget& budget);
Text brace_format(const Text& format, const CallArguments& given, Budget& budget);

}  // namespace sluice::jinja
