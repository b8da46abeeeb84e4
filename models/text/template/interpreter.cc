#include "models/text/template/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/text/template/loop.h"
#include "models/text/template/print.h"

namespace sluice::jinja {

void set_name(Frame& frame, std::string_view name, Value value, Budget& budget) {
  budget.search(frame.names.size(), name.size());
  for (auto& [known, old] : frame.names)
    if (known == name) {
      old = std::move(value);
      return;
    }
  frame.names.emplace_back(name, std::move(value));
}

namespace {

// The ranges of the spans; adjacent ones become one, whatever their sources.
std::vector<ByteRange> joined(const std::vector<SourceRange>& spans) {
  std::vector<ByteRange> ranges;
  for (const SourceRange& span : spans)
    if (!ranges.empty() && ranges.back().end == span.begin)
      ranges.back().end = span.end;
    else
      ranges.push_back({span.begin, span.end});
  return ranges;
}

}  // namespace

Rendered Interpreter::render(const Template& tree, const FirstMessages* messages,
                             const nlohmann::ordered_json& variables,
                             const std::vector<std::string>& control_variables) try {
  Frame given;
  if (!variables.is_object()) throw Fault("the variables are not an object");
  uint32_t source = 0;
  if (messages != nullptr)
    set_name(given, "messages", messages->list->first(messages->count, source, budget_), budget_);
  for (const auto& [name, value] : variables.items()) {
    const bool is_control =
        std::find(control_variables.begin(), control_variables.end(), name) != control_variables.end();
    set_name(given, name, value_of_json(value, is_control, source, budget_), budget_);
  }
  Frame top{&given};
  frame_ = &top;
  Buffer buffer(*this);
  execute(tree.body);
  Text text = buffer.take();
  return {std::move(text.bytes), std::move(generation_), joined(text.content), std::move(text.content)};
} catch (const Fault& fault) {
  throw error_at(at_, fault);
}

Interpreter::Flow Interpreter::execute(const Block& block) {
  const Depth depth(*this);
  for (const Statement& statement : block) {
    at_ = statement.at;
    budget_.step();
    const Flow flow = std::visit([&](const auto& node) { return run(node, statement.at); }, statement.node);
    if (flow != Flow::next) return flow;
  }
  return Flow::next;
}

void Interpreter::write(const Text& text) { append(*out_, text); }

Interpreter::Flow Interpreter::run(const Data& node, Position) {
  budget_.make(node.text.size());
  append(*out_, node.text);
  return Flow::next;
}

Interpreter::Flow Interpreter::run(const Output& node, Position at) {
  const Value value = evaluate(*node.value);
  at_ = at;
  if (const Text* text = value.text()) {
    budget_.make(text->bytes.size());
    write(*text);
  } else {
    write(str(value, budget_));
  }
  return Flow::next;
}

Interpreter::Flow Interpreter::run(const If& node, Position) {
  for (const auto& [condition, block] : node.branches)
    if (truth(evaluate(*condition))) return execute(block);
  return execute(node.otherwise);
}

Interpreter::Flow Interpreter::run(const For& node, Position at) {
  const Value iterable = evaluate(*node.iterable);
  at_ = at;
  Values items = items_of(iterable, budget_);
  std::function<bool(const Value&)> condition;
  if (node.condition)
    condition = [this, &node, outer = frame_](const Value& item) {
      const Depth depth(*this);
      const Scope scope(*this, outer);
      assign_target(node.target, item);
      return truth(evaluate(*node.condition));
    };
  budget_.make(sizeof(Loop));
  const auto loop = std::make_shared<Loop>(std::move(items), std::move(condition));
  // The condition refers to this frame: a loop that the template holds longer must not evaluate it.
  struct Ending {
    Loop& loop;
    ~Ending() { loop.end(); }
  } const ending{*loop};
  return iterate(node, loop);
}

Interpreter::Flow Interpreter::iterate(const For& node, const std::shared_ptr<Loop>& loop) {
  bool is_empty = true;
  while (loop->advance()) {
    is_empty = false;
    budget_.step();
    const Scope scope(*this, frame_);
    set_name(*frame_, "loop", {loop}, budget_);
    assign_target(node.target, loop->current());
    if (execute(node.body) == Flow::break_loop) break;
  }
  if (!is_empty) return Flow::next;
  const Scope scope(*this, frame_);
  return execute(node.otherwise);
}

void Interpreter::assign_target(const Target& target, const Value& value) {
  at_ = target.at;
  if (const auto* name = std::get_if<std::string>(&target.node)) {
    set_name(*frame_, *name, value, budget_);
  } else if (const auto* attribute = std::get_if<Target::Attribute>(&target.node)) {
    const Value object = look_up(attribute->object);
    if (!object.is<Namespace*>())
      throw Fault(
          fmt::format("'{}' is no namespace: only a namespace has attributes to set", attribute->object));
    set_attribute(**object.get<Namespace*>(), attribute->name, value, budget_);
  } else {
    const auto& parts = std::get<std::vector<Target>>(target.node);
    const Values items = items_of(value, budget_);
    if (items.size() != parts.size())
      throw Fault(fmt::format("{} values for {} names", items.size(), parts.size()));
    for (size_t i = 0; i < parts.size(); ++i) assign_target(parts[i], items[i]);
  }
}

Interpreter::Flow Interpreter::run(const Set& node, Position) {
  assign_target(node.target, evaluate(*node.value));
  return Flow::next;
}

Interpreter::Flow Interpreter::capture(const Block& body, Text& text) {
  const Scope scope(*this, frame_);
  Buffer buffer(*this);
  const Flow flow = execute(body);
  if (flow == Flow::next) text = buffer.take();
  return flow;
}

Interpreter::Flow Interpreter::run(const SetBlock& node, Position at) {
  Text text;
  if (const Flow flow = capture(node.body, text); flow != Flow::next) return flow;
  at_ = at;
  assign_target(node.target, node.filters ? filtered(*node.filters, std::move(text))
                                          : text_value(std::move(text), budget_));
  return Flow::next;
}

void Interpreter::keep_frames() {
  for (Frame* frame = frame_; frame != nullptr && !frame->is_kept; frame = frame->outer) {
    budget_.make(sizeof(Frame) + frame->names.size() * kElementBytes);
    frame->is_kept = true;
  }
}

Value Interpreter::macro_value(const MacroDefinition& definition) {
  keep_frames();
  return {MacroValue{&definition, frame_}};
}

Interpreter::Flow Interpreter::run(const Macro& node, Position) {
  set_name(*frame_, node.definition->name, macro_value(*node.definition), budget_);
  return Flow::next;
}

Interpreter::Flow Interpreter::run(const CallBlock& node, Position at) {
  const auto& callee = std::get<Call>(node.call->node);
  const Value macro = evaluate(*callee.callee);
  const CallArguments given = evaluate(callee.arguments);
  at_ = at;
  const Value body = macro_value(*node.body);
  write(str(call(macro, given, &body), budget_));
  return Flow::next;
}

Interpreter::Flow Interpreter::run(const FilterBlock& node, Position at) {
  Text text;
  if (const Flow flow = capture(node.body, text); flow != Flow::next) return flow;
  at_ = at;
  write(str(filtered(*node.filters, std::move(text)), budget_));
  return Flow::next;
}

Interpreter::Flow Interpreter::run(const Generation& node, Position) {
  // The parser lets this block stand only where out_ is the output itself.
  const Scope scope(*this, frame_);
  const size_t begin = out_->bytes.size();
  execute(node.body);
  generation_.push_back({begin, out_->bytes.size()});
  return Flow::next;
}

}  // namespace sluice::jinja
