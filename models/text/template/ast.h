// The tree of a template.
//
// Nodes are plain; nothing changes them after parsing, so several renders may share a tree. A node's depth is
// at most kNestingMax. Caller: parser (makes it), interpreter (walks it).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "models/text/template/fault.h"
#include "models/text/template/text.h"

namespace sluice::jinja {

// ---- Expressions ----

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;
using Expressions = std::vector<ExpressionPtr>;

struct Arguments {
  Expressions positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct NoneLiteral {};
struct BoolLiteral {
  bool value;
};
struct IntegerLiteral {
  int64_t value;
};
struct FloatLiteral {
  double value;
};
struct StringLiteral {
  std::shared_ptr<const Text> text;  // the value, which renders share
};
struct Name {
  std::string name;
};
struct ListLiteral {
  Expressions items;
};
struct TupleLiteral {
  Expressions items;
};
struct DictLiteral {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};
struct Attribute {  // object.name
  ExpressionPtr object;
  std::string name;
};
struct Item {  // object[key]
  ExpressionPtr object, key;
};
struct SliceItem {  // object[first:last:step]; what is left out is null
  ExpressionPtr object, first, last, step;
};
struct Call {
  ExpressionPtr callee;
  Arguments arguments;
};
struct FilterUse {      // value|name(arguments)
  ExpressionPtr value;  // null at the start of a filter block's chain: the block's text
  std::string name;
  Arguments arguments;
};
struct TestUse {  // value is name(arguments)
  ExpressionPtr value;
  std::string name;
  Arguments arguments;
};
enum class UnaryOperator : uint8_t { plus, minus, negation };
struct Unary {
  UnaryOperator op;
  ExpressionPtr operand;
};
enum class BinaryOperator : uint8_t { add, subtract, multiply, divide, floor_divide, modulo, power };
struct Binary {
  BinaryOperator op;
  ExpressionPtr left, right;
};
struct Concatenation {  // a ~ b ~ ...
  Expressions parts;
};
struct Logical {  // left and right, left or right
  bool is_and;
  ExpressionPtr left, right;
};
enum class Comparison : uint8_t { equal, unequal, less, less_equal, greater, greater_equal, in, not_in };
struct Compare {  // a < b <= c ...
  ExpressionPtr first;
  std::vector<std::pair<Comparison, ExpressionPtr>> rest;
};
struct Conditional {                         // then if condition else otherwise
  ExpressionPtr condition, then, otherwise;  // otherwise may be null
};

struct Expression {
  Position at;
  int depth = 1;
  std::variant<NoneLiteral, BoolLiteral, IntegerLiteral, FloatLiteral, StringLiteral, Name, ListLiteral,
               TupleLiteral, DictLiteral, Attribute, Item, SliceItem, Call, FilterUse, TestUse, Unary, Binary,
               Concatenation, Logical, Compare, Conditional>
      node;
};

// ---- Statements ----

struct Statement;
using Block = std::vector<Statement>;

// What `set` and `for` assign to.
struct Target {
  struct Attribute {  // of a namespace
    std::string object, name;
  };
  Position at;
  std::variant<std::string, Attribute, std::vector<Target>> node;
};

// A parameter of a macro, or of the body of a call block.
struct Parameter {
  std::string name;
  ExpressionPtr fallback;  // null: a parameter without an argument is undefined
};
struct MacroDefinition {
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
  bool uses_caller = false;  // the body names `caller`, so a call block may call the macro
};

struct Data {
  std::string text;
};
struct Output {
  ExpressionPtr value;
};
struct If {
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  Block otherwise;
};
struct For {
  Target target;
  ExpressionPtr iterable, condition;  // condition may be null
  Block body, otherwise;
};
struct Set {
  Target target;
  ExpressionPtr value;
};
struct SetBlock {
  Target target;
  ExpressionPtr filters;  // a chain of FilterUse or null
  Block body;
};
struct Macro {
  std::unique_ptr<const MacroDefinition> definition;
};
struct CallBlock {
  ExpressionPtr call;  // a Call
  std::unique_ptr<const MacroDefinition> body;
};
struct FilterBlock {
  ExpressionPtr filters;
  Block body;
};
struct Generation {
  Block body;
};
struct Break {};
struct Continue {};

struct Statement {
  Position at;
  std::variant<Data, Output, If, For, Set, SetBlock, Macro, CallBlock, FilterBlock, Generation, Break,
               Continue>
      node;
};

struct Template {
  Block body;
};

}  // namespace sluice::jinja
