#include "models/text/tokenizer/counted_pattern.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <stdexcept>

namespace sluice {
namespace {

constexpr const char* kCallout = "(?{n})";
constexpr std::string_view kCallouts[] = {"(?{", "(*"};
constexpr std::string_view kLookAround[] = {"(?=", "(?!", "(?<=", "(?<!"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

class Rewriter {
 public:
  explicit Rewriter(std::string_view source) : source_(source) {}

  std::string whole() {
    pass();  // finds what is possessive, from the quantifiers behind it
    at_ = 0;
    to_.clear();
    pass();
    return std::move(to_);
  }

 private:
  bool ends() const { return at_ >= source_.size(); }
  bool stands(std::string_view text) const { return source_.substr(at_).starts_with(text); }
  [[noreturn]] static void refuse(const char* what) { throw std::invalid_argument(what); }
  void copy(size_t bytes) {
    bytes = std::min(bytes, source_.size() - at_);
    to_ += source_.substr(at_, bytes);
    at_ += bytes;
  }
  void copy_through(char last) {
    const size_t end = source_.find(last, at_);
    copy(end == std::string_view::npos ? source_.size() : end + 1 - at_);
  }

  void pass() {
    alternatives(0, false);
    while (!ends()) copy(1);  // a group is closed that is not open: Oniguruma complains about it
  }

  // Rewrites up to the end of the group. `atomic`: no loop in it can be backtracked into.
  void alternatives(int depth, bool atomic) {
    constexpr int kDepthMax = 200;  // published patterns have up to 4
    if (depth > kDepthMax) refuse("groups that are nested too deeply");
    while (!ends() && source_[at_] != ')') {
      if (source_[at_] == '|')
        copy(1);
      else
        quantified(depth, atomic);
    }
  }

  // Rewrites an atom with its quantifiers.
  void quantified(int depth, bool atomic) {
    const size_t begin = at_, written = to_.size();
    atomic |= possessive_.contains(begin);
    atom(depth, atomic);
    const Quantifiers found = quantifiers();
    if (found.bytes == 0) return;
    if (found.is_possessive) possessive_.insert(begin);
    if (atomic) {
      to_.insert(written, std::string("(?:") + kCallout);
      to_ += ')';
    }
    copy(found.bytes);
    const bool ends_pattern = ends() || (depth == 0 && source_[at_] == '|');
    if (found.is_loop && !ends_pattern) to_ += kCallout;
  }

  void atom(int depth, bool atomic) {
    const char c = source_[at_];
    if (c == '\\')
      escape();
    else if (c == '[')
      character_class();
    else if (c == '(')
      group(depth, atomic);
    else
      copy(1);  // a quantifier stands behind the last byte of a character
    while (!ends() && (source_[at_] & 0xC0) == 0x80) copy(1);
  }

  void escape() {
    const char kind = at_ + 1 < source_.size() ? source_[at_ + 1] : '\0';
    if ((kind >= '1' && kind <= '9') || kind == 'k') refuse("back-references");
    if (kind == 'g') refuse("calls of groups");
    if (kind == 'X' || kind == 'y' || kind == 'Y') refuse("text segments");
    if (kind == 'c' || kind == 'C' || kind == 'M') refuse("control characters by their letters");
    const bool has_braces = at_ + 2 < source_.size() && source_[at_ + 2] == '{';
    copy(2);
    if ((kind == 'p' || kind == 'P' || kind == 'x' || kind == 'o') && has_braces) {
      const size_t begin = at_;
      copy_through('}');
      if (kind != 'p' && kind != 'P' &&
          source_.substr(begin, at_ - begin).find(' ') != std::string_view::npos)
        refuse("several characters in one escape");
    } else if (kind == 'x' || kind == 'u' || kind == '0') {
      const size_t most = kind == 'u' ? 4 : 2;
      for (size_t i = 0; i < most && !ends() && is_hex(source_[at_]); ++i) {
        if (kind == '0' && source_[at_] > '7') break;
        copy(1);
      }
    }
  }

  // A class may have classes in it. A ] that stands first is one of its characters.
  void character_class() {
    for (int open = 0; !ends();) {
      const char c = source_[at_];
      if (c == '[' && open > 0 && stands("[:")) {
        named_class();
      } else if (c == '[') {
        ++open;
        copy(stands("[^") ? 2 : 1);
        if (stands("]")) copy(1);
      } else {
        copy(c == '\\' ? 2 : 1);
        if (c == ']' && --open == 0) return;
      }
    }
  }

  // [:alpha:]
  void named_class() {
    const size_t end = source_.find_first_not_of("^abcdefghijklmnopqrstuvwxyz", at_ + 2);
    if (end == std::string_view::npos || !source_.substr(end).starts_with(":]"))
      refuse("a class that begins with [:");
    copy(end + 2 - at_);
  }

  void group(int depth, bool atomic) {
    for (const std::string_view callout : kCallouts)
      if (stands(callout)) refuse("callouts");
    if (stands("(?#")) return copy_through(')');
    if (stands("(?(")) refuse("conditions");
    if (stands("(?~")) refuse("absent groups");
    if (stands("(?y")) refuse("text segments");
    const bool looks = std::any_of(std::begin(kLookAround), std::end(kLookAround),
                                   [&](std::string_view begin) { return stands(begin); });
    const bool is_atomic = atomic || looks || stands("(?>");
    if (looks) {
      copy(stands("(?<") ? 4 : 3);
    } else if (stands("(?<") || stands("(?'")) {
      const char last = source_[at_ + 2] == '<' ? '>' : '\'';
      copy(3);
      copy_through(last);
    } else if (stands("(?")) {
      copy(2);
      options();
    } else {
      copy(1);
    }
    if (!ended_) alternatives(depth + 1, is_atomic);
    ended_ = false;
    if (!ends()) copy(1);
  }

  // Copies what stands between (? and the group's content or end, such as "i:", ">" or "i".
  void options() {
    while (!ends()) {
      const char c = source_[at_];
      if (c == ')') {
        ended_ = true;
        return;
      }
      if (c == 'x') refuse("extended syntax, (?x)");
      copy(1);
      if (c == ':' || c == '>') return;
    }
  }

  struct Quantifiers {
    size_t bytes = 0;
    bool is_loop = false, is_possessive = false;
  };

  // All quantifiers that stand here. A + behind another quantifier may make that quantifier possessive, or
  // be a further loop. It counts as both.
  Quantifiers quantifiers() const {
    Quantifiers found;
    for (size_t at = at_; at < source_.size(); at = at_ + found.bytes) {
      const char c = source_[at];
      const size_t bytes = c == '{' ? interval(at) : c == '?' || c == '*' || c == '+' ? 1 : 0;
      if (bytes == 0) break;
      found.is_loop |= c != '?';
      found.is_possessive |= c == '+' && found.bytes > 0;
      found.bytes += bytes;
    }
    return found;
  }

  // Returns the length of {2}, {2,}, {,3} or {2,3}; 0: it is text.
  size_t interval(size_t begin) const {
    size_t at = begin + 1, digits = 0, commas = 0;
    for (; at < source_.size() && (is_digit(source_[at]) || source_[at] == ','); ++at)
      ++(source_[at] == ',' ? commas : digits);
    const bool is_one = digits > 0 && commas <= 1 && at < source_.size() && source_[at] == '}';
    return is_one ? at + 1 - begin : 0;
  }

  std::string_view source_;
  size_t at_ = 0;
  bool ended_ = false;           // the group has options alone, as (?i)
  std::set<size_t> possessive_;  // where possessive atoms begin
  std::string to_;
};

}  // namespace

std::string counted_pattern(std::string_view source) { return Rewriter(source).whole(); }

}  // namespace sluice
