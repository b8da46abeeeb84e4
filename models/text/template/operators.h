// Operators of expressions, as Python has them.
//
// Integers have 64 bits here: a result beyond is refused. Caller: evaluation.
#pragma once

#include "models/text/template/ast.h"
#include "models/text/template/value.h"

namespace sluice::jinja {

Value apply(BinaryOperator op, const Value& left, const Value& right, Budget& budget);
Value apply(UnaryOperator op, const Value& operand);
bool compare(Comparison op, const Value& left, const Value& right, Budget& budget);

// `needle in haystack`.
bool contains(const Value& haystack, const Value& needle, Budget& budget);

}  // namespace sluice::jinja
