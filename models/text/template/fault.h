// How a chat template fails.
//
// Operations on values know what is wrong but not where, so they throw Fault. The parser and the interpreter
// know the place, and turn a Fault into the Error(malformed_file), with line and column, that callers see.
// Callers: everything in this folder; nothing outside sees a Fault.
#pragma once

#include <stdexcept>
#include <string>

#include "engine/base/error.h"

namespace sluice::jinja {

struct Position {
  size_t line = 1, column = 1;  // from 1, in code points
};

enum class FaultKind : uint8_t {
  failed,     // jinja2 fails here, too
  refused,    // outside the subset
  raised,     // the template called raise_exception()
  exhausted,  // a limit of limits.h
};

class Fault : public std::runtime_error {
 public:
  // `what` is a clause without a full stop; what it quotes need not be printable.
  explicit Fault(const std::string& what, FaultKind kind = FaultKind::failed)
      : std::runtime_error(what), kind_(kind) {}
  FaultKind kind() const { return kind_; }

 private:
  FaultKind kind_;
};

// `construct` names what is outside the subset, for example "filter 'urlize'".
Fault refusal(const std::string& construct);

Error error_at(Position at, const Fault& fault);

}  // namespace sluice::jinja
