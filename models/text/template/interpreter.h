// Renders a tree with variables.
//
// One Interpreter is one render. Names live in frames: one for the variables, one for the template, one for
// each turn of a loop and each call of a macro. A name that a frame lacks is looked for in the frame around
// it, at last among the functions. A frame that a macro was defined in stays until the render ends, because
// the macro may be called later; others go with their block. Caller: ChatTemplate::render.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "models/text/template/ast.h"
#include "models/text/template/call_arguments.h"
#include "models/text/template/functions.h"
#include "models/text/template/message_values.h"
#include "models/text/template/value.h"

namespace sluice::jinja {

struct Frame {
  Frame* outer = nullptr;
  std::vector<std::pair<std::string_view, Value>> names = {};  // the tree, or the variables, own the strings
  bool is_kept = false;
};

void set_name(Frame& frame, std::string_view name, Value value, Budget& budget);

class Interpreter {
 public:
  Interpreter(const RenderOptions& options, Budget& budget)
      : budget_(budget), surroundings_{options.now, budget} {}

  // `messages`: the variable "messages", which comes before all others; nullptr: none. Throws Error.
  Rendered render(const Template& tree, const FirstMessages* messages,
                  const nlohmann::ordered_json& variables, const std::vector<std::string>& control_variables);

 private:
  enum class Flow : uint8_t { next, break_loop, continue_loop };
  class Depth;   // counts recursion while it lives
  class Scope;   // a frame inside of the current one, while it lives
  class Buffer;  // takes the output, while it lives

  // ---- Statements: interpreter.cc ----
  Flow execute(const Block& block);
  // Renders a block into `text`, not into the output.
  Flow capture(const Block& body, Text& text);
  Flow run(const Data& node, Position at);
  Flow run(const Output& node, Position at);
  Flow run(const If& node, Position at);
  Flow run(const For& node, Position at);
  Flow run(const Set& node, Position at);
  Flow run(const SetBlock& node, Position at);
  Flow run(const Macro& node, Position at);
  Flow run(const CallBlock& node, Position at);
  Flow run(const FilterBlock& node, Position at);
  Flow run(const Generation& node, Position at);
  Flow run(const Break&, Position) { return Flow::break_loop; }
  Flow run(const Continue&, Position) { return Flow::continue_loop; }
  Flow iterate(const For& node, const std::shared_ptr<Loop>& loop);
  void assign_target(const Target& target, const Value& value);
  void write(const Text& text);
  void keep_frames();
  Value macro_value(const MacroDefinition& definition);

  // ---- Expressions: evaluate.cc ----
  Value evaluate(const Expression& expression);
  Value value_of(const NoneLiteral&, Position) { return {None{}}; }
  Value value_of(const BoolLiteral& node, Position) { return {node.value}; }
  Value value_of(const IntegerLiteral& node, Position) { return {node.value}; }
  Value value_of(const FloatLiteral& node, Position) { return {node.value}; }
  Value value_of(const StringLiteral& node, Position) {
    budget_.make(sizeof(Text) + node.text->bytes.size());  // as text_value() would
    return {node.text};
  }
  Value value_of(const Name& node, Position) { return look_up(node.name); }
  Value value_of(const ListLiteral& node, Position at);
  Value value_of(const TupleLiteral& node, Position at);
  Value value_of(const DictLiteral& node, Position at);
  Value value_of(const Attribute& node, Position at);
  Value value_of(const Item& node, Position at);
  Value value_of(const SliceItem& node, Position at);
  Value value_of(const Call& node, Position at);
  Value value_of(const FilterUse& node, Position at);
  Value value_of(const TestUse& node, Position at);
  Value value_of(const Unary& node, Position at);
  Value value_of(const Binary& node, Position at);
  Value value_of(const Concatenation& node, Position at);
  Value value_of(const Logical& node, Position at);
  Value value_of(const Compare& node, Position at);
  Value value_of(const Conditional& node, Position at);
  Values evaluate_all(const Expressions& expressions);
  CallArguments evaluate(const Arguments& arguments);
  // The value of a chain of filters, of which the innermost takes the rendered text of a block.
  Value filtered(const Expression& filters, Text block);
  Value look_up(const std::string& name);

  // ---- Calls: evaluate.cc ----
  // `caller` is the body of a call block, or null.
  Value call(const Value& callee, const CallArguments& given, const Value* caller);
  Value call_macro(const MacroValue& macro, const CallArguments& given, const Value* caller);

  Budget& budget_;
  Surroundings surroundings_;
  Frame* frame_ = nullptr;
  std::vector<std::unique_ptr<Frame>> kept_;
  Text* out_ = nullptr;
  std::vector<ByteRange> generation_;
  const Value* block_text_ = nullptr;  // the text that the filters being evaluated take
  Position at_;                        // of what is evaluated, for faults
  int depth_ = 0;
};

class Interpreter::Depth {
 public:
  explicit Depth(Interpreter& interpreter) : depth_(interpreter.depth_) {
    if (depth_ >= kRecursionMax)
      throw Fault("it nests more than " + std::to_string(kRecursionMax) + " evaluations",
                  FaultKind::exhausted);
    ++depth_;
  }
  ~Depth() { --depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  int& depth_;
};

class Interpreter::Scope {
 public:
  // `outer` is the frame around the new one. The end of the scope returns to the current frame.
  Scope(Interpreter& interpreter, Frame* outer)
      : interpreter_(interpreter), before_(interpreter.frame_), frame_(new Frame{outer}) {
    frame_->names.reserve(kNamesOfScope);
    interpreter_.frame_ = frame_.get();
  }
  ~Scope() {
    interpreter_.frame_ = before_;
    if (frame_->is_kept) interpreter_.kept_.push_back(std::move(frame_));
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  static constexpr size_t kNamesOfScope = 8;  // a scope seldom has more

  Interpreter& interpreter_;
  Frame* before_;
  std::unique_ptr<Frame> frame_;
};

class Interpreter::Buffer {
 public:
  explicit Buffer(Interpreter& interpreter) : out_(interpreter.out_), before_(interpreter.out_) {
    out_ = &text_;
  }
  ~Buffer() { out_ = before_; }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Text take() { return std::move(text_); }

 private:
  Text*& out_;
  Text* before_;
  Text text_;
};

}  // namespace sluice::jinja
