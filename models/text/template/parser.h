// Parses a template's source.
//
// A recursive-descent parser with the grammar of jinja2/parser.py: each production has its function here.
// Statements, filters and tests that the subset lacks are refused by name. Caller: ChatTemplate.
#pragma once

#include <string>

#include "models/text/template/ast.h"

namespace sluice::jinja {

// Throws Error.
Template parse_template(const std::string& source);

}  // namespace sluice::jinja
