#include <fmt/format.h>

#include <algorithm>

#include "models/text/template/filters.h"
#include "models/text/template/interpreter.h"
#include "models/text/template/methods.h"
#include "models/text/template/operators.h"
#include "models/text/template/print.h"
#include "models/text/template/subscript.h"
#include "models/text/template/value_tests.h"

// Each value_of sets at_ again when its parts are evaluated, so that a fault of the operation itself has the
// place of its node.
namespace sluice::jinja {

Value Interpreter::evaluate(const Expression& expression) {
  const Depth depth(*this);
  budget_.step();
  at_ = expression.at;
  return std::visit([&](const auto& node) { return value_of(node, expression.at); }, expression.node);
}

Values Interpreter::evaluate_all(const Expressions& expressions) {
  Values values;
  for (const ExpressionPtr& expression : expressions) values.push_back(evaluate(*expression));
  return values;
}

CallArguments Interpreter::evaluate(const Arguments& arguments) {
  CallArguments given{evaluate_all(arguments.positional), {}};
  for (const auto& [name, value] : arguments.named) given.named.emplace_back(name, evaluate(*value));
  return given;
}

Value Interpreter::look_up(const std::string& name) {
  for (const Frame* frame = frame_; frame != nullptr; frame = frame->outer) {
    budget_.search(frame->names.size(), name.size());
    for (const auto& [known, value] : frame->names)
      if (known == name) return value;
  }
  if (auto function = find_function(name)) return *function;
  return undefined(fmt::format("'{}' is undefined", shown(name)));
}

Value Interpreter::value_of(const ListLiteral& node, Position at) {
  Values items = evaluate_all(node.items);
  at_ = at;
  return sequence_value(SequenceKind::list, std::move(items), budget_);
}

Value Interpreter::value_of(const TupleLiteral& node, Position at) {
  Values items = evaluate_all(node.items);
  at_ = at;
  return sequence_value(SequenceKind::tuple, std::move(items), budget_);
}

Value Interpreter::value_of(const DictLiteral& node, Position at) {
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& [key_node, value_node] : node.entries) {
    const Value key = evaluate(*key_node);
    Value value = evaluate(*value_node);
    at_ = at;
    assign(entries, key, std::move(value), budget_);
  }
  return dict_value(std::move(entries), budget_);
}

Value Interpreter::value_of(const Attribute& node, Position at) {
  const Value object = evaluate(*node.object);
  at_ = at;
  return attribute_of(object, node.name, budget_);
}

Value Interpreter::value_of(const Item& node, Position at) {
  const Value object = evaluate(*node.object), key = evaluate(*node.key);
  at_ = at;
  return item_of(object, key, budget_);
}

Value Interpreter::value_of(const SliceItem& node, Position at) {
  const Value object = evaluate(*node.object);
  std::optional<Value> bounds[3];
  for (int i = 0; const ExpressionPtr* bound : {&node.first, &node.last, &node.step}) {
    if (*bound) bounds[i] = evaluate(**bound);
    ++i;
  }
  at_ = at;
  const auto given = [&](int i) { return bounds[i] ? &*bounds[i] : nullptr; };
  return slice_of(object, given(0), given(1), given(2), budget_);
}

Value Interpreter::value_of(const Call& node, Position at) {
  const Value callee = evaluate(*node.callee);
  const CallArguments given = evaluate(node.arguments);
  at_ = at;
  return call(callee, given, nullptr);
}

Value Interpreter::value_of(const FilterUse& node, Position at) {
  const Value value = node.value ? evaluate(*node.value) : *block_text_;
  const CallArguments given = evaluate(node.arguments);
  at_ = at;
  return apply_filter(node.name, value, given, budget_);
}

Value Interpreter::filtered(const Expression& filters, Text block) {
  const Value text = text_value(std::move(block), budget_);
  // Arguments of the filters may call macros with filter blocks of their own.
  struct Restored {
    const Value*& place;
    const Value* before;
    ~Restored() { place = before; }
  } const restored{block_text_, std::exchange(block_text_, &text)};
  return evaluate(filters);
}

Value Interpreter::value_of(const TestUse& node, Position at) {
  const Value value = evaluate(*node.value);
  const CallArguments given = evaluate(node.arguments);
  at_ = at;
  return {apply_test(node.name, value, given, budget_)};
}

Value Interpreter::value_of(const Unary& node, Position at) {
  const Value operand = evaluate(*node.operand);
  at_ = at;
  return apply(node.op, operand);
}

Value Interpreter::value_of(const Binary& node, Position at) {
  const Value left = evaluate(*node.left), right = evaluate(*node.right);
  at_ = at;
  return apply(node.op, left, right, budget_);
}

Value Interpreter::value_of(const Concatenation& node, Position at) {
  const Values parts = evaluate_all(node.parts);
  at_ = at;
  Text text;
  for (const Value& part : parts) append(text, str(part, budget_));
  return text_value(std::move(text), budget_);
}

Value Interpreter::value_of(const Logical& node, Position) {
  Value left = evaluate(*node.left);
  return truth(left) == node.is_and ? evaluate(*node.right) : left;
}

Value Interpreter::value_of(const Compare& node, Position at) {
  Value left = evaluate(*node.first);
  for (const auto& [op, operand] : node.rest) {
    Value right = evaluate(*operand);
    at_ = at;
    if (!compare(op, left, right, budget_)) return {false};
    left = std::move(right);
  }
  return {true};
}

Value Interpreter::value_of(const Conditional& node, Position) {
  if (truth(evaluate(*node.condition))) return evaluate(*node.then);
  if (node.otherwise) return evaluate(*node.otherwise);
  return undefined("the condition of an 'if' without 'else' is false");
}

Value Interpreter::call(const Value& callee, const CallArguments& given, const Value* caller) {
  if (const auto* macro = callee.get<MacroValue>()) return call_macro(*macro, given, caller);
  if (caller != nullptr) throw refusal("a call block of anything but a macro");
  if (const Function* function = callee.get<Function>())
    return call_function(*function, given, surroundings_);
  if (const auto* method = callee.get<std::shared_ptr<const Method>>())
    return call_method(**method, given, budget_);
  if (const auto* joiner = callee.get<std::shared_ptr<Joiner>>()) {
    bind("joiner", given, {}, 0);
    return std::exchange((*joiner)->is_used, true) ? (*joiner)->separator : literal_value("", budget_);
  }
  if (const Undefined* none = callee.get<Undefined>()) throw Fault(*none->reason);
  if (callee.is<std::shared_ptr<Loop>>()) throw refusal("a recursive loop");
  throw Fault(fmt::format("a value of type '{}' cannot be called", type_name(callee)));
}

Value Interpreter::call_macro(const MacroValue& macro, const CallArguments& given, const Value* caller) {
  const MacroDefinition& definition = *macro.definition;
  if (given.positional.size() > definition.parameters.size())
    throw Fault(fmt::format("macro '{}' takes {} arguments, {} are given", definition.name,
                            definition.parameters.size(), given.positional.size()));
  if (caller != nullptr && !definition.uses_caller)
    throw Fault(fmt::format("macro '{}' is called by a call block but has no 'caller'", definition.name));
  const Depth depth(*this);
  const Scope scope(*this, macro.scope);
  size_t named_used = 0;
  budget_.search(definition.parameters.size() * given.named.size(), 0);
  for (size_t i = 0; i < definition.parameters.size(); ++i) {
    const Parameter& parameter = definition.parameters[i];
    const auto named = std::find_if(given.named.begin(), given.named.end(),
                                    [&](const auto& argument) { return argument.first == parameter.name; });
    if (i < given.positional.size()) {
      set_name(*frame_, parameter.name, given.positional[i], budget_);
    } else if (named != given.named.end()) {
      set_name(*frame_, parameter.name, named->second, budget_);
      ++named_used;
    } else if (parameter.fallback) {
      set_name(*frame_, parameter.name, evaluate(*parameter.fallback), budget_);
    } else {
      set_name(*frame_, parameter.name,
               undefined(fmt::format("parameter '{}' is not given", shown(parameter.name))), budget_);
    }
  }
  if (named_used < given.named.size())
    throw Fault(fmt::format("macro '{}' does not take these arguments with names", definition.name));
  if (caller != nullptr) set_name(*frame_, "caller", *caller, budget_);
  Buffer buffer(*this);
  execute(definition.body);
  return text_value(buffer.take(), budget_);
}

}  // namespace sluice::jinja
