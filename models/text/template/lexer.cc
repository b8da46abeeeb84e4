#include "models/text/template/lexer.h"

#include <array>
#include <string_view>

#include "models/text/template/limits.h"
#include "models/text/template/unicode.h"

namespace sluice::jinja {
namespace {

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

// \r\n and \r become \n, and the last line break goes, as jinja2 has it.
std::string with_plain_newlines(const std::string& source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    out += source[i] == '\r' ? '\n' : source[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) data_and_tag();
    add(TokenKind::end, "", at_);
    return std::move(tokens_);
  }

 private:
  // ---- Places ----

  // Positions are asked for in ascending order, so each byte of the source is counted once.
  Position position(size_t byte) {
    for (; counted_ < byte; ++counted_) {
      if (source_[counted_] == '\n') {
        ++place_.line;
        place_.column = 1;
      } else if ((source_[counted_] & 0xC0) != 0x80) {
        ++place_.column;
      }
    }
    return place_;
  }
  [[noreturn]] void fail(const std::string& what) { throw error_at(position(at_), Fault(what)); }
  [[noreturn]] void refuse(const std::string& what) { throw error_at(position(at_), refusal(what)); }

  void add(TokenKind kind, std::string text, size_t byte) {
    tokens_.push_back({kind, std::move(text), position(byte)});
  }
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool take(std::string_view text) {
    if (!rest().starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  void skip_space() { at_ += leading_space(rest()); }

  // ---- Data between tags ----

  // Adds text [begin, end), which stands in front of a tag with that sign, less the white space that the tag
  // strips.
  void add_data(size_t begin, size_t end, char sign, bool is_variable) {
    std::string_view text = std::string_view(source_).substr(begin, end - begin);
    if (sign == '-') {
      text.remove_suffix(trailing_space(text));
    } else if (sign != '+' && !is_variable) {
      const size_t newline = text.rfind('\n');
      const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
      if ((line > 0 || line_starting_) && leading_space(text.substr(line)) == text.size() - line)
        text = text.substr(0, line);
    }
    if (!text.empty()) add(TokenKind::data, std::string(text), begin);
  }

  char take_sign() {
    if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) return source_[at_++];
    return '\0';
  }

  void data_and_tag() {
    const size_t begin = at_;
    size_t tag = source_.find('{', begin);
    while (tag != std::string::npos && (tag + 1 == source_.size() || !is_tag(source_[tag + 1])))
      tag = source_.find('{', tag + 1);
    if (tag == std::string::npos) {
      add(TokenKind::data, source_.substr(begin), begin);
      at_ = source_.size();
      return;
    }
    const char kind = source_[tag + 1];
    at_ = tag + 2;
    const char sign = take_sign();
    add_data(begin, tag, sign, kind == '{');
    line_starting_ = false;
    if (kind == '#') {
      comment();
    } else if (kind == '{') {
      add(TokenKind::variable_begin, "{{", tag);
      inside(TokenKind::variable_end);
    } else if (!raw()) {
      add(TokenKind::block_begin, "{%", tag);
      inside(TokenKind::block_end);
    }
  }
  static bool is_tag(char c) { return c == '%' || c == '{' || c == '#'; }

  // Takes the end of a block, or of a comment if `kind` is '#': "+%}"; "-%}" with the space behind it; or
  // "%}" with a newline behind it, if there is one.
  bool take_end(char kind) {
    const size_t begin = at_;
    const char sign = take_sign();
    if (!take(std::string{kind, '}'})) {
      at_ = begin;
      return false;
    }
    if (sign == '-')
      skip_space();
    else if (sign == '\0')
      take("\n");
    line_starting_ = source_[at_ - 1] == '\n';
    return true;
  }
  bool take_variable_end() {
    if (take("-}}"))
      skip_space();
    else if (!take("}}"))
      return false;
    line_starting_ = source_[at_ - 1] == '\n';
    return true;
  }

  void comment() {
    const size_t begin = at_;
    for (; at_ < source_.size(); ++at_)
      if (take_end('#')) return;
    at_ = begin;
    fail("a comment has no end");
  }

  // {% raw %}: at_ is behind "{%" and its sign.
  bool raw() {
    const size_t begin = at_;
    skip_space();
    if (take("raw")) {
      skip_space();
      const bool strips = take("-");
      if (take("%}")) {
        if (strips) skip_space();
        line_starting_ = source_[at_ - 1] == '\n';
        raw_body();
        return true;
      }
    }
    at_ = begin;
    return false;
  }
  void raw_body() {
    const size_t begin = at_;
    for (size_t tag = source_.find("{%", begin); tag != std::string::npos;
         tag = source_.find("{%", tag + 1)) {
      at_ = tag + 2;
      const bool was_line_starting = line_starting_;
      const char sign = take_sign();
      skip_space();
      if (!take("endraw")) continue;
      skip_space();
      if (!take_end('%')) continue;
      const bool ends_line = line_starting_;
      line_starting_ = was_line_starting;
      add_data(begin, tag, sign, false);
      line_starting_ = ends_line;
      return;
    }
    at_ = begin;
    fail("a raw block has no end");
  }

  // ---- Inside of tags ----

  void inside(TokenKind end) {
    brackets_.clear();
    while (at_ < source_.size()) {
      const size_t begin = at_;
      if (brackets_.empty() && (end == TokenKind::block_end ? take_end('%') : take_variable_end())) {
        add(end, end == TokenKind::block_end ? "%}" : "}}", begin);
        return;
      }
      skip_space();
      if (at_ == begin) token();
    }
  }

  void token() {
    const char c = source_[at_];
    if (is_digit(c))
      number();
    else if (is_name_start(c))
      name();
    else if (c == '\'' || c == '"')
      string();
    else if (static_cast<unsigned char>(c) >= 0x80)
      refuse("a character beyond ASCII outside of strings");
    else
      op();
  }

  void name() {
    const size_t begin = at_;
    while (at_ < source_.size() && is_name_part(source_[at_])) ++at_;
    if (at_ < source_.size() && static_cast<unsigned char>(source_[at_]) >= 0x80)
      refuse("a name with characters beyond ASCII");
    if (at_ - begin > kNameBytesMax) {
      at_ = begin;
      refuse("a name of more than " + std::to_string(kNameBytesMax) + " bytes");
    }
    add(TokenKind::name, source_.substr(begin, at_ - begin), begin);
  }

  // Digits in groups that single underscores separate. Returns where they end; `from` if there are none.
  size_t digits_end(size_t from, bool (*is_one)(char)) const {
    size_t end = from;
    while (end < source_.size() && is_one(source_[end])) {
      ++end;
      if (end + 1 < source_.size() && source_[end] == '_' && is_one(source_[end + 1])) ++end;
    }
    return end;
  }

  // Where the floating-point literal at at_ ends; at_ if there is none.
  size_t float_end() const {
    if (at_ > 0 && source_[at_ - 1] == '.') return at_;
    size_t end = digits_end(at_, is_digit);
    bool is_float = false;
    if (end < source_.size() && source_[end] == '.') {
      const size_t fraction = digits_end(end + 1, is_digit);
      if (fraction > end + 1) {
        is_float = true;
        end = fraction;
      }
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
      const size_t exponent_end = digits_end(exponent, is_digit);
      if (exponent_end > exponent) {
        is_float = true;
        end = exponent_end;
      }
    }
    return is_float ? end : at_;
  }

  void number() {
    const size_t begin = at_;
    TokenKind kind = TokenKind::floating;
    size_t end = float_end();
    if (end == begin) {
      kind = TokenKind::integer;
      const char next = begin + 1 < source_.size() ? source_[begin + 1] : '\0';
      if (source_[begin] == '0' && std::string_view("bBoOxX").find(next) != std::string_view::npos && next)
        refuse("an integer that is not decimal");
      end = digits_end(begin, source_[begin] == '0' ? [](char c) { return c == '0'; } : is_digit);
    }
    std::string text;
    for (size_t i = begin; i < end; ++i)
      if (source_[i] != '_') text += source_[i];
    at_ = end;
    add(kind, std::move(text), begin);
  }

  void string() {
    const size_t begin = at_;
    const char quote = source_[at_++];
    std::string text;
    while (at_ < source_.size() && source_[at_] != quote) {
      if (source_[at_] == '\\' && at_ + 1 < source_.size())
        escape(text);
      else
        text += source_[at_++];
    }
    if (at_ == source_.size()) {
      at_ = begin;
      fail("a string has no end");
    }
    ++at_;
    add(TokenKind::string, std::move(text), begin);
  }

  // One escape sequence of a Python string, at_ on its backslash.
  void escape(std::string& text) {
    static constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
    const char c = source_[at_ + 1];
    if (const size_t simple = kFrom.find(c); simple != std::string_view::npos) {
      text += kTo[simple];
      at_ += 2;
    } else if (c == '\n') {
      at_ += 2;
    } else if (c >= '0' && c <= '7') {
      numeric_escape(text, at_ + 1, 1, 3, 8);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t length = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      numeric_escape(text, at_ + 2, length, length, 16);
    } else if (c == 'N') {
      refuse("the escape \\N of a string");
    } else {  // Python keeps the backslash
      text += '\\';
      ++at_;
    }
  }
  void numeric_escape(std::string& text, size_t from, size_t least, size_t most, unsigned base) {
    char32_t code = 0;
    size_t n = 0;
    for (; n < most && from + n < source_.size(); ++n) {
      const char c = source_[from + n];
      const unsigned digit = is_digit(c)            ? static_cast<unsigned>(c - '0')
                             : c >= 'a' && c <= 'f' ? static_cast<unsigned>(c - 'a') + 10
                             : c >= 'A' && c <= 'F' ? static_cast<unsigned>(c - 'A') + 10
                                                    : base;
      if (digit >= base) break;
      code = code * base + digit;
    }
    if (n < least) fail("an escape in a string lacks digits");
    if (code > 0x10FFFF) fail("an escape in a string is no code point");
    if (code >= 0xD800 && code < 0xE000) refuse("a surrogate in a string");
    append_code_point(text, code);
    at_ = from + n;
  }

  void op() {
    static constexpr std::array<std::string_view, 6> kPairs = {"//", "**", "==", "!=", ">=", "<="};
    const size_t begin = at_;
    const char c = source_[begin];
    for (const std::string_view pair : kPairs)
      if (take(pair)) return add(TokenKind::op, std::string(pair), begin);
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos)
      fail(std::string("unexpected character '") + c + "'");
    if (c == '(' || c == '[' || c == '{') {
      brackets_ += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (brackets_.empty() || brackets_.back() != c) fail(std::string("unexpected '") + c + "'");
      brackets_.pop_back();
    }
    ++at_;
    add(TokenKind::op, std::string(1, c), begin);
  }

  const std::string source_;
  std::vector<Token> tokens_;
  size_t at_ = 0, counted_ = 0;
  Position place_;             // of byte counted_
  bool line_starting_ = true;  // the tag before ended a line, or there is no tag before
  std::string brackets_;       // open ones, which are to be closed
};

}  // namespace

std::vector<Token> tokenize(const std::string& source) {
  if (source.size() > kSourceBytesMax)
    throw error_at({}, Fault("it has more than " + std::to_string(kSourceBytesMax) + " bytes"));
  if (!is_utf8(source)) throw error_at({}, Fault("it is not UTF-8"));
  return Lexer(with_plain_newlines(source)).run();
}

}  // namespace sluice::jinja
