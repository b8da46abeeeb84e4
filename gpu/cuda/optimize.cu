// Rounding of gradients and sums over ranks, both with sums of squares by block; AdamW; zeroing.
#include "cpu_optim/adamw.h"
#include "gpu/cuda/base.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kStep = kThreads * kWide;

// A shard has fewer blocks of the norm than some GPUs have multiprocessors. So a thread of the rounding loads
// several parts before it stores the first: 64 KiB of each thread block are under way.
constexpr int kRoundParts = 4;
static_assert(kNormBlock % (kRoundParts * kStep) == 0, "a whole block of the norm has no rest");

// Rounds kParts parts of a thread, kStep apart, and adds their squares in order.
template <int kParts, typename T, typename P>
__device__ void round_parts(const Accumulators& from, int64_t at, T* gradient, P part, double& sum) {
  float value[kParts][kWide];
#pragma unroll
  for (int p = 0; p < kParts; ++p) load(from.of[0] + at + p * kStep, part, value[p]);
  for (uint32_t a = 1; a < from.count; ++a) {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      float addend[kWide];
      load(from.of[a] + at + p * kStep, part, addend);
#pragma unroll
      for (int e = 0; e < kWide; ++e) value[p][e] += addend[e];
    }
  }
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
#pragma unroll
    for (int e = 0; e < kWide; ++e) value[p][e] = widen(narrow<T>(value[p][e]));
    store(gradient + p * kStep, part, value[p]);
#pragma unroll
    for (int e = 0; e < kWide; ++e)
      sum += static_cast<double>(value[p][e]) * static_cast<double>(value[p][e]);
  }
}

// Thread block b rounds the norm's block b. Each thread adds the squares of its elements in order; then the
// threads' sums are added.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    round_kernel(Accumulators from, T* gradient, int64_t elements, bool aligned, double* block_sums) {
  __shared__ double shared[kThreads / kWarp];
  constexpr auto kBlock = static_cast<int64_t>(kNormBlock);
  const int64_t begin = blockIdx.x * kBlock, end = begin + kBlock < elements ? begin + kBlock : elements;
  double sum = 0;
  int64_t i = begin + threadIdx.x * kWide;
  for (; aligned && i + (kRoundParts - 1) * kStep + kWide <= end; i += kRoundParts * kStep)
    round_parts<kRoundParts>(from, i, gradient + i, Whole(), sum);
  for (; i < end; i += kStep)
    with_part(aligned, end - i, [&](auto part) { round_parts<1>(from, i, gradient + i, part, sum); });
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0 && block_sums != nullptr) block_sums[blockIdx.x] = sum;
}

constexpr int kSumThreads = 256, kSumStep = kSumThreads * kWide;
static_assert(kNormBlock % kSumStep == 0);
constexpr int kSquareSums = 32;  // as in gpu/ranks/reduce.cc: sum i adds elements i, i + 32, ... in order

// How a thread adds over ranks. With FewRanks, it adds kWide elements at a time, with the loads of four parts
// under way together. With ManyRanks, it adds one element at a time, with sixteen loads under way, since the
// waiting subtrees of kWide elements would not fit the registers.
struct FewRanks {
  static constexpr int kElements = kWide, kTogether = 4, kLevels = 2;  // up to 15 ranks
};
struct ManyRanks {
  static constexpr int kElements = 1, kTogether = 16, kLevels = 28;  // up to 2^32 - 1
};
struct One {};
template <typename T>
__device__ inline void load(const T* p, One, float (&out)[1]) {
  out[0] = widen(*p);
}
template <typename T>
__device__ inline void store(T* p, One, const float (&in)[1]) {
  *p = narrow<T>(in[0]);
}

template <int kElements>
__device__ inline void add(float (&sum)[kElements], const float (&value)[kElements]) {
#pragma unroll
  for (int e = 0; e < kElements; ++e) sum[e] += value[e];
}

template <int kElements>
__device__ inline void copy(const float (&from)[kElements], float (&to)[kElements]) {
#pragma unroll
  for (int e = 0; e < kElements; ++e) to[e] = from[e];
}

// T(first, kRanks) of gpu/ranks/reduce.h. `from` is the first rank's part; the parts lie `stride` elements
// apart.
template <int kRanks, typename From, typename P, int kElements>
__device__ inline void add_together(const From* from, int64_t stride, P part, float (&sum)[kElements]) {
  if constexpr (kRanks == 1) {
    load(from, part, sum);
  } else {
    float right[kElements];
    add_together<kRanks / 2>(from, stride, part, sum);
    add_together<kRanks / 2>(from + kRanks / 2 * stride, stride, part, right);
    add(sum, right);
  }
}

// Adds one subtree for each binary digit 1 of `ranks` < 2 kRanks, the last subtree first.
template <int kRanks, typename From, typename P, int kElements>
__device__ inline void add_rest(const From* from, int64_t stride, int64_t ranks, P part,
                                float (&sum)[kElements]) {
  if constexpr (kRanks > 1)
    add_rest<kRanks / 2>(from + (ranks & kRanks) * stride, stride, ranks & (kRanks - 1), part, sum);
  if ((ranks & kRanks) == 0) return;
  float value[kElements];
  add_together<kRanks>(from, stride, part, value);
  add(sum, value);
}

// T(0, ranks). Subtrees of kTogether parts are added as a binary counter carries: level l holds the sum of
// 2^l of them while digit l of their count is set. The sums that are left are added at the end, the last one
// first.
template <typename How, typename From, typename P>
__device__ inline void add_all(const From* from, int64_t stride, int64_t ranks, P part,
                               float (&sum)[How::kElements]) {
  const int64_t subtrees = ranks / How::kTogether;
  float level[How::kLevels][How::kElements], value[How::kElements];
  for (int64_t k = 0; k < subtrees; ++k, from += How::kTogether * stride) {
    add_together<How::kTogether>(from, stride, part, value);
    bool met = true;
#pragma unroll
    for (int l = 0; met && l < How::kLevels; ++l) {
      met = (k >> l & 1) != 0;
      if (met)
        add(value, level[l]);
      else
        copy(value, level[l]);
    }
  }
#pragma unroll
  for (float& s : sum) s = -0.0f;  // to which any number, also -0, is added without a change
  add_rest<How::kTogether / 2>(from, stride, ranks % How::kTogether, part, sum);
#pragma unroll
  for (int l = 0; l < How::kLevels; ++l)
    if ((subtrees >> l & 1) != 0) add(sum, level[l]);
}

template <typename How, typename From, typename To, typename P>
__device__ inline void sum_elements(const From* parts, int64_t elements, int64_t ranks, P part, To* out,
                                    float (&sum)[How::kElements]) {
  add_all<How>(parts, elements, ranks, part, sum);
#pragma unroll
  for (float& s : sum) s = widen(narrow<To>(s));
  store(out, part, sum);
}

// Sums kSumStep elements from `first` on. `kept` receives what was written, and zeros beyond the last
// element.
template <typename How, typename From, typename To>
__device__ inline void sum_step(const From* parts, int64_t first, int64_t ranks, int64_t elements, To* out,
                                bool aligned, float* kept) {
  for (int at = static_cast<int>(threadIdx.x) * How::kElements; at < kSumStep;
       at += kSumThreads * How::kElements) {
    const int64_t i = first + at, count = elements - i;
    float sum[How::kElements] = {};
    if constexpr (How::kElements == 1) {
      if (count > 0) sum_elements<How>(parts + i, elements, ranks, One(), out + i, sum);
    } else if (count > 0) {
      with_part(aligned, count,
                [&](auto part) { sum_elements<How>(parts + i, elements, ranks, part, out + i, sum); });
    }
#pragma unroll
    for (int e = 0; e < How::kElements; ++e) kept[at + e] = sum[e];
  }
}

// Thread block b sums the norm's block b, kSumStep elements at a time. The results are kept aside, so that a
// few threads add their squares while the others are at the next step.
template <typename How, typename From, typename To>
__global__ void __launch_bounds__(kSumThreads, 2)
    sum_kernel(const From* parts, int64_t ranks, int64_t elements, To* out, bool aligned,
               double* block_sums) {
  __shared__ float written[2][kSumStep];
  __shared__ double sums[kSquareSums];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * static_cast<int64_t>(kNormBlock);
  double squares = 0;
  for (int64_t first = 0; first < static_cast<int64_t>(kNormBlock); first += kSumStep) {
    if (begin + first >= elements) break;
    float* const kept = written[first / kSumStep % 2];
    sum_step<How>(parts, begin + first, ranks, elements, out, aligned, kept);
    if (block_sums == nullptr) continue;
    __syncthreads();
    if (thread < kSquareSums)
      for (int e = thread; e < kSumStep; e += kSquareSums)
        squares += static_cast<double>(kept[e]) * static_cast<double>(kept[e]);
  }
  if (block_sums == nullptr) return;
  if (thread < kSquareSums) sums[thread] = squares;
  __syncthreads();
  if (thread != 0) return;
  double total = 0;
  for (int s = 0; s < kSquareSums; ++s) total += sums[s];
  block_sums[blockIdx.x] = total;
}

// AdamW on one element, by the formulas of cpu_optim/adamw.h, each operation rounded to fp32.
__device__ inline void update(const AdamWConstants& c, float gradient, float& w, float& m, float& v) {
  const float g = __fmul_rn(gradient, c.s);
  m = __fmaf_rn(c.b1, m, __fmul_rn(c.k1, g));
  v = __fmaf_rn(c.b2, v, __fmul_rn(__fmul_rn(c.k2, g), g));
  w = __fmul_rn(w, c.d);
  w = __fmaf_rn(-c.a, __fdiv_rn(m, __fmaf_rn(__fsqrt_rn(v), c.r, c.eps)), w);
}

// The constants with the range's factor of the learning rate and weight decay, in double, each operation
// rounded.
__device__ inline AdamWConstants adamw_constants(const UpdateConstants& constants, const UpdateRange& range) {
  AdamWConstants c = *reinterpret_cast<const AdamWConstants*>(constants.bytes);
  const double rate = __dmul_rn(c.learning_rate, range.learning_rate_factor);
  c.a = static_cast<float>(__dmul_rn(c.step, range.learning_rate_factor));
  c.d = static_cast<float>(1 - __dmul_rn(rate, range.weight_decay));
  return c;
}

// The forms of cpu_optim/optimizer.h.
template <UpdateForm kForm, typename T>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(UpdateRange range, UpdateScalars scalars, bool aligned) {
  const AdamWConstants constants = adamw_constants(scalars.update->constants, range);
  AdamWConstants guessed = constants;
  if constexpr (kForm == UpdateForm::visit) guessed = adamw_constants(scalars.guess->constants, range);
  const bool skip = scalars.update->skip;
  T* gradient = static_cast<T*>(range.gradient);
  T* weights = static_cast<T*>(range.weights);
  float *first_moment = static_cast<float*>(range.planes[0]),
        *second_moment = static_cast<float*>(range.planes[1]);
  const auto elements = static_cast<int64_t>(range.elements);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kStep;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWide; i < elements;
       i += step)
    with_part(aligned, elements - i, [&](auto part) {
      constexpr bool kVisits = kForm == UpdateForm::visit;
      float w[kWide], m[kWide], v[kWide], g[kWide];
      load(range.master + i, part, w);
      if (kVisits || !skip) {
        load(first_moment + i, part, m);
        load(second_moment + i, part, v);
      }
      if (!skip) {
        load(gradient + i, part, g);
#pragma unroll
        for (int e = 0; e < kWide; ++e) update(constants, g[e], w[e], m[e], v[e]);
        if constexpr (kForm != UpdateForm::repair) {
          store(range.master + i, part, w);
          store(first_moment + i, part, m);
          store(second_moment + i, part, v);
        }
      }
      if constexpr (kVisits) {
        load(static_cast<const T*>(range.next_gradient) + i, part, g);
        store(gradient + i, part, g);
#pragma unroll
        for (int e = 0; e < kWide; ++e) update(guessed, g[e], w[e], m[e], v[e]);
      }
      if (weights != nullptr) store(weights + i, part, w);
    });
}

template <typename T>
constexpr bool kGuessed = sizeof(T) == 2;  // fp32 weights are the master weights: they are only optimized

template <typename T>
auto adamw_kernel_of(UpdateForm form) {
  if constexpr (kGuessed<T>) {
    if (form == UpdateForm::repair) return adamw_kernel<UpdateForm::repair, T>;
    if (form == UpdateForm::visit) return adamw_kernel<UpdateForm::visit, T>;
  }
  CHECK(form == UpdateForm::optimize, "fp32 weights cannot be guessed");
  return adamw_kernel<UpdateForm::optimize, T>;
}

}  // namespace

template <>
void load_update_kernels<OptimizerKind::adamw>() {
  for_each_precision([]<typename T>(T) {
    load(adamw_kernel<UpdateForm::optimize, T>);
    if constexpr (kGuessed<T>) {
      load(adamw_kernel<UpdateForm::repair, T>);
      load(adamw_kernel<UpdateForm::visit, T>);
    }
  });
}

void load_gradient_kernels() {
  for_each_precision([]<typename T>(T) { load(round_kernel<T>); });
  for_each_conversion([]<typename From, typename To>(From, To) {
    load(sum_kernel<FewRanks, From, To>);
    load(sum_kernel<ManyRanks, From, To>);
  });
}

void round_gradient(const Queue& queue, const Accumulators& accumulators, void* gradient, DType precision,
                    uint64_t elements, double* block_sums) {
  with_precision(precision, [&]<typename T>(T) {
    bool aligned = aligned_to_16(gradient);
    for (uint32_t a = 0; a < accumulators.count; ++a) aligned = aligned && aligned_to_16(accumulators.of[a]);
    launch(queue, round_kernel<T>, div_up(static_cast<int64_t>(elements), static_cast<int64_t>(kNormBlock)),
           kThreads, 0, accumulators, static_cast<T*>(gradient), static_cast<int64_t>(elements), aligned,
           block_sums);
  });
}

void sum_parts(const Queue& queue, DType from, const void* parts, uint32_t ranks, uint64_t elements, DType to,
               void* out, double* block_sums) {
  const bool aligned = aligned_to_16(parts) && aligned_to_16(out) && elements % kWide == 0;
  const bool few = ranks < FewRanks::kTogether << FewRanks::kLevels;
  with_precisions(from, to, [&]<typename From, typename To>(From, To) {
    const auto kernel = few ? sum_kernel<FewRanks, From, To> : sum_kernel<ManyRanks, From, To>;
    launch(queue, kernel, div_up(static_cast<int64_t>(elements), static_cast<int64_t>(kNormBlock)),
           kSumThreads, 0, static_cast<const From*>(parts), static_cast<int64_t>(ranks),
           static_cast<int64_t>(elements), static_cast<To*>(out), aligned, block_sums);
  });
}

template <>
void update_by<OptimizerKind::adamw>(const Queue& queue, UpdateForm form, const UpdateRange& range,
                                     const UpdateScalars& scalars) {
  if (range.elements == 0) return;
  const bool aligned = aligned_to_16(range.master) && aligned_to_16(range.planes[0]) &&
                       aligned_to_16(range.planes[1]) && aligned_to_16(range.gradient) &&
                       aligned_to_16(range.weights) && aligned_to_16(range.next_gradient);
  const int64_t items = div_up(static_cast<int64_t>(range.elements), kWide);
  with_precision(range.precision, [&]<typename T>(T) {
    const auto kernel = adamw_kernel_of<T>(form);
    launch(queue, kernel, striding_blocks(queue, items, kThreads), kThreads, 0, range, scalars, aligned);
  });
}

void zero(const Queue& queue, void* data, uint64_t bytes) {
  if (bytes > 0) check_step(cudaMemsetAsync(data, 0, bytes, static_cast<cudaStream_t>(queue.stream)));
}

}  // namespace sluice::cuda
