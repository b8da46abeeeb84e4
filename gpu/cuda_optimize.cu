// Rounding of gradients and sums over ranks, with their blocks' sums of squares; AdamW, and zeroing.
#include "gpu/cuda_base.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kStep = kThreads * kWide;
static_assert(kNormBlock % kStep == 0, "every thread of a block of the norm has as many elements");

// Block b rounds block b of the norm. A thread adds the squares of its elements in order, then the block its
// threads'.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    round_kernel(const float* accumulator, T* gradient, int64_t elements, bool aligned, double* block_sums) {
  __shared__ double shared[kThreads / kWarp];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * static_cast<int64_t>(kNormBlock);
  double sum = 0;
  for (int64_t first = 0; first < static_cast<int64_t>(kNormBlock); first += kStep) {
    const int64_t i = begin + first + threadIdx.x * kWide, count = elements - i;
    if (count <= 0) break;
    with_part(aligned, count, [&](auto part) {
      float value[kWide];
      load(accumulator + i, part, value);
#pragma unroll
      for (int e = 0; e < kWide; ++e) value[e] = widen(narrow<T>(value[e]));
      store(gradient + i, part, value);
#pragma unroll
      for (int e = 0; e < kWide; ++e) sum += static_cast<double>(value[e]) * static_cast<double>(value[e]);
    });
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0 && block_sums != nullptr) block_sums[blockIdx.x] = sum;
}

constexpr int kSquareSums = 8;  // as cpu_optim/reduce.cc: sum i is of elements i mod 8 of a block, in order

// Block b sums block b of the norm, a step of kStep elements at a time. What was written is kept aside, so
// that a few threads add its squares while the others are at the next step.
template <typename T>
__global__ void __launch_bounds__(kThreads) sum_kernel(const T* parts, int64_t ranks, int64_t elements,
                                                       T* out, bool aligned, double* block_sums) {
  __shared__ float written[2][kStep];
  __shared__ double sums[kSquareSums];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * static_cast<int64_t>(kNormBlock);
  double squares = 0;
  for (int64_t first = 0; first < static_cast<int64_t>(kNormBlock); first += kStep) {
    if (begin + first >= elements) break;
    float* const kept = written[first / kStep % 2];
    const int64_t i = begin + first + thread * kWide, count = elements - i;
    float sum[kWide] = {};
    if (count > 0)
      with_part(aligned, count, [&](auto part) {
        load(parts + i, part, sum);
        for (int64_t rank = 1; rank < ranks; ++rank) {
          float value[kWide];
          load(parts + rank * elements + i, part, value);
#pragma unroll
          for (int e = 0; e < kWide; ++e) sum[e] += value[e];
        }
#pragma unroll
        for (int e = 0; e < kWide; ++e) sum[e] = widen(narrow<T>(sum[e]));
        store(out + i, part, sum);
      });
#pragma unroll
    for (int e = 0; e < kWide; ++e) kept[thread * kWide + e] = sum[e];
    __syncthreads();
    if (thread < kSquareSums)
      for (int e = thread; e < kStep; e += kSquareSums)
        squares += static_cast<double>(kept[e]) * static_cast<double>(kept[e]);
  }
  if (thread < kSquareSums) sums[thread] = squares;
  __syncthreads();
  if (thread != 0 || block_sums == nullptr) return;
  double total = 0;
  for (int s = 0; s < kSquareSums; ++s) total += sums[s];
  block_sums[blockIdx.x] = total;
}

// One element, each operation rounded to fp32 as cpu_optim/optimizer.h writes it.
__device__ inline void update(const AdamWConstants& c, float gradient, float& w, float& m, float& v) {
  const float g = __fmul_rn(gradient, c.s);
  m = __fmaf_rn(c.b1, m, __fmul_rn(c.k1, g));
  v = __fmaf_rn(c.b2, v, __fmul_rn(__fmul_rn(c.k2, g), g));
  w = __fmul_rn(w, c.d);
  w = __fmaf_rn(-c.a, __fdiv_rn(m, __fmaf_rn(__fsqrt_rn(v), c.r, c.eps)), w);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    optimize_kernel(AdamWRange range, const StepScalars::Update* scalars, bool aligned) {
  AdamWConstants constants = scalars->adamw;
  if (!range.decay) constants.d = 1;
  const bool skip = scalars->skip;
  const T* gradient = static_cast<const T*>(range.gradient);
  T* weights = static_cast<T*>(range.weights);
  const auto elements = static_cast<int64_t>(range.elements);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kStep;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWide; i < elements;
       i += step)
    with_part(aligned, elements - i, [&](auto part) {
      float w[kWide];
      load(range.master + i, part, w);
      if (!skip) {
        float m[kWide], v[kWide], g[kWide];
        load(range.first_moment + i, part, m);
        load(range.second_moment + i, part, v);
        load(gradient + i, part, g);
#pragma unroll
        for (int e = 0; e < kWide; ++e) update(constants, g[e], w[e], m[e], v[e]);
        store(range.master + i, part, w);
        store(range.first_moment + i, part, m);
        store(range.second_moment + i, part, v);
      }
      if (weights != nullptr) store(weights + i, part, w);
    });
}

}  // namespace

void load_optimizer_kernels() {
  for_each_precision([]<typename T>(T) {
    load(round_kernel<T>);
    load(sum_kernel<T>);
    load(optimize_kernel<T>);
  });
}

void round_gradient(const Queue& queue, const float* accumulator, void* gradient, DType precision,
                    uint64_t elements, double* block_sums) {
  with_precision(precision, [&]<typename T>(T) {
    launch(queue, round_kernel<T>, div_up(static_cast<int64_t>(elements), static_cast<int64_t>(kNormBlock)),
           kThreads, 0, accumulator, static_cast<T*>(gradient), static_cast<int64_t>(elements),
           aligned_to_16(accumulator) && aligned_to_16(gradient), block_sums);
  });
}

void sum_parts(const Queue& queue, DType precision, const void* parts, uint32_t ranks, uint64_t elements,
               void* out, double* block_sums) {
  const bool aligned = aligned_to_16(parts) && aligned_to_16(out) && elements % kWide == 0;
  with_precision(precision, [&]<typename T>(T) {
    launch(queue, sum_kernel<T>, div_up(static_cast<int64_t>(elements), static_cast<int64_t>(kNormBlock)),
           kThreads, 0, static_cast<const T*>(parts), static_cast<int64_t>(ranks),
           static_cast<int64_t>(elements), static_cast<T*>(out), aligned, block_sums);
  });
}

void optimize(const Queue& queue, const AdamWRange& range, const StepScalars::Update* update) {
  if (range.elements == 0) return;
  const bool aligned = aligned_to_16(range.master) && aligned_to_16(range.first_moment) &&
                       aligned_to_16(range.second_moment) && aligned_to_16(range.gradient) &&
                       aligned_to_16(range.weights);
  const int64_t items = div_up(static_cast<int64_t>(range.elements), kWide);
  with_precision(range.precision, [&]<typename T>(T) {
    launch(queue, optimize_kernel<T>, striding_blocks(queue, items, kThreads), kThreads, 0, range, update,
           aligned);
  });
}

void zero(const Queue& queue, void* data, uint64_t bytes) {
  if (bytes > 0) check_step(cudaMemsetAsync(data, 0, bytes, static_cast<cudaStream_t>(queue.stream)));
}

}  // namespace sluice::cuda
