#include "models/text/template/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "models/text/template/filters.h"
#include "models/text/template/limits.h"
#include "models/text/template/value_tests.h"

namespace sluice::jinja {
namespace {

std::string described(const Token& token) {
  switch (token.kind) {
    case TokenKind::end:
      return "the end of the template";
    case TokenKind::data:
      return "text";
    case TokenKind::string:
      return "a string";
    default:
      return "'" + token.text + "'";
  }
}

}  // namespace

Token ExpressionParser::take() {
  Token token = current();
  if (next_ + 1 < tokens_.size()) ++next_;
  return token;
}

bool ExpressionParser::skip_if(TokenKind kind, std::string_view text) {
  if (!is(kind, text)) return false;
  take();
  return true;
}

Token ExpressionParser::expect(TokenKind kind, std::string_view text) {
  if (!is(kind, text)) {
    if (!text.empty()) unexpected(fmt::format("'{}'", text));
    unexpected(kind == TokenKind::name ? "a name" : kind == TokenKind::block_end ? "'%}'" : "'}}'");
  }
  return take();
}

void ExpressionParser::unexpected(const std::string& expected) const {
  throw error_at(current().at, Fault(fmt::format("expected {}, found {}", expected, described(current()))));
}

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
  if (parser_.nesting_ >= kNestingMax)
    throw error_at(parser_.current().at,
                   Fault(fmt::format("it is nested more than {} deep", kNestingMax), FaultKind::exhausted));
  ++parser_.nesting_;
}

int ExpressionParser::deepest(std::initializer_list<const ExpressionPtr*> parts) {
  int depth = 0;
  for (const ExpressionPtr* part : parts)
    if (*part) depth = std::max(depth, (*part)->depth);
  return depth;
}

int ExpressionParser::deepest(const Expressions& parts) {
  int depth = 0;
  for (const ExpressionPtr& part : parts) depth = std::max(depth, part->depth);
  return depth;
}

int ExpressionParser::deepest(const Arguments& arguments) {
  int depth = deepest(arguments.positional);
  for (const auto& [name, value] : arguments.named) depth = std::max(depth, value->depth);
  return depth;
}

template <typename Node>
ExpressionPtr ExpressionParser::make(Position at, int depth, Node node) {
  if (depth >= kNestingMax)
    throw error_at(at, Fault(fmt::format("an expression has more than {} operations in a row", kNestingMax),
                             FaultKind::exhausted));
  return std::make_unique<const Expression>(Expression{at, depth + 1, std::move(node)});
}

void ExpressionParser::note_unless_known(const Token& name, bool is_filter) {
  if (is_filter ? has_filter(name.text) : has_test(name.text)) return;
  const std::string what = fmt::format("{} '{}'", is_filter ? "filter" : "test", name.text);
  if (is_filter ? is_filter_of_jinja(name.text) : is_test_of_jinja(name.text))
    throw error_at(name.at, refusal(what));
  unknown_.push_back({name.at, "there is no " + what});
}

void ExpressionParser::settle_unknown() {
  if (!in_branch_ && !unknown_.empty()) throw error_at(unknown_.front().at, Fault(unknown_.front().what));
  unknown_.clear();
}

ExpressionPtr ExpressionParser::expression(bool with_conditional) {
  const Nesting nesting(*this);
  return with_conditional ? conditional() : disjunction();
}

ExpressionPtr ExpressionParser::conditional() {
  Position at = current().at;
  const size_t unknown_before = unknown_.size();
  ExpressionPtr value = disjunction();
  while (skip_if(TokenKind::name, "if")) {
    ExpressionPtr condition = disjunction(), otherwise;
    if (skip_if(TokenKind::name, "else")) {
      const Nesting nesting(*this);
      otherwise = conditional();
    }
    unknown_.resize(unknown_before);
    const int depth = deepest({&condition, &value, &otherwise});
    value = make(at, depth, Conditional{std::move(condition), std::move(value), std::move(otherwise)});
    at = current().at;
  }
  return value;
}

ExpressionPtr ExpressionParser::disjunction() {
  ExpressionPtr left = conjunction();
  while (is_name("or")) {
    const Position at = take().at;
    ExpressionPtr right = conjunction();
    const int depth = deepest({&left, &right});
    left = make(at, depth, Logical{false, std::move(left), std::move(right)});
  }
  return left;
}

ExpressionPtr ExpressionParser::conjunction() {
  ExpressionPtr left = negation();
  while (is_name("and")) {
    const Position at = take().at;
    ExpressionPtr right = negation();
    const int depth = deepest({&left, &right});
    left = make(at, depth, Logical{true, std::move(left), std::move(right)});
  }
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  if (!is_name("not")) return comparison();
  const Nesting nesting(*this);
  const Position at = take().at;
  ExpressionPtr operand = negation();
  const int depth = operand->depth;
  return make(at, depth, Unary{UnaryOperator::negation, std::move(operand)});
}

ExpressionPtr ExpressionParser::comparison() {
  static const std::pair<const char*, Comparison> kOperators[] = {
      {"==", Comparison::equal},      {"!=", Comparison::unequal}, {"<", Comparison::less},
      {"<=", Comparison::less_equal}, {">", Comparison::greater},  {">=", Comparison::greater_equal}};
  ExpressionPtr first = sum();
  const Position at = current().at;
  std::vector<std::pair<Comparison, ExpressionPtr>> rest;
  int depth = first->depth;
  while (true) {
    std::optional<Comparison> op;
    if (is_name("in")) {
      op = Comparison::in;
    } else if (is_name("not") && matches(look(), TokenKind::name, "in")) {
      take();
      op = Comparison::not_in;
    } else {
      for (const auto& [text, candidate] : kOperators)
        if (is_op(text)) op = candidate;
    }
    if (!op) break;
    take();
    rest.emplace_back(*op, sum());
    depth = std::max(depth, rest.back().second->depth);
  }
  if (rest.empty()) return first;
  return make(at, depth, Compare{std::move(first), std::move(rest)});
}

ExpressionPtr ExpressionParser::sum() {
  ExpressionPtr left = concatenation();
  while (is_op("+") || is_op("-")) {
    const Token op = take();
    ExpressionPtr right = concatenation();
    const int depth = deepest({&left, &right});
    left = make(op.at, depth,
                Binary{op.text == "+" ? BinaryOperator::add : BinaryOperator::subtract, std::move(left),
                       std::move(right)});
  }
  return left;
}

ExpressionPtr ExpressionParser::concatenation() {
  ExpressionPtr first = product();
  if (!is_op("~")) return first;
  const Position at = current().at;
  Expressions parts;
  parts.push_back(std::move(first));
  while (skip_if(TokenKind::op, "~")) parts.push_back(product());
  const int depth = deepest(parts);
  return make(at, depth, Concatenation{std::move(parts)});
}

ExpressionPtr ExpressionParser::product() {
  static const std::pair<const char*, BinaryOperator> kOperators[] = {{"*", BinaryOperator::multiply},
                                                                      {"/", BinaryOperator::divide},
                                                                      {"//", BinaryOperator::floor_divide},
                                                                      {"%", BinaryOperator::modulo}};
  ExpressionPtr left = power();
  while (true) {
    const auto* op = std::find_if(std::begin(kOperators), std::end(kOperators),
                                  [&](const auto& candidate) { return is_op(candidate.first); });
    if (op == std::end(kOperators)) return left;
    const Position at = take().at;
    ExpressionPtr right = power();
    const int depth = deepest({&left, &right});
    left = make(at, depth, Binary{op->second, std::move(left), std::move(right)});
  }
}

ExpressionPtr ExpressionParser::power() {
  ExpressionPtr left = unary();
  while (is_op("**")) {
    const Position at = take().at;
    ExpressionPtr right = unary();
    const int depth = deepest({&left, &right});
    left = make(at, depth, Binary{BinaryOperator::power, std::move(left), std::move(right)});
  }
  return left;
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  ExpressionPtr value;
  if (is_op("-") || is_op("+")) {
    const Nesting nesting(*this);
    const Token op = take();
    ExpressionPtr operand = unary(false);
    const int depth = operand->depth;
    value = make(op.at, depth,
                 Unary{op.text == "-" ? UnaryOperator::minus : UnaryOperator::plus, std::move(operand)});
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  while (with_filters) {
    if (is_op("|"))
      value = filter_chain(std::move(value), false);
    else if (is_name("is"))
      value = test(std::move(value));
    else if (is_op("("))
      value = call(std::move(value));
    else
      break;
  }
  return value;
}

ExpressionPtr ExpressionParser::primary() {
  const Position at = current().at;
  if (is(TokenKind::name)) return name_or_constant();
  if (is(TokenKind::string)) return string();
  if (is(TokenKind::integer) || is(TokenKind::floating)) return number();
  if (is_op("[")) return list();
  if (is_op("{")) return dict();
  if (!skip_if(TokenKind::op, "(")) throw error_at(at, Fault("unexpected " + described(current())));
  ExpressionPtr value = tuple(true, {}, true);
  expect(TokenKind::op, ")");
  return value;
}

ExpressionPtr ExpressionParser::name_or_constant() {
  const Token token = take();
  const std::string& name = token.text;
  if (name == "true" || name == "True") return make(token.at, 0, BoolLiteral{true});
  if (name == "false" || name == "False") return make(token.at, 0, BoolLiteral{false});
  if (name == "none" || name == "None") return make(token.at, 0, NoneLiteral{});
  if (macro_ != nullptr) {
    if (name == "varargs" || name == "kwargs")
      throw error_at(token.at, refusal(fmt::format("'{}' of a macro", name)));
    if (name == "caller") macro_->uses_caller = true;
  }
  return make(token.at, 0, Name{name});
}

ExpressionPtr ExpressionParser::number() {
  const Token token = take();
  const char* end = token.text.data() + token.text.size();
  if (token.kind == TokenKind::integer) {
    int64_t value = 0;
    if (std::from_chars(token.text.data(), end, value).ec != std::errc())
      throw error_at(token.at, refusal("an integer beyond 64 bits"));
    return make(token.at, 0, IntegerLiteral{value});
  }
  double value = 0;
  if (std::from_chars(token.text.data(), end, value).ec != std::errc())
    throw error_at(token.at, refusal("a number beyond the range of double precision"));
  return make(token.at, 0, FloatLiteral{value});
}

ExpressionPtr ExpressionParser::string() {
  const Position at = current().at;
  std::string value;
  while (is(TokenKind::string)) value += take().text;
  return make(at, 0, StringLiteral{std::make_shared<const Text>(literal(value))});
}

ExpressionPtr ExpressionParser::tuple(bool with_conditional, std::string_view end, bool in_parentheses) {
  const Position at = current().at;
  Expressions items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) expect(TokenKind::op, ",");
    if (is(TokenKind::variable_end) || is(TokenKind::block_end) || is_op(")") ||
        (!end.empty() && is_name(end)))
      break;
    items.push_back(expression(with_conditional));
    if (!is_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items.front());
  if (!is_tuple && !in_parentheses) unexpected("an expression");
  const int depth = deepest(items);
  return make(at, depth, TupleLiteral{std::move(items)});
}

ExpressionPtr ExpressionParser::list() {
  const Position at = expect(TokenKind::op, "[").at;
  Expressions items;
  while (!is_op("]")) {
    if (!items.empty()) expect(TokenKind::op, ",");
    if (is_op("]")) break;
    items.push_back(expression());
  }
  take();
  const int depth = deepest(items);
  return make(at, depth, ListLiteral{std::move(items)});
}

ExpressionPtr ExpressionParser::dict() {
  const Position at = expect(TokenKind::op, "{").at;
  DictLiteral node;
  int depth = 0;
  while (!is_op("}")) {
    if (!node.entries.empty()) expect(TokenKind::op, ",");
    if (is_op("}")) break;
    ExpressionPtr key = expression();
    expect(TokenKind::op, ":");
    ExpressionPtr value = expression();
    depth = std::max({depth, key->depth, value->depth});
    node.entries.emplace_back(std::move(key), std::move(value));
  }
  take();
  return make(at, depth, std::move(node));
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr value) {
  while (true) {
    if (is_op(".") || is_op("["))
      value = subscript(std::move(value));
    else if (is_op("("))
      value = call(std::move(value));
    else
      return value;
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr object) {
  const Token token = take();
  if (token.text == ".") {
    const int depth = object->depth;
    if (is(TokenKind::name)) return make(token.at, depth, Attribute{std::move(object), take().text});
    if (!is(TokenKind::integer)) unexpected("a name or a number");
    return make(token.at, depth, Item{std::move(object), number()});
  }
  ExpressionPtr bounds[3];
  size_t bound = 0;
  while (!is_op("]") && !is_op(",")) {
    if (is_op(":")) {
      if (++bound > 2) unexpected("']'");
      take();
    } else {
      if (bounds[bound]) unexpected("']'");
      bounds[bound] = expression();
    }
  }
  if (is_op(",")) throw error_at(current().at, refusal("a tuple as index"));
  const int depth = std::max(object->depth, deepest({&bounds[0], &bounds[1], &bounds[2]}));
  if (bound == 0 && !bounds[0]) throw error_at(token.at, refusal("an empty index"));
  take();
  if (bound == 0) return make(token.at, depth, Item{std::move(object), std::move(bounds[0])});
  return make(token.at, depth,
              SliceItem{std::move(object), std::move(bounds[0]), std::move(bounds[1]), std::move(bounds[2])});
}

Arguments ExpressionParser::arguments() {
  expect(TokenKind::op, "(");
  Arguments result;
  bool first = true;
  while (!is_op(")")) {
    if (!first) {
      expect(TokenKind::op, ",");
      if (is_op(")")) break;
    }
    first = false;
    if (result.positional.size() + result.named.size() == kArgumentsMax)
      throw error_at(current().at, Fault(fmt::format("a call has more than {} arguments", kArgumentsMax),
                                         FaultKind::exhausted));
    if (is_op("*") || is_op("**"))
      throw error_at(current().at, refusal(fmt::format("'{}' in front of an argument", current().text)));
    if (is(TokenKind::name) && matches(look(), TokenKind::op, "=")) {
      std::string name = take().text;
      take();
      if (std::any_of(result.named.begin(), result.named.end(),
                      [&](const auto& argument) { return argument.first == name; }))
        throw error_at(current().at, Fault(fmt::format("argument '{}' is given twice", name)));
      ExpressionPtr value = expression();
      result.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!result.named.empty())
        throw error_at(current().at, Fault("an argument without a name stands behind one with a name"));
      result.positional.push_back(expression());
    }
  }
  take();
  return result;
}

ExpressionPtr ExpressionParser::call(ExpressionPtr callee) {
  const Position at = current().at;
  Arguments given = arguments();
  const int depth = std::max(callee->depth, deepest(given));
  return make(at, depth, Call{std::move(callee), std::move(given)});
}

ExpressionPtr ExpressionParser::filter_chain(ExpressionPtr value, bool starts_with_name) {
  while (starts_with_name || is_op("|")) {
    if (!starts_with_name) take();
    starts_with_name = false;
    const Token name = expect(TokenKind::name);
    if (is_op(".")) throw error_at(name.at, refusal("a filter with a dot in its name"));
    note_unless_known(name, true);
    Arguments given;
    if (is_op("(")) given = arguments();
    const int depth = std::max(deepest({&value}), deepest(given));
    value = make(name.at, depth, FilterUse{std::move(value), name.text, std::move(given)});
  }
  return value;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr value) {
  const Position at = take().at;
  const bool negated = skip_if(TokenKind::name, "not");
  const Token name = expect(TokenKind::name);
  if (is_op(".")) throw error_at(name.at, refusal("a test with a dot in its name"));
  note_unless_known(name, false);
  Arguments given;
  if (is_op("(")) {
    given = arguments();
  } else if ((is(TokenKind::name) && !is_name("else") && !is_name("or") && !is_name("and")) ||
             is(TokenKind::string) || is(TokenKind::integer) || is(TokenKind::floating) || is_op("[") ||
             is_op("{")) {
    if (is_name("is")) throw error_at(current().at, Fault("tests with 'is' cannot be chained"));
    const Nesting nesting(*this);
    given.positional.push_back(postfix(primary()));
  }
  const int depth = std::max(value->depth, deepest(given));
  ExpressionPtr result = make(at, depth, TestUse{std::move(value), name.text, std::move(given)});
  if (negated) result = make(at, depth + 1, Unary{UnaryOperator::negation, std::move(result)});
  return result;
}

}  // namespace sluice::jinja
