// The rows between the loss's products: log-sum-exp, losses, and gradients of logits in place.
#include "gpu/cuda_base.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kStep = kThreads * kWide;  // logits that a block takes at a time

__device__ inline float block_maximum(float x, float* shared) {
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, lane));
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  for (int warp = 0; warp < kThreads / kWarp; ++warp) x = fmaxf(x, shared[warp]);
  return x;
}

// The gradients of a row, in place: a thread's part of them begins at or before its logits, so all logits of
// a step are read before the first gradient of it is written, and those of later steps lie beyond it.
template <typename T>
__device__ void write_gradients(const LossRows& a, float* logits, int64_t label, float maximum, float factor,
                                float at_label) {
  T* gradients = reinterpret_cast<T*>(logits);
  for (int64_t first = 0; first < a.vocabulary; first += kStep) {
    const int64_t v = first + threadIdx.x * kWide, count = a.vocabulary - v;
    const bool wide = count >= kWide;
    float value[kWide];
    if (count > 0) load(logits + v, count, wide, value);
    __syncthreads();
    if (count <= 0) continue;
    for (int i = 0; i < kWide; ++i) value[i] = v + i == label ? at_label : expf(value[i] - maximum) * factor;
    store(gradients + v, count, wide, value);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    loss_kernel(LossRows a, const double* loss_scale, const double* valid_tokens) {
  __shared__ float maxima[kThreads / kWarp];
  __shared__ double sums[kThreads / kWarp];
  const int64_t row = blockIdx.x, label = a.labels[row];
  float* logits = a.logits + row * a.stride;
  const bool differentiate = loss_scale != nullptr;
  if (label == kIgnoreLabel) {
    if (threadIdx.x == 0) a.losses[row] = 0;
    T* gradients = reinterpret_cast<T*>(logits);
    for (int64_t v = threadIdx.x; differentiate && v < a.vocabulary; v += kThreads)
      gradients[v] = narrow<T>(0.0f);
    return;
  }
  require(label >= 0 && label < a.vocabulary);
  // A NaN is dropped by the maximum but not by the sum; +infinity makes infinity - infinity.
  float maximum = -FLT_MAX;
  for (int64_t v = threadIdx.x * kWide; v < a.vocabulary; v += kStep) {
    const int64_t count = a.vocabulary - v;
    float value[kWide];
    load(logits + v, count, count >= kWide, value);
    for (int i = 0; i < kWide; ++i)
      if (i < count) maximum = fmaxf(maximum, value[i]);
  }
  maximum = block_maximum(maximum, maxima);
  float sum = 0;
  for (int64_t v = threadIdx.x * kWide; v < a.vocabulary; v += kStep) {
    const int64_t count = a.vocabulary - v;
    float value[kWide];
    load(logits + v, count, count >= kWide, value);
    for (int i = 0; i < kWide; ++i)
      if (i < count) sum += expf(value[i] - maximum);
  }
  const double total = block_sum(static_cast<double>(sum), sums);
  const double label_logit = static_cast<double>(logits[label]);
  __syncthreads();  // logits[label] has been read by all
  if (threadIdx.x == 0) a.losses[row] = static_cast<double>(maximum) + log(total) - label_logit;
  if (!differentiate) return;
  const auto seed = static_cast<double>(static_cast<float>(*loss_scale / *valid_tokens));
  const double probability = exp(label_logit - static_cast<double>(maximum)) / total;
  write_gradients<T>(a, logits, label, maximum, static_cast<float>(seed / total),
                     static_cast<float>((probability - 1) * seed));
}

// One block: thread t adds losses t, t + kThreads, ... in order, then the threads' sums.
__global__ void __launch_bounds__(kThreads)
    add_losses_kernel(const double* losses, int64_t rows, double* loss) {
  __shared__ double sums[kThreads / kWarp];
  double sum = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kThreads) sum += losses[row];
  sum = block_sum(sum, sums);
  if (threadIdx.x == 0) *loss += sum;
}

}  // namespace

void load_loss_kernels() {
  for_each_precision([]<typename T>(T) { load(loss_kernel<T>); });
  load(add_losses_kernel);
}

void finish_loss_rows(const Queue& queue, const LossRows& rows, DType precision, const double* loss_scale,
                      const double* valid_tokens) {
  with_precision(precision, [&]<typename T>(T) {
    launch(queue, loss_kernel<T>, rows.rows, kThreads, 0, rows, loss_scale, valid_tokens);
  });
}

void add_losses(const Queue& queue, const double* losses, int64_t rows, double* loss) {
  launch(queue, add_losses_kernel, 1, kThreads, 0, losses, rows, loss);
}

}  // namespace sluice::cuda
