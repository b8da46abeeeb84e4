// Bounds on what a chat template may use, so that no template hangs, fills the memory or the stack.
//
// A Budget counts for one render. Whatever takes time or memory in proportion to its input charges the
// Budget before it starts. Callers: everything in this folder; a caller of ChatTemplate::render may lower
// the limits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "models/text/template/fault.h"

namespace sluice {

struct TemplateLimits {
  uint64_t steps = 20'000'000;           // expressions and statements: about a second
  uint64_t bytes = uint64_t{256} << 20;  // of all strings and lists that are made, kept or not
};

namespace jinja {

constexpr size_t kSourceBytesMax = size_t{4} << 20;  // of a template; published ones have less than 20 KB
constexpr int kNestingMax = 200;        // of expressions and statements in the source; published: below 30
constexpr int kRecursionMax = 1000;     // of evaluation: less than 1 KB of stack each, a stack has 8 MB
constexpr int kValueDepthMax = 100;     // of lists and objects in each other
constexpr size_t kNameBytesMax = 1000;  // of a name in the source; published: below 40
constexpr size_t kArgumentsMax = 255;   // of a macro or call; published: below 10
constexpr uint64_t kElementBytes = 32;  // charged for an element of a list: a value and its share of overhead

class Budget {
 public:
  explicit Budget(const TemplateLimits& limits)
      : limits_(limits), steps_(limits.steps), bytes_(limits.bytes) {}

  void step(uint64_t count = 1) {
    if (count > steps_)
      throw Fault("the render takes more than " + std::to_string(limits_.steps) + " steps",
                  FaultKind::exhausted);
    steps_ -= count;
  }
  // Charges for looking at `bytes` bytes of text.
  void read(uint64_t bytes) { step(bytes / 64); }
  // Charges for comparing a name of `bytes` bytes with `count` names, one after the other.
  void search(uint64_t count, uint64_t bytes) { step(count * (1 + bytes / 64) / 16); }
  void make(uint64_t bytes) {
    if (bytes > bytes_)
      throw Fault(
          "the render makes more than " + std::to_string(limits_.bytes) + " bytes of strings and lists",
          FaultKind::exhausted);
    bytes_ -= bytes;
  }
  uint64_t steps_left() const { return steps_; }
  uint64_t bytes_left() const { return bytes_; }
  void make_elements(uint64_t count) {
    step(count);
    make(count * kElementBytes);
  }

 private:
  TemplateLimits limits_;
  uint64_t steps_, bytes_;  // that are left
};

}  // namespace jinja
}  // namespace sluice
