// What the loss does between its products: log-sum-exp, losses, and gradients of logits in place.
//
// Gradients need the sum over the whole row, so a block looks at its logits twice. If gradients are wanted,
// the block keeps as many of the row's logits as shared memory holds, so that only the other logits are read
// again.
#include "gpu/cuda/base.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kStep = kThreads * kWide;  // logits that a block takes at a time
// Bytes of shared memory for everything but logits. From compute capability 9.0 on, the shared memory that a
// kernel declares includes 1 KiB of the system's.
constexpr uint64_t kOtherShared = 2 << 10;

__device__ inline float block_maximum(float x, float* shared) {
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, lane));
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  for (int warp = 0; warp < kThreads / kWarp; ++warp) x = fmaxf(x, shared[warp]);
  return x;
}

// e^(x - maximum).
__device__ inline float exponential(float x, float maximum) {
  return fast_exp2((x - maximum) * 1.442695041f);
}

// tanh y = 2 / (1 + e^-2y) - 1; near 0, where digits would cancel, y - y^3 / 3. NaN where y is infinite.
__device__ inline float tanh_of(float y) {
  const float full = 2 * fast_reciprocal(1 + fast_exp2(y * -2.885390082f)) - 1;
  return fabsf(y) < 0.01f ? y - y * y * y * (1 / 3.0f) : __fmaf_rn(y, 0, full);
}

// A soft cap of logits, or none.
template <bool kCapped>
struct Cap {
  float cap, inverse;

  __device__ float of(float logit) const { return kCapped ? cap * tanh_of(logit * inverse) : logit; }
  __device__ void apply(float (&value)[kWide]) const {
#pragma unroll
    for (int i = 0; i < kWide; ++i) value[i] = of(value[i]);
  }
  // What a gradient with respect to a capped logit is multiplied by.
  __device__ float slope(float capped) const {
    const float tanh = capped * inverse;
    return kCapped ? 1 - tanh * tanh : 1.0f;
  }
};

// The largest of some logits, and the sum of e^(logit - largest). The maximum ignores a NaN, the sum does
// not. For +infinity, the sum gets infinity - infinity, a NaN.
struct LogSum {
  float maximum = -FLT_MAX, sum = 0;

  template <typename P>
  __device__ void add(const float (&value)[kWide], P part) {
    float largest = maximum;
#pragma unroll
    for (int i = 0; i < kWide; ++i)
      if (present(part, i)) largest = fmaxf(largest, value[i]);
    move(largest);
#pragma unroll
    for (int i = 0; i < kWide; ++i)
      if (present(part, i)) sum += exponential(value[i], maximum);
  }
  __device__ void move(float largest) {
    if (largest == maximum) return;
    sum *= exponential(maximum, largest);
    maximum = largest;
  }
};

// A row's gradients are e^(logit - maximum) * factor, except the label's, which is at_label.
struct RowScale {
  float factor, at_label;
};

// A row of logits, the first `kept` of them in shared memory. `kept` is a multiple of kWide.
struct Logits {
  float* row;
  const float* shared;
  int64_t kept;

  __device__ const float* at(int64_t v) const { return v < kept ? shared + v : row + v; }
};

// Loads the logits that are kept. A row is padded at its end, at least to a multiple of 16 bytes.
__device__ inline Logits keep_logits(float* row, int64_t vocabulary, int64_t kept) {
  auto* shared = reinterpret_cast<float*>(shared_memory());
  constexpr int kPerCopy = 4;
  for (int64_t v = threadIdx.x * kPerCopy; v < kept && v < vocabulary; v += kThreads * kPerCopy)
    copy_async(shared + v, row + v, true);
  wait_copies();
  __syncthreads();
  return {row, shared, kept};
}

// Replaces a row's logits by their gradients. A gradient lies at its logit's address or before it. So each
// round of the loop reads all of its kStep logits before it writes their first gradient. The logits of later
// rounds lie beyond the gradients of this one.
template <typename T, bool kCapped>
__device__ void write_gradients(const LossRows& a, const Logits& logits, int64_t label, float maximum,
                                const RowScale& scale, const Cap<kCapped>& cap) {
  T* gradients = reinterpret_cast<T*>(logits.row);
  for (int64_t first = 0; first < a.vocabulary; first += kStep) {
    const int64_t v = first + threadIdx.x * kWide, count = a.vocabulary - v;
    float value[kWide];
    if (count > 0) with_part(true, count, [&](auto part) { load(logits.at(v), part, value); });
    __syncthreads();
    if (count <= 0) continue;
    const int64_t at_label = label - v;
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      const float capped = cap.of(value[i]);
      value[i] = i == at_label ? scale.at_label
                               : exponential(capped, maximum) * (scale.factor * cap.slope(capped));
    }
    with_part(true, count, [&](auto part) { store(gradients + v, part, value); });
  }
}

template <typename T, bool kCapped>
__global__ void __launch_bounds__(kThreads)
    loss_kernel(LossRows a, const double* loss_scale, const double* valid_tokens, int64_t kept) {
  __shared__ float maxima[kThreads / kWarp];
  __shared__ double sums[kThreads / kWarp];
  __shared__ RowScale scale;
  const int64_t row = blockIdx.x, label = a.labels[row];
  float* const logits_row = a.logits + row * a.stride;
  const bool differentiate = loss_scale != nullptr;
  if (is_ignored(label)) {
    if (threadIdx.x == 0) a.losses[row] = 0;
    T* gradients = reinterpret_cast<T*>(logits_row);
    for (int64_t v = threadIdx.x; differentiate && v < a.vocabulary; v += kThreads)
      gradients[v] = narrow<T>(0.0f);
    return;
  }
  require(label >= 0 && label < a.vocabulary);
  const Logits logits = keep_logits(logits_row, a.vocabulary, kept);
  const Cap<kCapped> cap{a.cap, 1 / a.cap};
  LogSum mine;
  for (int64_t v = threadIdx.x * kWide; v < a.vocabulary; v += kStep)
    with_part(true, a.vocabulary - v, [&](auto part) {
      float value[kWide];
      load(logits.at(v), part, value);
      cap.apply(value);
      mine.add(value, part);
    });
  mine.move(block_maximum(mine.maximum, maxima));
  const double total = block_sum(static_cast<double>(mine.sum), sums);
  if (threadIdx.x == 0) {  // double arithmetic is slow on most GPUs, so one thread does it
    const float at_label = cap.of(*logits.at(label));
    const double label_logit = static_cast<double>(at_label), maximum = static_cast<double>(mine.maximum);
    a.losses[row] = maximum + log(total) - label_logit;
    if (differentiate) {
      const auto seed = static_cast<double>(static_cast<float>(*loss_scale / *valid_tokens));
      scale.factor = static_cast<float>(seed / total);
      const auto slope = static_cast<double>(cap.slope(at_label));
      scale.at_label = static_cast<float>((exp(label_logit - maximum) / total - 1) * seed * slope);
    }
  }
  if (!differentiate) return;
  __syncthreads();
  write_gradients<T>(a, logits, label, mine.maximum, scale, cap);
}

// 1 for a row in which no logit is above the label's, 0 for other rows and for rows that are ignored.
__global__ void __launch_bounds__(kThreads) right_kernel(LossRows a) {
  __shared__ float maxima[kThreads / kWarp];
  const int64_t row = blockIdx.x, label = a.labels[row];
  const float* const logits = a.logits + row * a.stride;
  if (is_ignored(label)) {
    if (threadIdx.x == 0) a.rights[row] = 0;
    return;
  }
  require(label >= 0 && label < a.vocabulary);
  const float at_label = logits[label];
  float above = 0;
  for (int64_t v = threadIdx.x * kWide; v < a.vocabulary; v += kStep)
    with_part(true, a.vocabulary - v, [&](auto part) {
      float value[kWide];
      load(logits + v, part, value);
#pragma unroll
      for (int i = 0; i < kWide; ++i)
        if (present(part, i) && !(value[i] <= at_label)) above = 1;  // a NaN counts as above
    });
  above = block_maximum(above, maxima);
  if (threadIdx.x == 0) a.rights[row] = above == 0 ? 1 : 0;
}

// One block: thread t adds losses t, t + kThreads, ... in order, then the threads' sums are added.
__global__ void __launch_bounds__(kThreads)
    add_losses_kernel(const double* losses, int64_t rows, double* loss) {
  __shared__ double sums[kThreads / kWarp];
  double sum = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kThreads) sum += losses[row];
  sum = block_sum(sum, sums);
  if (threadIdx.x == 0) *loss += sum;
}

}  // namespace

void load_loss_kernels(const Queue& queue) {
  for_each_precision([&]<typename T>(T) {
    load(loss_kernel<T, false>, queue.shared_bytes_max - kOtherShared);
    load(loss_kernel<T, true>, queue.shared_bytes_max - kOtherShared);
  });
  load(add_losses_kernel);
  load(right_kernel);
}

void finish_loss_rows(const Queue& queue, const LossRows& rows, DType precision, const double* loss_scale,
                      const double* valid_tokens) {
  const auto room = static_cast<int64_t>((queue.shared_bytes_max - kOtherShared) / sizeof(float));
  const int64_t kept =
      loss_scale == nullptr ? 0 : std::min(div_up(rows.vocabulary, kWide), room / kWide) * int64_t{kWide};
  with_precision(precision, [&]<typename T>(T) {
    launch(queue, rows.cap == 0 ? loss_kernel<T, false> : loss_kernel<T, true>, rows.rows, kThreads,
           static_cast<uint64_t>(kept) * sizeof(float), rows, loss_scale, valid_tokens, kept);
  });
}

void count_right_rows(const Queue& queue, const LossRows& rows, double* count) {
  launch(queue, right_kernel, rows.rows, kThreads, 0, rows);
  add_losses(queue, rows.rights, rows.rows, count);
}

void add_losses(const Queue& queue, const double* losses, int64_t rows, double* loss) {
  launch(queue, add_losses_kernel, 1, kThreads, 0, losses, rows, loss);
}

}  // namespace sluice::cuda
