// Methods of strings, lists, tuples, objects, cyclers and loops.
//
// Every method of Python's types is known by name, because object.name finds a method before a key of the
// same name. Calling a method that the subset lacks is refused. find_method() is called by subscript.cc,
// call_method() by evaluate.cc.
#pragma once

#include "models/text/template/call_arguments.h"
#include "models/text/template/value.h"

namespace sluice::jinja {

enum class MethodKind : uint8_t {
  none,      // the type has no such method
  harmless,  // it can be called
  changing,  // it would change its object: the sandbox hides it
};
MethodKind find_method(const Value& object, std::string_view name);

Value call_method(const Method& method, const CallArguments& given, Budget& budget);

// Calls a method of a string. Callers: call_method(), and the filters that have names of such methods.
Value call_string_method(const Text& text, std::string_view name, const CallArguments& given, Budget& budget);
Text stripped(const Text& text, const Value* characters, bool left, bool right, Budget& budget);
// `count` < 0: all.
Text replaced(const Text& text, const Text& from, const Text& to, int64_t count, Budget& budget);
Text joined(const Text& separator, const std::vector<Text>& parts, Budget& budget);
std::vector<Text> lines_of(const Text& text, Budget& budget);

}  // namespace sluice::jinja
