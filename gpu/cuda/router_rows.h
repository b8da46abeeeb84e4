// What routers' kernels share: a warp for each row of logits, and the softmax of a row. Included by .cu files
// only.
#pragma once

#include "gpu/cuda/base.h"

namespace sluice::cuda {

constexpr int kRouterWarps = 8, kRouterThreads = kRouterWarps * kWarp;

__device__ inline int router_row() {
  return static_cast<int>(blockIdx.x * kRouterWarps + threadIdx.x / kWarp);
}

// Sums over a row's logits. The maximum ignores a NaN, the sum does not. An infinite maximum makes the sum
// NaN.
struct LogitSum {
  float maximum, sum;  // of e^(logit - maximum)
  __device__ float value() const { return maximum + logf(sum); }
  __device__ float probability(float logit) const { return expf(logit - maximum) / sum; }
};

// Sums over logit(0), ..., logit(count - 1). A whole warp calls.
template <typename F>
__device__ LogitSum log_sum(int count, F logit) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  LogitSum l{-INFINITY, 0};
  for (int e = lane; e < count; e += kWarp) l.maximum = fmaxf(l.maximum, logit(e));
  for (int step = kWarp / 2; step > 0; step /= 2)
    l.maximum = fmaxf(l.maximum, __shfl_xor_sync(kAllLanes, l.maximum, step));
  for (int e = lane; e < count; e += kWarp) l.sum += expf(logit(e) - l.maximum);
  l.sum = warp_sum(l.sum);
  return l;
}

}  // namespace sluice::cuda
