// Tokens of a template, as jinja2's lexer yields them with trim_blocks and lstrip_blocks.
//
// White space around tags is already stripped, comments and raw tags are gone: what is left between tags is
// one data token. Caller: the parser.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/text/template/fault.h"

namespace sluice::jinja {

enum class TokenKind : uint8_t {
  data,
  block_begin,     // {%
  block_end,       // %}
  variable_begin,  // {{
  variable_end,    // }}
  name,
  string,  // text is without quotes and escapes
  integer,
  floating,
  op,  // operator or bracket
  end,
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text = {};
  Position at = {};
};

// The last token is `end`. Throws Error.
std::vector<Token> tokenize(const std::string& source);

}  // namespace sluice::jinja
