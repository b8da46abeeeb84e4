// What routers' kernels share: blocks of rows, and the softmax of a row of logits, in double. Caller: the cpu
// device's kernels.
#pragma once

#include <algorithm>
#include <cmath>

#include "engine/graph/routing.h"
#include "gpu/cpu/kernels.h"

namespace sluice::cpu {

constexpr int64_t kRowBlock = 64;

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Bytes of the elements, rounded up to a multiple of 64.
inline uint64_t aligned_bytes(int64_t elements, uint64_t size) {
  return (static_cast<uint64_t>(elements) * size + 63) / 64 * 64;
}

// Calls body(begin, end, thread) for blocks of rows.
template <class Body>
void for_each_block(int64_t rows, Workers& workers, const Body& body) {
  workers.parallel_for(divide_up(rows, kRowBlock), [&](int64_t block, int thread) {
    body(block * kRowBlock, std::min(rows, (block + 1) * kRowBlock), thread);
  });
}

// Whether `a` is larger than `b`. NaN counts as the largest number, so that it shows in results.
inline bool is_better(double a, double b) { return a > b || (std::isnan(a) && !std::isnan(b)); }

struct LogSum {
  double maximum, sum;  // of e^(logit - maximum)
  double value() const { return maximum + std::log(sum); }
  double probability(double logit) const { return std::exp(logit - maximum) / sum; }
};

template <class Logit>
LogSum log_sum(int64_t count, const Logit& logit) {
  LogSum l{logit(0), 0};
  for (int64_t i = 1; i < count; ++i)
    if (is_better(logit(i), l.maximum)) l.maximum = logit(i);
  for (int64_t i = 0; i < count; ++i) l.sum += std::exp(logit(i) - l.maximum);
  return l;
}
inline LogSum log_sum_of(const float* logits, int64_t count) {
  return log_sum(count, [&](int64_t e) { return static_cast<double>(logits[e]); });
}

// The layout of the op's routing. The op's first input is logits.
inline RoutingLayout layout_of(const OpCall& call) {
  const Routing& r = call.shapes->attributes.routing;
  return {call.shapes->inputs[0][0], r.experts, r.chosen};
}

}  // namespace sluice::cpu
