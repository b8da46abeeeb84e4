// The processors that a thread may run on, by the system's numbers, which must be below 1024.
//
// A thread inherits its processors from the thread that starts it. These functions read and set the
// processors of the calling thread.
#pragma once

#include <sched.h>

namespace sluice {

struct ProcessorSet {
  cpu_set_t bits{};

  bool has(int processor) const { return CPU_ISSET(processor, &bits); }
  void add(int processor) { CPU_SET(processor, &bits); }
  int count() const { return CPU_COUNT(&bits); }
  bool operator==(const ProcessorSet& other) const { return CPU_EQUAL(&bits, &other.bits); }
};

// Empty where the system does not say, or where the machine has more than 1024 processors.
ProcessorSet allowed_processors();

// False where the system refuses.
bool allow_processors(const ProcessorSet& processors);

// Until the end of the scope, the calling thread runs on the given processors, if the system lets it.
class Bound {
 public:
  explicit Bound(const ProcessorSet& processors) : before_(allowed_processors()) {
    is_bound_ = before_.count() > 0 && allow_processors(processors);
  }
  ~Bound() {
    if (is_bound_) (void)allow_processors(before_);
  }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;

 private:
  const ProcessorSet before_;
  bool is_bound_ = false;
};

}  // namespace sluice
