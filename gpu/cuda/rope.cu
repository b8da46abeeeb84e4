// Rotary position embedding (Su et al. 2021, arXiv:2104.09864), rotate-half form.
//
// A table of (cosine, sine) for every (position, pair) is made first, its angles in double: at position 10^5
// an fp32 angle would be off by 0.004. Backward rotates the other way.
#include "gpu/cuda/base.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;

struct alignas(8) Turn {
  float cosine, sine;
};
static_assert(sizeof(Turn) == kTurnBytes);

// Radians per position of pair i of a head. llama3 scaling stretches wavelengths above original_context / low
// by `factor`, keeps those below original_context / high, and blends in between (Hugging Face's "llama3" rope
// type).
__device__ inline double inverse_frequency(const OpAttributes& a, int64_t i) {
  constexpr double kTwoPi = 6.283185307179586;
  const RopeScaling& scaling = a.rope_scaling;
  const double plain = pow(a.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(a.head_size));
  if (scaling.factor == 1) return plain;
  const double wavelength = kTwoPi / plain;
  if (wavelength > scaling.original_context / scaling.low) return plain / scaling.factor;
  if (wavelength < scaling.original_context / scaling.high) return plain;
  const double share = (scaling.original_context / wavelength - scaling.low) / (scaling.high - scaling.low);
  return (1 - share) * plain / scaling.factor + share * plain;
}

// A thread has one pair, whose frequency takes the most arithmetic, and kPositions positions.
constexpr int kPositions = 8;
__global__ void __launch_bounds__(kThreads) table_kernel(OpAttributes a, Turn* table) {
  const int64_t half = a.head_size / 2, index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t first = index / half * kPositions, pair = index % half;
  if (first >= a.sequence) return;
  const double frequency = inverse_frequency(a, pair);
  for (int64_t position = first; position < first + kPositions && position < a.sequence; ++position) {
    double sine, cosine;
    sincos(static_cast<double>(position) * frequency, &sine, &cosine);
    table[position * half + pair] = {static_cast<float>(cosine), static_cast<float>(sine)};
  }
}

template <typename T>
struct Rotation {
  const T* from;
  Gradient<T> to;
  const Turn* table;
  uint32_t rows, heads, half, sequence;
  float direction;  // 1, or -1 for backward
};

// The turns of kWide pairs.
__device__ inline void load_turns(const Turn* turns, Whole, float (&cosines)[kWide], float (&sines)[kWide]) {
#pragma unroll
  for (int i = 0; i < kWide; i += 2) {
    const Words two = *reinterpret_cast<const Words*>(turns + i);
    cosines[i] = __uint_as_float(two.word[0]);
    sines[i] = __uint_as_float(two.word[1]);
    cosines[i + 1] = __uint_as_float(two.word[2]);
    sines[i + 1] = __uint_as_float(two.word[3]);
  }
}
__device__ inline void load_turns(const Turn* turns, Part part, float (&cosines)[kWide],
                                  float (&sines)[kWide]) {
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    cosines[i] = i < part.count ? turns[i].cosine : 0.0f;
    sines[i] = i < part.count ? turns[i].sine : 0.0f;
  }
}

// One thread: up to kWide pairs of one head of a row.
template <typename T>
__global__ void __launch_bounds__(kThreads) rotate_kernel(Rotation<T> a) {
  const uint32_t parts = (a.half + kWide - 1) / kWide, items = a.rows * a.heads * parts;
  for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < items; i += gridDim.x * kThreads) {
    const uint32_t head = i / parts, pair = i % parts * kWide, row = head / a.heads;
    const int64_t first = static_cast<int64_t>(head) * 2 * a.half + pair, second = first + a.half;
    const Turn* turns = a.table + static_cast<int64_t>(row % a.sequence) * a.half + pair;
    with_part(a.half % kWide == 0, a.half - pair, [&](auto part) {
      float x1[kWide], x2[kWide], before1[kWide], before2[kWide], cosines[kWide], sines[kWide];
      load(a.from + first, part, x1);
      load(a.from + second, part, x2);
      load_before(a.to, first, part, before1);
      load_before(a.to, second, part, before2);
      load_turns(turns, part, cosines, sines);
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        const float cosine = cosines[e], sine = sines[e] * a.direction, from = x1[e];
        x1[e] = from * cosine - x2[e] * sine;
        x2[e] = x2[e] * cosine + from * sine;
      }
      store_after(a.to, first, part, before1, x1);
      store_after(a.to, second, part, before2, x2);
    });
  }
}

void rotate(const Queue& queue, const OpCall& call, const TensorView& from, const TensorView& to,
            float direction) {
  if (to.data == nullptr) return;
  const OpAttributes& a = call.shapes->attributes;
  const int64_t rows = call.shapes->inputs[0][0], half = a.head_size / 2;
  const int64_t blocks = striding_blocks(queue, rows * a.heads * div_up(half, kWide), kThreads);
  auto* table = reinterpret_cast<Turn*>(call.workspace);
  launch(queue, table_kernel, div_up(div_up(a.sequence, kPositions) * half, kThreads), kThreads, 0, a, table);
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Rotation<T> rotation{static_cast<const T*>(from.data),
                               {static_cast<T*>(to.data), static_cast<const T*>(to.addend)},
                               table,
                               static_cast<uint32_t>(rows),
                               static_cast<uint32_t>(a.heads),
                               static_cast<uint32_t>(half),
                               static_cast<uint32_t>(a.sequence),
                               direction};
    launch(queue, rotate_kernel<T>, blocks, kThreads, 0, rotation);
  });
}

}  // namespace

void load_rope_kernels() {
  load(table_kernel);
  for_each_precision([]<typename T>(T) { load(rotate_kernel<T>); });
}

void rope_forward(const Queue& queue, const OpCall& call) {
  rotate(queue, call, view_of(call.inputs, 0), {call.outputs[0].data}, 1);
}

void rope_backward(const Queue& queue, const OpCall& call) {
  rotate(queue, call, view_of(call.output_gradients, 0), view_of(call.input_gradients, 0), -1);
}

}  // namespace sluice::cuda
