// All parallel loops of the CPU side go through Workers, so that there is one threading runtime and one place
// to replace it (the tsan preset builds Workers on plain threads).
//
// Results never depend on the number of threads: a loop body writes only what its index owns, and the caller
// takes sums in index order. The threads of a Workers inherit the processors of the thread that makes it. One
// lane (or the set-up code) uses a Workers at a time; calls do not nest.
#pragma once

#include <cstdint>
#include <memory>

namespace sluice {

class Workers {
 public:
  explicit Workers(int threads);  // threads >= 1, the caller's among them
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int threads() const { return threads_; }

  // Calls body(index, thread) for every index in [0, count), in any order; thread is in [0, threads()) and no
  // two calls with the same thread run at once, so `thread` may index per-thread memory. Returns when all
  // calls are done. body must not throw. Its type is not std::function, which would allocate in every call.
  template <class Body>
  void parallel_for(int64_t count, const Body& body) {
    run(count, &body,
        [](const void* b, int64_t index, int thread) { (*static_cast<const Body*>(b))(index, thread); });
  }

 private:
  void run(int64_t count, const void* body, void (*call)(const void* body, int64_t index, int thread));

  struct Impl;
  std::unique_ptr<Impl> impl_;
  int threads_;
};

// Starts `count` threads at once and ends them, as a test. Throws Error(environment) where the system
// refuses; TBB and other libraries would end the process.
void check_threads(int count);

}  // namespace sluice
