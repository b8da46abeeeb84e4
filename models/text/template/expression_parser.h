// Parses the expressions inside of tags; the base of the parser of statements.
//
// Caller: parser.cc.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "models/text/template/ast.h"
#include "models/text/template/lexer.h"

namespace sluice::jinja {

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // ---- Tokens ----
  const Token& current() const { return tokens_[next_]; }
  const Token& look() const { return tokens_[std::min(next_ + 1, tokens_.size() - 1)]; }
  Token take();
  bool is(TokenKind kind, std::string_view text = {}) const { return matches(current(), kind, text); }
  bool is_name(std::string_view text) const { return is(TokenKind::name, text); }
  bool is_op(std::string_view text) const { return is(TokenKind::op, text); }
  bool skip_if(TokenKind kind, std::string_view text);
  Token expect(TokenKind kind, std::string_view text = {});
  [[noreturn]] void unexpected(const std::string& expected) const;

  // ---- Expressions ----
  ExpressionPtr expression(bool with_conditional = true);
  // An expression, or a tuple without parentheses, which ends before the name `end` if that is not empty.
  ExpressionPtr tuple(bool with_conditional, std::string_view end, bool in_parentheses);
  ExpressionPtr filter_chain(ExpressionPtr value, bool starts_with_name);

  // Counts nested constructs while it lives.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser);
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

  // A filter or test that jinja2 does not know is a fault of the template. In a branch of an if or of a
  // conditional expression, it is a fault only if it is evaluated. Call this when the expressions of a tag
  // are parsed.
  void settle_unknown();
  bool in_branch_ = false;
  // The macro whose body is being parsed, or null.
  MacroDefinition* macro_ = nullptr;

 private:
  static bool matches(const Token& token, TokenKind kind, std::string_view text) {
    return token.kind == kind && (text.empty() || token.text == text);
  }
  // The depth of the deepest part.
  static int deepest(std::initializer_list<const ExpressionPtr*> parts);
  static int deepest(const Expressions& parts);
  static int deepest(const Arguments& arguments);
  // `depth` is the depth of the deepest part. Chains like a + b + c make deep trees without recursion of the
  // parser, so the depth is bounded here, too.
  template <typename Node>
  static ExpressionPtr make(Position at, int depth, Node node);
  void note_unless_known(const Token& name, bool is_filter);

  ExpressionPtr conditional();
  ExpressionPtr disjunction();
  ExpressionPtr conjunction();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters = true);
  ExpressionPtr primary();
  ExpressionPtr name_or_constant();
  ExpressionPtr number();
  ExpressionPtr string();
  ExpressionPtr list();
  ExpressionPtr dict();
  ExpressionPtr postfix(ExpressionPtr value);
  ExpressionPtr subscript(ExpressionPtr object);
  ExpressionPtr call(ExpressionPtr callee);
  ExpressionPtr test(ExpressionPtr value);
  Arguments arguments();

  std::vector<Token> tokens_;
  size_t next_ = 0;
  int nesting_ = 0;
  struct Unknown {
    Position at;
    std::string what;
  };
  std::vector<Unknown> unknown_;  // since the last settle_unknown()
};

}  // namespace sluice::jinja
