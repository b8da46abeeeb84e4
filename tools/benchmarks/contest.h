// Times kernels against each other in one process, on the same pages, in turn. A disturbance of a whole round
// cancels in the ratio of two contestants. Callers: benchmarks of kernels; header only.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tools/bench/median.h"

namespace sluice {

// Pages for the contestants, huge where the system grants it, as in the arenas of training.
inline std::byte* allocate_pages(uint64_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(p != MAP_FAILED, "out of memory");
  (void)madvise(p, bytes, MADV_HUGEPAGE);  // advice only
  return static_cast<std::byte*>(p);
}
inline void free_pages(std::byte* pages, uint64_t bytes) { (void)munmap(pages, bytes); }

struct Contestant {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds = {};  // by round
};

// By round: a's seconds divided by b's.
inline std::vector<double> time_ratios(const Contestant& a, const Contestant& b) {
  std::vector<double> ratios;
  for (size_t round = 0; round < a.seconds.size(); ++round)
    ratios.push_back(a.seconds[round] / b.seconds[round]);
  return ratios;
}
inline double time_ratio(const Contestant& a, const Contestant& b) { return median(time_ratios(a, b)); }

// The first contestant's speed divided by the speed of the fastest other contestant.
inline double ratio_to_best(const std::vector<Contestant>& all) {
  double ratio = 1e300;
  for (size_t i = 1; i < all.size(); ++i) ratio = std::min(ratio, time_ratio(all[i], all[0]));
  return ratio;
}

inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
// Processor time of the process. With one thread, other work of the machine counts little.
inline double processor_seconds() {
  timespec t{};
  CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0, "no clock of processor time");
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

inline void time_alternating(std::vector<Contestant>& all, int rounds, double (*now)() = wall_seconds) {
  for (int round = 0; round <= rounds; ++round)
    for (Contestant& c : all) {
      const double begin = now();
      c.run();
      const double taken = now() - begin;
      if (round > 0) c.seconds.push_back(taken);  // the first round warms up
    }
}

}  // namespace sluice
