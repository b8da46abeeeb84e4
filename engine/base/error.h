// Errors that a user can act on, and checks of internal invariants.
//
// One rule holds for all functions that are called before the first step: they may allocate and throw, any
// thread may call them, and an object belongs to one thread at a time. A header says only where its functions
// differ from this rule.
//
// Set-up errors are exceptions: one sentence of what is wrong, one of what to do, and the exit code of the
// command-line contract. Few callers can go on after a failure; the others let the exception pass to main.
// CHECK guards internal invariants, stays on in release builds, and ends the process with exit code 1: a
// failed CHECK is a bug in Sluice, never a condition of the environment.
#pragma once

#include <stdexcept>
#include <string>

namespace sluice {

enum class ExitCode : int {
  done = 0,
  bug = 1,
  usage = 2,
  infeasible = 3,
  environment = 4,
  malformed_file = 5,
  io = 6,
  rank_lost = 7,
  numerics = 8,
  stopped = 75,
};

class Error : public std::runtime_error {
 public:
  // `what` and `remedy` are sentences without a final newline; control characters in user text must be
  // escaped already.
  Error(ExitCode code, const std::string& what, const std::string& remedy)
      : std::runtime_error(what), code_(code), remedy_(remedy) {}
  // An error that stops a step although the options are right. After the remedy, the run can be resumed with
  // the same options. The trainer appends how to do that.
  static Error in_step(ExitCode code, const std::string& what, const std::string& remedy) {
    Error error(code, what, remedy);
    error.in_step_ = true;
    return error;
  }
  // The same error with ", " and `clause` before its full stop. The clause says where the error was seen.
  Error with_clause(const std::string& clause) const;
  ExitCode code() const { return code_; }
  const std::string& remedy() const { return remedy_; }
  bool is_in_step() const { return in_step_; }

 private:
  ExitCode code_;
  std::string remedy_;
  bool in_step_ = false;
};

[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& detail);

// `text` with control characters and invalid UTF-8 shown as \xNN, for printing names that come from files.
std::string printable(const std::string& text);

}  // namespace sluice

#define CHECK(condition, detail) \
  ((condition) ? void() : ::sluice::check_failed(#condition, __FILE__, __LINE__, (detail)))
