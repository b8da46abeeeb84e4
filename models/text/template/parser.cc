#include "models/text/template/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>

#include "models/text/template/expression_parser.h"
#include "models/text/template/limits.h"

namespace sluice::jinja {
namespace {

class Parser : private ExpressionParser {
 public:
  explicit Parser(const std::string& source) : ExpressionParser(tokenize(source)) {}

  Template run() {
    Template result{block({})};
    if (!is(TokenKind::end)) unknown_tag({});
    return result;
  }

 private:
  using Names = std::initializer_list<const char*>;
  bool is_one_of(Names names) const {
    return std::any_of(names.begin(), names.end(), [&](const char* name) { return is_name(name); });
  }

  // Statements up to a tag that starts with one of `ends`; the current token is then the tag's name.
  Block block(Names ends) {
    const Nesting nesting(*this);
    Block result;
    while (!is(TokenKind::end)) {
      if (is(TokenKind::data)) {
        Token token = take();
        result.push_back({token.at, Data{std::move(token.text)}});
      } else if (is(TokenKind::variable_begin)) {
        const Position at = take().at;
        ExpressionPtr value = tuple(true, {}, false);
        settle_unknown();
        expect(TokenKind::variable_end);
        result.push_back({at, Output{std::move(value)}});
      } else {
        take();  // block_begin
        if (is_one_of(ends)) return result;
        result.push_back(statement(ends));
        expect(TokenKind::block_end);
      }
    }
    return result;
  }

  // The body of a statement: from the end of its tag to the tag that starts with one of `ends`.
  Block body(Names ends) {
    settle_unknown();
    skip_if(TokenKind::op, ":");
    expect(TokenKind::block_end);
    Block result = block(ends);
    if (is(TokenKind::end)) unexpected(fmt::format("'{{% {} %}}'", *(ends.end() - 1)));
    return result;
  }
  Block whole_body(const char* end) {
    Block result = body({end});
    take();
    return result;
  }

  Statement statement(Names ends) {
    if (!is(TokenKind::name)) unexpected("the name of a statement");
    static const std::pair<const char*, Statement (Parser::*)(Position)> kStatements[] = {
        {"for", &Parser::for_loop},
        {"if", &Parser::if_branches},
        {"set", &Parser::set},
        {"macro", &Parser::macro},
        {"call", &Parser::call_block},
        {"filter", &Parser::filter_block},
        {"break", &Parser::loop_control},
        {"continue", &Parser::loop_control},
        {"generation", &Parser::generation}};
    for (const auto& [name, parse] : kStatements)
      if (is_name(name)) return (this->*parse)(current().at);
    static constexpr std::array kRefused = {"block", "extends",    "print", "include", "from", "import",
                                            "with",  "autoescape", "do",    "trans",   "debug"};
    for (const char* name : kRefused)
      if (is_name(name)) throw error_at(current().at, refusal(fmt::format("statement '{}'", name)));
    unknown_tag(ends);
  }

  [[noreturn]] void unknown_tag(Names ends) const {
    if (ends.size() == 0)
      throw error_at(current().at, Fault(fmt::format("there is no statement '{}'", current().text)));
    unexpected(fmt::format("'{}'", *(ends.end() - 1)));
  }

  // ---- Statements: the current token is the name ----

  Statement for_loop(Position at) {
    take();
    For node;
    node.target = target("in", false);
    expect(TokenKind::name, "in");
    node.iterable = tuple(false, "recursive", false);
    if (skip_if(TokenKind::name, "if")) node.condition = expression();
    if (is_name("recursive")) throw error_at(current().at, refusal("a recursive loop"));
    settle_unknown();
    {
      const Inner inner(*this, true, is_buffered_, false);
      node.body = body({"else", "endfor"});
    }
    if (take().text == "else") {
      const Inner inner(*this, in_loop_, is_buffered_, false);
      node.otherwise = whole_body("endfor");
    }
    return {at, std::move(node)};
  }

  Statement if_branches(Position at) {
    If node;
    const Inner inner(*this, in_loop_, is_buffered_, true);
    do {
      take();
      ExpressionPtr condition = tuple(false, {}, false);
      Block then = body({"elif", "else", "endif"});
      node.branches.emplace_back(std::move(condition), std::move(then));
    } while (is_name("elif"));
    if (take().text == "else") node.otherwise = whole_body("endif");
    return {at, std::move(node)};
  }

  Statement set(Position at) {
    take();
    Target to = target({}, true);
    if (skip_if(TokenKind::op, "=")) {
      ExpressionPtr value = tuple(true, {}, false);
      settle_unknown();
      return {at, Set{std::move(to), std::move(value)}};
    }
    ExpressionPtr filters = filter_chain(nullptr, false);
    settle_unknown();
    const Inner inner(*this, in_loop_, true, false);
    return {at, SetBlock{std::move(to), std::move(filters), whole_body("endset")}};
  }

  Statement macro(Position at) {
    take();
    auto definition = std::make_unique<MacroDefinition>();
    definition->name = assignable(expect(TokenKind::name));
    definition->parameters = parameters();
    macro_body(*definition, "endmacro");
    return {at, Macro{std::move(definition)}};
  }

  Statement call_block(Position at) {
    take();
    auto definition = std::make_unique<MacroDefinition>();
    definition->name = "caller";
    if (is_op("(")) definition->parameters = parameters();
    ExpressionPtr call = expression();
    if (!std::holds_alternative<Call>(call->node)) throw error_at(call->at, Fault("expected a call"));
    settle_unknown();
    macro_body(*definition, "endcall");
    return {at, CallBlock{std::move(call), std::move(definition)}};
  }

  Statement filter_block(Position at) {
    take();
    ExpressionPtr filters = filter_chain(nullptr, true);
    settle_unknown();
    const Inner inner(*this, in_loop_, true, false);
    return {at, FilterBlock{std::move(filters), whole_body("endfilter")}};
  }

  Statement generation(Position at) {
    // In a block that is rendered apart, the spans would be of a string that is not the output yet;
    // transformers counts such spans wrongly.
    if (is_buffered_)
      throw error_at(at, refusal("'generation' inside of another block that is rendered apart"));
    take();
    // The block's body is a function in jinja2, so break and continue in the body cannot reach a loop around
    // it.
    const Inner inner(*this, false, true, false);
    return {at, Generation{whole_body("endgeneration")}};
  }

  Statement loop_control(Position at) {
    const bool is_break = take().text == "break";
    if (!in_loop_)
      throw error_at(at, Fault(fmt::format("'{}' outside of a loop", is_break ? "break" : "continue")));
    return is_break ? Statement{at, Break{}} : Statement{at, Continue{}};
  }

  // ---- Parts of statements ----

  std::string assignable(const Token& name) const {
    for (const char* constant : {"true", "false", "none", "True", "False", "None"})
      if (name.text == constant)
        throw error_at(name.at, Fault(fmt::format("cannot assign to '{}'", constant)));
    return name.text;
  }

  // A name, an attribute of a namespace, or a tuple of these, up to the name `end`.
  Target target(std::string_view end, bool with_attributes) {
    const Position at = current().at;
    std::vector<Target> parts;
    bool is_tuple = false;
    while (is(TokenKind::name) || is_op("(")) {
      if (!end.empty() && is_name(end)) break;
      parts.push_back(single_target(with_attributes));
      if (!skip_if(TokenKind::op, ",")) break;
      is_tuple = true;
    }
    if (is_tuple) return {at, std::move(parts)};
    if (parts.empty()) unexpected("a name to assign to");
    return std::move(parts.front());
  }
  Target single_target(bool with_attributes) {
    const Nesting nesting(*this);
    if (is_op("(")) {
      take();
      Target inside = target({}, with_attributes);
      expect(TokenKind::op, ")");
      return inside;
    }
    const Token name = take();
    if (with_attributes && skip_if(TokenKind::op, "."))
      return {name.at, Target::Attribute{name.text, expect(TokenKind::name).text}};
    return {name.at, assignable(name)};
  }

  std::vector<Parameter> parameters() {
    expect(TokenKind::op, "(");
    std::vector<Parameter> result;
    while (!is_op(")")) {
      if (!result.empty()) expect(TokenKind::op, ",");
      const Token token = expect(TokenKind::name);
      if (result.size() == kArgumentsMax)
        throw error_at(token.at, Fault(fmt::format("a macro has more than {} parameters", kArgumentsMax),
                                       FaultKind::exhausted));
      Parameter parameter{assignable(token), nullptr};
      if (std::any_of(result.begin(), result.end(), [&](const Parameter& p) { return p.name == token.text; }))
        throw error_at(token.at, Fault(fmt::format("parameter '{}' is given twice", token.text)));
      if (skip_if(TokenKind::op, "="))
        parameter.fallback = expression();
      else if (!result.empty() && result.back().fallback)
        throw error_at(token.at, Fault("a parameter without a default stands behind one with a default"));
      result.push_back(std::move(parameter));
    }
    take();
    return result;
  }

  void macro_body(MacroDefinition& definition, const char* end) {
    const Inner inner(*this, false, true, false);
    MacroDefinition* const outer = std::exchange(macro_, &definition);
    definition.body = whole_body(end);
    macro_ = outer;
    if (outer != nullptr && definition.uses_caller) outer->uses_caller = true;
  }

  // Sets what a statement's body may hold, while the body is parsed.
  class Inner {
   public:
    Inner(Parser& parser, bool in_loop, bool is_buffered, bool in_branch)
        : parser_(parser),
          was_in_loop_(std::exchange(parser.in_loop_, in_loop)),
          was_buffered_(std::exchange(parser.is_buffered_, is_buffered)),
          was_in_branch_(std::exchange(parser.in_branch_, in_branch)) {}
    ~Inner() {
      parser_.in_loop_ = was_in_loop_;
      parser_.is_buffered_ = was_buffered_;
      parser_.in_branch_ = was_in_branch_;
    }
    Inner(const Inner&) = delete;
    Inner& operator=(const Inner&) = delete;

   private:
    Parser& parser_;
    bool was_in_loop_, was_buffered_, was_in_branch_;
  };

  bool in_loop_ = false;      // break and continue may stand here
  bool is_buffered_ = false;  // what this renders is not appended to the output directly
};

}  // namespace

Template parse_template(const std::string& source) { return Parser(source).run(); }

}  // namespace sluice::jinja
