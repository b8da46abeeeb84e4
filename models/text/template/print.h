// str(), repr() and json.dumps() of values.
//
// Marks of content stay on the bytes of strings; brackets, numbers and names of constants are the template's.
// What Python prints with an address, such as a generator, is refused. Callers: output, filters, methods.
#pragma once

#include <optional>
#include <string>

#include "models/text/template/value.h"

namespace sluice::jinja {

Text str(const Value& value, Budget& budget);
Text repr(const Value& value, Budget& budget);
std::string float_repr(double value);

// Arguments of json.dumps.
struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<Text> indent = {};  // of one level
  Text item_separator = {}, key_separator = {};
};
// Throws Fault for what json.dumps cannot write.
Text to_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace sluice::jinja
